"""Helpers of all tasks: open splits, report facts about data, build the model."""

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import nn

from ..adapt.prune import prune_heads
from ..config.data.base import DataFiles
from ..config.data.texts import MaskData, SpanData
from ..config.measured import Measurements
from ..config.run import Run, RunType, change_settings
from ..data.loading.loader import LoadedStep, Loader
from ..data.source import Source
from ..data.sources.holdout import hold_out
from ..data.sources.lines import line_examples
from ..errors import UserError
from ..families import family
from ..processors.base import Processor
from ..processors.labels import LabelProcessor, LabelSet, TagProcessor
from ..processors.text.processor import TextProcessor
from ..processors.text.tokenizers import Tokenizer
from ..synthetic.language_id import make_phrases
from ..training.objective import AnyObjective

if TYPE_CHECKING:
    from .predictor import AnyPredictor

Metrics = dict[str, Any]  # by name: numbers, names and tables
Record = dict[str, Any]  # JSON values
log = logging.getLogger("regard")  # facts about data that is read; the command line prints them
T = TypeVar("T")
SHOWN_COUNTS = 10  # labels whose counts are reported


class Split(Protocol):
    """The data of one split."""

    name: str

    def __len__(self) -> int: ...
    def fingerprint(self) -> str:
        """A hash of the data."""

    def report(self) -> list[str]:
        """Facts about examples that were left out, with the reason."""


def _all_facts(examples: Split) -> list[str]:
    return examples.report() + (examples.notes(range(len(examples))) if isinstance(examples, Source) else [])


class TrainingJob(ABC):
    """A prepared training: the run, the objective, the data and the validation."""

    static_shapes = False  # True if almost all micro-batches share one shape (CUDA graphs pay off)
    run: Run  # with the sizes of its vocabulary and labels
    objective: AnyObjective
    predictor: "AnyPredictor"  # the same model, for validation
    splits: Mapping[str, Split]
    loader: Loader

    @property
    def model(self) -> nn.Module:
        """The model that is trained."""
        return self.objective.model

    @property
    def processors(self) -> "Processors":
        """The processors, which the run saves beside its weights."""
        return self.predictor.processors

    @abstractmethod
    def validate(self) -> dict[str, float]:
        """Metrics on the validation split; none without one."""

    def measure(self) -> Measurements:
        """What predictions should know about the data and the trained model; it becomes a part of run.json."""
        return Measurements()

    def write_files(self, folder: Path) -> None:
        """Write further files of a new run. The folder already has run.json and the processors."""
        return

    def describe_data(self) -> list[str]:
        """Facts about the data, and what was left out so far."""
        facts = []
        for name, examples in self.splits.items():
            facts.append(f"{name}: {len(examples):,} examples, {examples.name}")
            facts += [f"{name}: {fact}" for fact in _all_facts(examples)]
        return facts + self.loader.report()

    def count_data(self) -> list[str]:
        """Facts about the data, with the model sizes that follow from them."""
        named = {"vocabulary": "vocab", "target vocabulary": "target_vocab", "labels": "labels"}
        sizes = {name: getattr(self.run.model, key, 0) for name, key in named.items()}
        return [*self.describe_data(), *(f"{name} {size:,}" for name, size in sizes.items() if size)]

    def steps(self, epoch: int, index: int, rank: int = 0, world: int = 1) -> Iterator[LoadedStep]:
        """This process's share of the steps of an epoch after its first `index` examples."""
        return self.loader.steps(epoch, index, rank, world)

    def planned_steps(self, epochs: int) -> float:
        """The number of steps of the first `epochs` epochs, estimated for data of several pools."""
        return self.loader.planned_steps(epochs)

    def align(self, epoch: int, index: int) -> int:
        """The end of the last step within the first `index` examples of an epoch, for checkpoints of another plan."""
        return self.loader.align(epoch, index)


def open_splits(run: RunType, open_one: Callable[[RunType, str], Source]) -> dict[str, Source]:
    """The splits that training reads: train, and valid if there is one."""
    splits = {"train": open_one(run, "train")}
    splits["train"].require_nonempty("data.train")
    if run.data.valid or run.data.holdout or not run.data.train:
        splits["valid"] = open_one(run, "valid")
        splits["valid"].require_nonempty("data.valid")
    return splits


def open_split(
    run: Run,
    split: str,
    files: DataFiles | None,
    read: Callable[[DataFiles], Source],
    embedded: Callable[[], Source],
    example: str,
    tail: bool = False,
) -> Source:
    """A split of the data: `files` or data.<split>, else the embedded data if the run trains on it.

    Without data.valid, data.holdout divides data.train: at random, or with `tail` at its end. `example` is a file name
    for the error message.
    """
    data = run.data
    if files is None and split != "test" and data.train and data.holdout and not data.valid:
        return hold_out(read(data.train), data.holdout, split, tail)
    files = getattr(run.data, split) if files is None else files
    if files:
        examples = read(files)
        if split == "test":
            log_facts(examples.name, _all_facts(examples))
        return examples
    if run.data.train:
        raise UserError(f"this run has no {split} data; name some, such as --data {example} (data.{split})")
    return embedded()


