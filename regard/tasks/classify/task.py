"""Classification of a text or a pair of texts: one label, several labels, or a number (data.problem_type)."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeAlias

import torch
from torch import Tensor

from ...config.data.base import DataFiles
from ...config.merge import Settings
from ...config.run import changed_decode
from ...data.datasets.rows import max_text_tokens
from ...data.source import Source
from ...data.sources.labeled import detect_problem, label_roles
from ...decode.engine.answer import Emit
from ...decode.engine.jobs import Forward, Head, ModelCall, Read
from ...errors import UserError
from ...families.protocols import LabelModel
from ...look import AttentionView, Which
from ...messages.labels import (
    ClassifyRequest,
    ClassifyResult,
    MultiLabelRequest,
    MultiLabelResult,
    RegressionRequest,
    RegressionResult,
)
from ...messages.media import Item as ScoredItem
from ...messages.verbs import ScoreRequest, ScoreResult
from ...metrics.labels import paired_accuracy_bootstrap
from ...parts import Inputs
from ...processors.base import Array, Processor
from ...processors.labels import LabelSet
from ...processors.saved import load_processors
from ...processors.text.tokenizers import Tokenizer
from ..base import Metrics, Processors, build_model, open_splits, require_tokenizer
from ..label import encoder
from ..label.embedding import refuse_target, text_view
from ..label.encoder import EncoderPredictor, PretrainedEncoder, labels_of_folder, run_of_folder
from ..label.texts import EncodedTexts, TextEncoder, Texts, is_empty, item_texts
from ..notices import require_finite
from ..predictor import PlainResult
from ..reading import ItemReader, reader_of
from ..task import TEXT, Task
from ..texts import as_text, listed
from .evaluation import evaluate_texts, text_outputs
from .explain import decide
from .items import TextItem, as_items, data_split, item_of
from .jobs import ClassifyJob
from .ngrams import add_ngrams
from .problems import A, MultiLabel, Problem, Q, Regression, SingleLabel, T, Targets, second
from .settings import ClassifyRun

TASK = Task("classify", TEXT, "label", extend=add_ngrams)
LABEL = "label"  # the field of targets


class TextLabelPredictor(EncoderPredictor[TextItem, Q, A], Generic[Q, A, T]):
    """A predictor of labels or a number of a text, or of a pair of texts (data.pairs) with END between them."""

    run: ClassifyRun
    model: LabelModel
    problem_class: ClassVar[type[Problem[Any, Any, Any]]]
    folder: Path | None = None  # which has the bag of words

    def __init__(
        self, run: ClassifyRun, model: LabelModel, tokenizer: Tokenizer, labels: LabelSet, device: torch.device
    ) -> None:
        super().__init__(run, model, tokenizer, device)
        self.labels = labels

    @property
    def problem(self) -> Problem[Q, A, T]:
        """What the outputs mean."""
        return self.problem_class(self.run, self.labels)

    @property
    def pairs(self) -> bool:
        """True if it reads pairs of texts."""
        return bool(self.run.data.pairs == "yes")

    @cached_property
    def texts(self) -> TextEncoder:
        room = max_text_tokens(self.model.context, self.run.data, 3 if self.pairs else 2)
        return TextEncoder(self.tokenizer, room, getattr(self.run.model, "token_types", 2))

    @cached_property
    def head(self) -> Head[Array]:
        """The pass for labels."""
        return Head(self.texts.collate, partial(class_outputs, self.problem_class))

    @property
    def processors(self) -> dict[str, Processor]:
        return {**super().processors, LABEL: self.problem.processor}

    def is_item(self, x: object) -> bool:
        return isinstance(x, str) or (self.pairs and isinstance(x, tuple) and all(isinstance(e, str) for e in x))

    @property
    def item_reader(self) -> ItemReader:
        """Texts or pairs of texts, and their labels."""
        reader = reader_of(self.run, *label_roles(self.run.data))
        columns = len(reader.roles) - 1
        fields = len(reader.roles) if self.problem_class.labeled else columns
        return replace(reader, item_rule=replace(reader.rule, required=columns), columns=columns, fields=fields)

    # --- requests ----------------------------------------------------------------------------------------------

    def requests(self, items: Iterable[TextItem], details: bool = False, **decode: object) -> list[Q]:
        settings, problem = changed_decode(self.run, decode) if decode else None, self.problem
        return [problem.request(texts, settings) for texts in as_items(items, self.pairs)]

    async def answer(self, request: Q, emit: Emit | None = None) -> A:
        if is_empty(texts := item_of(request)):
            return self.problem.empty_result()
        text = await Read(self.texts.read, texts)
        output = await self.head_output(text)
        return self.problem.result(output, request, text.notices)

    async def head_output(self, text: EncodedTexts) -> Array:
        """(labels,): the outputs of the head for a text."""
        output: Array = await Forward(self.head, text.row)
        return output

    def plain_result(self, request: Q, result: A) -> PlainResult:
        return self.problem.plain_result(request, result)

    def look_item(self, item: ScoredItem) -> ScoredItem:
        return item

    async def view(self, item: TextItem | ScoredItem, target: str | None = None, layer: Which = None) -> AttentionView:
        """The attention of every layer while the model reads a text or a pair, and what its n-grams contribute."""
        refuse_target(target)
        if isinstance(item, ScoredItem):
            texts = item_texts(item)
        else:
            (texts,) = as_items([item if isinstance(item, tuple) else as_text(item)], self.pairs)
        if is_empty(texts):
            raise UserError("the text is empty and has no attention to show; give a sentence")
        view = await text_view(self, self.texts, texts, layer)
        text = self.texts.collate([self.texts.read([texts])[0].row]).to(self.device)
        about = text, self.tokenizer, self.labels.names, self.problem_class.name == "single_label"
        return replace(view, decision=await ModelCall(lambda model: decide(model, *about)))

    # --- known targets -----------------------------------------------------------------------------------------

    def score_requests(self, items: TextItem | Iterable[TextItem], targets: Targets) -> tuple[list[ScoreRequest], bool]:
        single = self.is_item(items)
        texts = as_items(listed(items, single), self.pairs)
        known = self.problem.targets(targets, single, len(texts))
        requests = (
            ScoreRequest(ScoredItem(text[0], text_pair=second(text)), target)
            for text, target in zip(texts, known, strict=True)
        )
        return [*requests], single

    async def answer_score(self, request: ScoreRequest, emit: Emit | None = None) -> ScoreResult:
        target = self.problem.target_ids(request.target)
        text = await Read(self.texts.read, item_texts(request.item))
        output = await self.head_output(text)
        value = self.problem.logprob(output, target)
        require_finite([value])
        return ScoreResult(value, notices=text.notices)

    def outputs(self, items: Iterable[Texts]) -> Tensor:
        """(texts, labels): log-probabilities; of several labels logits, and of regression the number."""
        return text_outputs(self, items)

    def evaluate_with_outputs(self, files: DataFiles | None = None) -> tuple[Metrics, list[Any] | None, list[T]]:
        return evaluate_texts(self, data_split(self.run, "test", files))


class ClassifyPredictor(TextLabelPredictor[ClassifyRequest, ClassifyResult, str]):
    """The label of every text. decode.top gives that many labels with their probabilities, the likeliest first.

    An empty text has no label.
    """

    request_type, result_type, problem_class = ClassifyRequest, ClassifyResult, SingleLabel
    paired_test = staticmethod(paired_accuracy_bootstrap)


class MultiLabelPredictor(TextLabelPredictor[MultiLabelRequest, MultiLabelResult, tuple[str, ...]]):
    """The labels of every text whose probability is at least decode.threshold. An empty text has none."""

    request_type, result_type, problem_class = MultiLabelRequest, MultiLabelResult, MultiLabel
    paired_test = staticmethod(paired_accuracy_bootstrap)


class RegressionPredictor(TextLabelPredictor[RegressionRequest, RegressionResult, float]):
    """The number of every text: the output of the head itself, not a probability. An empty text has none."""

    request_type, result_type, problem_class = RegressionRequest, RegressionResult, Regression


def class_outputs(problem: type[Problem[Q, A, T]], model: LabelModel, inputs: Inputs) -> Array:
    """The outputs (rows, labels) of a batch."""
    outputs: Array = problem.outputs(model.label_logits(model.encode(inputs)).float()).cpu().numpy()
    return outputs


# --- construction --------------------------------------------------------------------------------------------------

AnyLabelPredictor: TypeAlias = ClassifyPredictor | MultiLabelPredictor | RegressionPredictor
PREDICTORS: Mapping[str, type[AnyLabelPredictor]] = {
    "multi_label": MultiLabelPredictor, "regression": RegressionPredictor
}  # fmt: skip  # by data.problem_type; the others predict one label


def predictor_class(run: ClassifyRun) -> type[AnyLabelPredictor]:
    """The class of predictors for the data.problem_type of a run."""
    return PREDICTORS.get(run.data.problem_type, ClassifyPredictor)


def prepare(run: ClassifyRun, processors: Processors, device: torch.device, folder: Path | None = None) -> ClassifyJob:
    """Open the data, collect the labels and train a tokenizer that is not kept; writes no file."""
    train: Source | None = None
    settings: Settings = {}
    if run.data.train:
        settings, train = detect_problem(run.data)
    if settings.get("problem_type", run.data.problem_type) == "regression":  # its n-grams would have no labels to count
        settings = {**settings, "ngrams": run.data.ngrams.model_copy(update={"order": 0})}
    run = run.model_copy(update={"data": run.data.model_copy(update=settings)})  # as it is: data may be in memory
    splits = open_splits(run, partial(data_split, train=train))
    return ClassifyJob(predictor_class(run), run, processors, device, splits, folder is not None)


def restore(run: ClassifyRun, folder: Path, device: torch.device) -> AnyLabelPredictor:
    """The predictor of a run folder, without the weights."""
    processors, new_predictor = load_processors(folder), predictor_class(run)
    labels = new_predictor.problem_class.load_labels(run, folder, processors)
    model = add_ngrams(build_model(run), run)
    predictor = new_predictor(run, model, require_tokenizer(processors), labels, device)
    predictor.folder = folder
    return predictor


def from_folder(folder: PretrainedEncoder, overrides: Mapping[str, object]) -> AnyLabelPredictor:
    """The predictor of a Hugging Face folder."""
    run, device = run_of_folder(folder, overrides, "classify", problem_type=folder.problem_type)
    return predictor_class(run)(run, folder.model, folder.tokenizer, labels_of_folder(folder), device)


def size_without_data(run: ClassifyRun) -> ClassifyRun:
    """The run with the sizes of a model without data."""
    return encoder.size_without_data(run, head="class", labels=run.model.labels or 2)
