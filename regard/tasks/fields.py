"""A task as one declaration: its fields with their processors, an objective, and the coroutine that answers.

It is for tasks whose examples are tuples of fields, such as a text and a number. The command line, training, resuming,
batching and JSON come with it. `regard.register(task=FieldTask(…))` adds one.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Generic

import torch
from torch import Tensor, nn

from ..config.data.base import DataFiles
from ..config.run import Run, changed_decode
from ..config.task_settings import TaskSettings
from ..data.batch import Batch
from ..data.datasets.fields import AnyField, ProcessorField
from ..data.datasets.source_target import SourceTargetDataset
from ..data.loading.loader import Loader
from ..data.source import FieldValues, Source
from ..decode.engine.jobs import Head
from ..families.protocols import as_module
from ..families.spec import Output
from ..parts.inputs import Inputs, TensorKind
from ..processors.base import Processor
from ..processors.saved import load_processors
from ..processors.text.processor import TextProcessor
from ..processors.text.tokenizers import train_tokenizer
from ..training.objective import LossSum, Objective
from .base import Metrics, Processors, TrainingJob, build_model, open_split, open_splits, with_head, with_model_settings
from .predictor import A, PlainResult, Predictor, Q
from .reading import ItemReader
from .task import Task

NewProcessor = Callable[[Run, Iterable[Any]], Processor]  # from the values of its field in the training data
NewField = Callable[[str, Any], AnyField]  # from its name and its processor


def text_field(run: Run, texts: Iterable[str]) -> TextProcessor:
    """Texts, with a tokenizer that is trained on them."""
    return TextProcessor(train_tokenizer(run.tokenizer, texts))


OUTPUTS: dict[Output, Callable[[Any, Inputs], Tensor]] = {
    "label": lambda model, inputs: model.label_logits(model.encode(inputs)),
    "tags": lambda model, inputs: model.label_logits(model.encode(inputs)),
    "embedding": lambda model, inputs: model.vectors(inputs),
}  # what a model says of a batch, one row for each input


class FieldObjective(Objective):
    """The loss of a declared task, summed over the examples."""

    def __init__(self, model: nn.Module, task: "FieldTask[Any, Any]") -> None:
        super().__init__()
        self.model, self.task = model, task

    def forward(self, batch: Batch) -> LossSum:
        inputs, targets = (batch[name] for name in self.task.processors)
        return LossSum(self.task.loss(OUTPUTS[self.task.writes](self.model, inputs), targets.values))


class FieldPredictor(Predictor[Any, Q, A]):
    """A model with the processors of its fields. A request begins with an item, a result with the answer."""

    task: "FieldTask[Q, A]"

    def __init__(
        self, task: "FieldTask[Q, A]", run: Run, model: nn.Module, processors: Processors, device: torch.device
    ) -> None:
        self.task, self.run, self._processors, self.device = task, run, dict(processors), device
        self.model = model.to(device).eval()

    @property
    def item_reader(self) -> ItemReader:
        return replace(super().item_reader, fields=len(self._processors))

    @property
    def processors(self) -> dict[str, Processor]:
        return self._processors

    def requests(self, items: Iterable[Any], details: bool = False, **decode: object) -> list[Q]:
        """Settings of decode.* that are fields of a request are set in each."""
        settings = changed_decode(self.run, decode)
        names = {name.name for name in fields(self.request_type)} & {*decode}
        shared = {name: getattr(settings, name) for name in names}
        return [self.request_type(item, **shared) for item in items]  # type: ignore[call-arg, misc]

    def plain_result(self, request: Q, result: A) -> PlainResult:
        return getattr(result, next(name.name for name in fields(result) if name.name != "notices"))

    @cached_property
    def head(self) -> Head[Tensor]:
        """Rows of the first field in batches: `await Forward(predictor.head, row)` gives what the model says of it."""
        first, outputs = next(iter(self._processors.values())), OUTPUTS[self.task.writes]
        return Head(first.collate, lambda model, inputs: outputs(model, inputs).float().cpu(), first.cost)

    def dataset(self, examples: Source) -> SourceTargetDataset:
        """The examples as training reads them."""
        source, target = (
            self.task.fields.get(name, ProcessorField)(name, processor) for name, processor in self._processors.items()
        )
        return SourceTargetDataset(examples, source, target, self.run.data, self.run.train)

    def metrics(self, examples: Source) -> dict[str, float]:
        """The metrics of examples beside their loss."""
        return {}

    @torch.no_grad()
    def loss_over(self, examples: Source) -> float:
        """The mean loss of examples."""
        objective, total = FieldObjective(as_module(self.model), self.task), 0.0
        dataset = self.dataset(examples)
        indices = list(range(len(examples)))
        for first in range(0, len(indices), self.run.decode.batch):
            rows = list(dataset.encode(indices[first : first + self.run.decode.batch]))
            total += float(objective(dataset.collate(rows).to(self.device)).sum)
        return total / max(len(indices), 1)

    def all_metrics(self, examples: Source) -> dict[str, float]:
        """The metrics of validation and evaluation."""
        return {"loss": self.loss_over(examples), **self.metrics(examples)}

    def evaluate_with_outputs(self, files: DataFiles | None = None) -> tuple[Metrics, list[str] | None, object]:
        examples = self.task.data_split(self.run, "test", files)
        examples.require_nonempty("data.test")
        return {"examples": len(examples), **self.all_metrics(examples)}, None, [*examples]


class FieldJob(TrainingJob):
    """Examples of fields."""

    predictor: FieldPredictor[Any, Any]
    splits: Mapping[str, Source]

    def __init__(self, predictor: FieldPredictor[Any, Any], splits: Mapping[str, Source]) -> None:
        self.predictor, self.run, self.splits = predictor, predictor.run, splits
        self.objective = FieldObjective(as_module(predictor.model), predictor.task)
        self.loader = Loader.of(predictor.dataset(splits["train"]))

    def validate(self) -> dict[str, float]:
        return self.predictor.all_metrics(self.splits["valid"]) if "valid" in self.splits else {}


@dataclass(frozen=True)
class FieldTask(Generic[Q, A]):
    """The declaration of a task. It has what the module of a task has."""

    name: str
    reads: frozenset[TensorKind]
    writes: Output
    settings: TaskSettings
    processors: Mapping[str, NewProcessor]  # by the fields of an example, in order
    loss: Callable[[Tensor, Tensor], Tensor]  # of the model's outputs and the values of the second field, summed
    predictor: type[FieldPredictor[Q, A]]
    read: Callable[[DataFiles, Any], Source]  # files and data.* as examples
    embedded: Callable[[str], Source]  # the examples of a split without files
    model: Mapping[str, object] = field(default_factory=dict)  # settings of the model that the task decides
    sizes: Callable[[Processors], Mapping[str, object]] = lambda processors: {}  # and those that the processors decide
    fields: Mapping[str, NewField] = field(default_factory=dict)  # how training reads fields, if not by ProcessorField

    @property
    def TASK(self) -> Task:
        """What it needs of a family."""
        return Task(self.name, self.reads, self.writes)

    @property
    def SETTINGS(self) -> TaskSettings:
        """The types of data.*, decode.* and eval.*, and its metrics."""
        return self.settings

    def data_split(self, run: Run, split: str, files: DataFiles | None = None) -> Source:
        """A split of the data."""
        read = lambda files: self.read(files, run.data)  # noqa: E731
        return open_split(run, split, files, read, lambda: self.embedded(split), "test.tsv")

    def prepare(self, run: Run, kept: Processors, device: torch.device, folder: Path | None = None) -> FieldJob:
        """Open the data and make the processors that are not kept; writes no file."""
        splits = open_splits(run, self.data_split)
        columns = enumerate(self.processors.items())
        train = splits["train"]
        made = {name: kept.get(name) or new(run, FieldValues(train, number)) for number, (name, new) in columns}
        run = self._with_sizes(run, made)
        predictor = self.predictor(self, run, build_model(run), made, device)
        return FieldJob(predictor, splits)

    def restore(self, run: Run, folder: Path, device: torch.device) -> FieldPredictor[Q, A]:
        """The predictor of a run folder, without the weights."""
        kept = load_processors(folder)
        return self.predictor(self, run, build_model(run), {name: kept[name] for name in self.processors}, device)

    def size_without_data(self, run: Run) -> Run:
        """The run with the sizes of a model without data."""
        return self._with_sizes(run, {})

    def _with_sizes(self, run: Run, processors: Processors) -> Run:
        vocabularies = [text.tokenizer.size for text in processors.values() if isinstance(text, TextProcessor)]
        sizes = {"vocab": max(*vocabularies, run.model.vocab if run.start else 0)} if vocabularies else {}
        if not sizes and "tokens" in self.reads:
            sizes = {"vocab": run.model.vocab or run.tokenizer.vocab}
        model = {**self.model, **(self.sizes(processors) if processors else {})}
        head = str(model.pop("head", ""))
        return with_head(with_model_settings(run, **sizes, **model), head)