def log_facts(name: str, facts: Sequence[str]) -> None:
    """Log facts about the data `name`: which columns are read, what is left out."""
    for fact in facts:
        log.info("%s: %s", name, fact)


def describe_labels(counts: Mapping[str, int]) -> str:
    """The most frequent labels with their counts, for people."""
    frequent = [f"{label} {count:,}" for label, count in Counter(counts).most_common(SHOWN_COUNTS)]
    remainder = f" and {len(counts) - SHOWN_COUNTS:,} more" if len(counts) > SHOWN_COUNTS else ""
    return f"labels: {', '.join(frequent)}{remainder}"


def open_lines(run: Run[MaskData | SpanData], split: str, files: DataFiles | None = None) -> Source:
    """A split for tasks that read lines of text; the embedded data are phrases."""
    data = run.data
    embedded = lambda: make_phrases(data.locales, data.examples, seed=1)[split]  # noqa: E731
    return open_split(run, split, files, lambda files: line_examples(files, data), embedded, "test.txt", tail=True)


# --- processors ------------------------------------------------------------------------------------------------------

Processors = Mapping[str, Processor]  # by field


def find_tokenizer(processors: Processors, field: str = "text") -> Tokenizer | None:
    """The saved tokenizer of a field, else of the text or the source; None if there is none."""
    texts = (processors.get(name) for name in (field, "text", "source"))
    return next((text.tokenizer for text in texts if isinstance(text, TextProcessor)), None)


def require_tokenizer(processors: Processors, field: str = "text") -> Tokenizer:
    """The tokenizer of a run; it is an error if run.json does not list it."""
    if not isinstance(processor := processors.get(field), TextProcessor):
        raise UserError(f"run.json lists no text processor for the field {field!r}; restore it, or train the run again")
    return processor.tokenizer


def find_labels(processors: Processors, field: str) -> LabelSet | None:
    """The saved label set of a field; None if there is none."""
    processor = processors.get(field)
    return processor.labels if isinstance(processor, LabelProcessor | TagProcessor) else None


def vocabulary(tokenizer: Tokenizer) -> tuple[list[str], int, int, int]:
    """All tokens and the ids of the control tokens; equal for equal vocabularies."""
    return tokenizer.tokens(range(tokenizer.size)), tokenizer.start, tokenizer.end, tokenizer.pad


# --- models ----------------------------------------------------------------------------------------------------------


def vocab_size(run: Run, tokenizer: Tokenizer) -> int:
    """The vocabulary of a model; a pretrained one may be larger than that of its tokenizer."""
    return max(tokenizer.size, run.model.vocab if run.start else 0)


def max_vocab(run: Run) -> int:
    """The largest vocabulary that the tokenizer of a run may learn."""
    size: int = run.model.vocab or run.tokenizer.vocab
    return size


def with_model_settings(run: RunType, **settings: object) -> RunType:
    """The run with other settings of its model, validated; settings that its family lacks are refused."""
    for key in settings:
        if key not in type(run.model).model_fields:
            raise UserError(
                f"model.family={run.model.family} has no model.{key}, which task {run.task} needs; "
                "choose another family (`regard list`)"
            )
    return change_settings(run, {"model": settings}, only=("model",))


def with_head(run: RunType, head: str) -> RunType:
    """The run with the model head of this task, if its family has several heads."""
    return with_model_settings(run, head=head) if "head" in type(run.model).model_fields else run


def with_inputs(run: RunType, modalities: Collection[str]) -> RunType:
    """The run whose model reads only these modalities, if its family can read several."""
    selectable = "inputs" in type(run.model).model_fields
    return with_model_settings(run, inputs=sorted(modalities)) if selectable else run


def build_model(run: Run) -> Any:
    """The model of a run, initialized from its seed."""
    torch.manual_seed(run.train.seed)
    return prune_heads(family(run.model.family).Model(run.model), run.pruned_heads)


def group_indices(items: Sequence[T], key: Callable[[T], Hashable]) -> list[list[int]]:
    """The indices of items with equal keys, in the order of their first item."""
    groups: dict[Hashable, list[int]] = {}
    for index, item in enumerate(items):
        groups.setdefault(key(item), []).append(index)
    return list(groups.values())


def view_title(run: Run) -> str:
    """The title of a view of attention."""
    return f"{run.model.family}, {run.task}"
