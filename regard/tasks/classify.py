"""Classification: one label for a text."""

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ..config.run import Run
from ..config.schema import Sides
from ..data import columns
from ..data.examples import Examples
from ..data.labeled import labeled_texts
from ..data.loader import Loader
from ..data.rows import LabeledTextDataset
from ..families.protocols import as_module
from ..metrics.labels import label_metrics
from ..processors.base import Processor
from ..processors.labels import LabelProcessor, collect_labels
from ..synthetic.language_id import make_phrases
from ..synthetic.matching import make_matching
from . import encoder
from .base import Metrics, Processors, Record, build_model, open_split, open_splits
from .encoder import LabelPredictor, kept_or_trained_tokenizer, with_vocab
from .finite import require_finite
from .label_answers import LabelJob, label_set
from .notices import empty_text
from .objectives import LabelObjective
from .predictor import Answer
from .records import label_record
from .requests import ClassifyRequest, ClassifyResult
from .task import TEXT, Task
from .texts import as_pairs, as_texts

TASK = Task("classify", TEXT, "label", ClassifyRequest, ClassifyResult)


class ClassifyPredictor(LabelPredictor[str, ClassifyRequest, ClassifyResult]):
    """The label of every text. decode.top gives that many labels with their probabilities, the likeliest first.

    An empty text has no label.
    """

    sides, roles = 2, (columns.TEXT, columns.LABEL)
    label_field = "label"

    @property
    def processors(self) -> dict[str, Processor]:
        return {**super().processors, self.label_field: LabelProcessor(self.labels)}

    def requests(self, items: Iterable[str], details: bool = False, **decode: object) -> list[ClassifyRequest]:
        top = self.decode_settings(decode).top if decode else None
        return [ClassifyRequest(text, top) for text in as_texts(items)]

    def predict_requests(self, requests: Sequence[ClassifyRequest], batch: int | None = None) -> list[ClassifyResult]:
        self.refuse_adapters(requests)
        filled = [each for each in requests if each.text.strip()]
        rows, notices = self.encode_texts([each.text for each in filled])
        found = iter(zip(self.label_logprobs(rows, batch), notices, strict=True))
        empty = ClassifyResult(None, None, (), notices=(empty_text(),))
        return [self._result(*next(found), self.top(each)) if each.text.strip() else empty for each in requests]

    def record(self, request: ClassifyRequest, result: ClassifyResult) -> Record:
        return label_record(result)

    def answer(self, request: ClassifyRequest, result: ClassifyResult) -> str | list[tuple[str, float]]:
        pairs = [(each.label, each.probability) for each in result.top]
        return pairs if self.top(request) else result.label or ""

    def score(
        self, texts: str | Iterable[str], targets: str | Iterable[str] | None = None, details: bool = False
    ) -> Answer:
        """ln P(label | text)"""
        if isinstance(texts, str) and isinstance(targets, str):
            return self.score([texts], [targets], details)[0]
        texts, targets = as_pairs(texts, targets, ("text", "label"))
        ids = self.label_ids(targets)
        values = [float(row[number]) for row, number in zip(self._logprobs(texts), ids, strict=True)]
        require_finite(values)
        return [{"score": value} for value in values] if details else values

    def evaluate_with_outputs(self, sides: Sides | None = None) -> tuple[Metrics, list[str], list[str]]:
        """The metrics of `evaluate`, the predicted labels and the reference labels."""
        examples = data_split(self.run, "test", sides)
        examples.require_nonempty("data.test")
        texts, references = [each[0] for each in examples], [each[1] for each in examples]
        self.report_labels(examples, references)
        logprobs = torch.stack(self._logprobs(texts))
        require_finite([float(logprobs.sum())])
        found = self.best_labels(logprobs)
        metrics = {"examples": len(references), **label_metrics(found, references)}
        return metrics | self.majority_baseline(references) | self.unseen_labels(references), found, references

    def loss_over(self, examples: Examples) -> tuple[float, list[str], list[str]]:
        """Nats per text, predicted and reference labels; examples with an unseen label are left out."""
        known = [each for each in examples if each[1] in self.labels.ids]
        references = [label for _, label in known]
        logprobs = torch.stack(self._logprobs([text for text, _ in known])) if known else torch.zeros(0, 1)
        wanted = torch.tensor([self.labels.ids[label] for label in references], dtype=torch.long)
        nats = -float(logprobs.gather(1, wanted[:, None]).sum())
        return nats / max(len(references), 1), self.best_labels(logprobs), references

    def _logprobs(self, texts: Sequence[str]) -> list[Tensor]:
        """(labels,) of each text."""
        return self.label_logprobs(self.encode_with_warning(texts))

    def _result(self, logprobs: Tensor, notices: tuple[str, ...], top: int) -> ClassifyResult:
        ranked = self.ranked_labels(logprobs, top)
        require_finite([ranked[0].probability])
        return ClassifyResult(ranked[0].label, ranked[0].probability, ranked, notices=notices)


class ClassifyJob(LabelJob):
    """Texts with one label each."""

    predictor: ClassifyPredictor

    def __init__(self, predictor: ClassifyPredictor, splits: dict[str, Examples]) -> None:
        self.predictor, self.run, self.splits = predictor, predictor.run, splits
        data, train, model = self.run.data, self.run.train, predictor.model
        self.objective = LabelObjective(as_module(model), train.smoothing, data.rdrop)
        dataset = LabeledTextDataset(splits["train"], predictor.tokenizer, predictor.labels, data, train, model.context)
        self.loader = Loader.of(dataset)


# --- construction --------------------------------------------------------------------------------------------------


def prepare(run: Run, kept: Processors, device: torch.device, folder: Path | None = None) -> ClassifyJob:
    """Open the data, collect the labels and train a tokenizer that is not kept; writes no file."""
    splits = open_splits(run, data_split)
    labels = label_set(run, collect_labels(splits["train"]), kept, ClassifyPredictor.label_field, splits)
    tokenizer = kept_or_trained_tokenizer(run, kept, splits["train"])
    run = with_vocab(run, tokenizer, head="class", labels=len(labels))
    predictor = ClassifyPredictor(run, build_model(run), tokenizer, labels, device)
    return ClassifyJob(predictor, splits)


restore = ClassifyPredictor.from_run_folder
from_folder = partial(ClassifyPredictor.from_folder, task="classify")


def with_max_vocab(run: Run) -> Run:
    """The run with the sizes of a model without data."""
    return encoder.with_max_vocab(run, head="class", labels=run.model.labels or 2)


def data_split(run: Run, split: str, sides: Sides | None = None) -> Examples:
    """A split of the data; the embedded data are phrases or the matching task."""
    data = run.data

    def embedded() -> Examples:
        if data.embedded == "matching":
            return make_matching(data.max_tokens - 2, data.examples, seed=1)[split]
        return make_phrases(data.locales, data.examples, seed=1)[split]

    return open_split(run, split, sides, lambda files: labeled_texts(files, data), embedded, "test.tsv")
