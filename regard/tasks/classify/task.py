"""Classification of a text or a pair of texts: one label, several labels, or a number (data.problem_type)."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from ...config.data.base import DataFiles
from ...config.run import Run
from ...data.source import Source
from ...data.sources.labeled import detect_problem
from ...errors import UserError
from ...metrics.bag_of_words import ProblemType
from ...metrics.labels import label_metrics
from ...processors.base import Processor
from ...processors.labels import LabelProcessor, LabelSet
from ..base import Metrics, Processors, Record, open_splits
from ..label import encoder
from ..label.baselines import StoredBaseline
from ..label.encoder import LabelPredictor, PretrainedEncoder, run_of_folder
from ..notices import empty_text, require_finite
from ..predictor import PlainResult, RequestType, ResultType
from ..records import label_record
from ..requests import ClassifyRequest, ClassifyResult
from ..task import TEXT, Task
from ..texts import as_texts
from .items import TextItem, TextItems, data_split, is_empty, item_of, item_of_example
from .jobs import ClassifyJob

TASK = Task("classify", TEXT, "label", ClassifyRequest, ClassifyResult)


class LabeledTexts(TextItems[RequestType, ResultType], LabelPredictor[TextItem, RequestType, ResultType]):
    """A predictor of one or several labels of a text or a pair of texts."""

    label_field = "label"
    problem: ProblemType
    folder: Path | None = None

    @classmethod
    def from_run_folder(cls, run: Run, folder: Path, device: torch.device) -> Self:
        predictor = super().from_run_folder(run, folder, device)
        predictor.folder = folder
        return predictor

    def baselines(self, examples: Source, references: Sequence[Any]) -> Metrics:
        """The scores of the most frequent label and of a bag of words."""
        if not self.with_baselines:
            return {}
        if not self.run.eval.baseline:
            return self.majority_baseline(references)
        return self.majority_baseline(references) | StoredBaseline(self.folder).score(examples, self.problem)


class ClassifyPredictor(LabeledTexts[ClassifyRequest, ClassifyResult]):
    """The label of every text. decode.top gives that many labels with their probabilities, the likeliest first.

    An empty text has no label.
    """

    problem = "single_label"

    @property
    def processors(self) -> dict[str, Processor]:
        return {**super().processors, self.label_field: LabelProcessor(self.labels)}

    def requests(self, items: Iterable[TextItem], details: bool = False, **decode: object) -> list[ClassifyRequest]:
        top = self.decode_settings(decode).top if decode else None
        return [ClassifyRequest(item[0], top, item[1] if len(item) > 1 else None) for item in self.as_items(items)]

    def predict_batch(self, requests: Sequence[ClassifyRequest], batch: int | None = None) -> list[ClassifyResult]:
        filled = [request for request in requests if not is_empty(item_of(request))]
        rows, notices = self.encode_texts([item_of(request) for request in filled])
        outputs = iter(zip(self.label_logprobs(rows, batch), notices, strict=True))
        empty = ClassifyResult(None, None, (), notices=(empty_text(),))
        return [
            empty if is_empty(item_of(request)) else self._result(*next(outputs), self.top(request))
            for request in requests
        ]

    def record(self, request: ClassifyRequest, result: ClassifyResult) -> Record:
        return label_record(result)

    def plain_result(self, request: ClassifyRequest, result: ClassifyResult) -> str | list[tuple[str, float]]:
        pairs = [(label.label, label.probability) for label in result.top]
        return pairs if self.top(request) else result.label or ""

    def score(self, texts: Any, targets: Any = None, details: bool = False) -> PlainResult:
        """ln P(label | text)"""
        if self.is_item(texts) and isinstance(targets, str):
            return self.score([texts], [targets], details)[0]
        items, labels = self._check_pairs(texts, targets)
        ids = self.label_ids(labels)
        values = [float(row[number]) for row, number in zip(self._logprobs(items), ids, strict=True)]
        require_finite(values)
        return [{"score": value} for value in values] if details else values

    def evaluate_with_outputs(self, files: DataFiles | None = None) -> tuple[Metrics, list[str], list[str]]:
        """The metrics of `evaluate`, the predicted labels and the reference labels."""
        examples = data_split(self.run, "test", files)
        examples.require_nonempty("data.test")
        items, references = [item_of_example(example) for example in examples], [example[1] for example in examples]
        self.report_labels(examples, references)
        logprobs = torch.stack(self._logprobs(items))
        require_finite([float(logprobs.sum())])
        predicted = self.best_labels(logprobs)
        metrics = {"examples": len(references), **label_metrics(predicted, references)}
        return metrics | self.baselines(examples, references) | self.unseen_labels(references), predicted, references

    def validation_metrics(self, examples: Source) -> dict[str, float]:
        """Nats per text, accuracy and macro F1; examples with an unseen label are left out."""
        loss, predicted, references = self.loss_over(examples)
        metrics = label_metrics(predicted, references)
        return {"loss": loss, "accuracy": metrics["accuracy"], "f1": metrics["f1"]}

    def loss_over(self, examples: Source) -> tuple[float, list[str], list[str]]:
        """Nats per text, predicted and reference labels; examples with an unseen label are left out."""
        known = [example for example in examples if example[1] in self.labels.ids]
        references = [example[1] for example in known]
        logprobs = torch.stack(self._logprobs([item_of_example(e) for e in known])) if known else torch.zeros(0, 1)
        targets = torch.tensor([self.labels.ids[label] for label in references], dtype=torch.long)
        nats = -float(logprobs.gather(1, targets[:, None]).sum())
        return nats / max(len(references), 1), self.best_labels(logprobs), references

    def _check_pairs(self, texts: Any, targets: Any) -> tuple[list[tuple[str, ...]], list[str]]:
        if self.is_item(texts) != isinstance(targets, str) or targets is None:
            raise UserError("score takes two texts or two lists of texts, not one of each")
        items, labels = self.as_items(texts), as_texts(targets, "label")
        if len(items) != len(labels):
            raise UserError(
                f"there are {len(items)} texts and {len(labels)} labels; each text needs its label, so give as many "
                "labels as texts"
            )
        return items, labels

    def _logprobs(self, items: Sequence[TextItem]) -> list[Tensor]:
        """(labels,) of each text."""
        return self.label_logprobs(self.encode_with_warning(items))

    def _result(self, logprobs: Tensor, notices: tuple[str, ...], top: int) -> ClassifyResult:
        ranked = self.ranked_labels(logprobs, top)
        require_finite([ranked[0].probability])
        return ClassifyResult(ranked[0].label, ranked[0].probability, ranked, notices=notices)


# --- construction --------------------------------------------------------------------------------------------------

PREDICTORS = {
    "multi_label": "regard.tasks.classify.multi_label:MultiLabelPredictor",
    "regression": "regard.tasks.classify.regression:RegressionPredictor",
}  # by data.problem_type; the others predict one label


def predictor_class(run: Run) -> Any:
    """The class of predictors for the data.problem_type of a run."""
    module, _, name = PREDICTORS.get(run.data.problem_type, "regard.tasks.classify.task:ClassifyPredictor").partition(
        ":"
    )
    return getattr(import_module(module), name)


def prepare(run: Run, processors: Processors, device: torch.device, folder: Path | None = None) -> ClassifyJob:
    """Open the data, collect the labels and train a tokenizer that is not kept; writes no file."""
    train: Source | None = None
    if run.data.train:
        settings, train = detect_problem(run.data)
        run = run.model_copy(update={"data": run.data.model_copy(update=settings)})  # as it is: data may be in memory
    splits = open_splits(run, partial(data_split, train=train))
    return ClassifyJob(predictor_class(run), run, processors, device, splits, folder is not None)


def restore(run: Run, folder: Path, device: torch.device) -> Any:
    """The predictor of a run folder, without the weights."""
    return predictor_class(run).from_run_folder(run, folder, device)


def from_folder(folder: PretrainedEncoder, overrides: Mapping[str, object]) -> Any:
    """The predictor of a Hugging Face folder."""
    run, device = run_of_folder(folder, overrides, "classify", problem_type=folder.problem_type)
    return predictor_class(run)(run, folder.model, folder.tokenizer, LabelSet(dict.fromkeys(folder.labels, 0)), device)


def size_without_data(run: Run) -> Run:
    """The run with the sizes of a model without data."""
    return encoder.size_without_data(run, head="class", labels=run.model.labels or 2)
