"""The label set of a run, collected from training data, and the processors of labels and tags."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError
from ..parts.inputs import Inputs, TensorKind
from .base import IGNORED, Array, Rng, pad_arrays, read_saved, to_array, write_saved
from .text.processor import TextProcessor, encode_words
from .text.tokenizers import Tokenizer, load_tokenizer

MAX_LABELS = 1000  # with more labels, and fewer than two texts per label, the columns are probably swapped
SHOWN_LABELS, SHOWN_CHARACTERS = 12, 60  # in error messages


class LabeledSource(Protocol):
    """Examples whose second field is a label, or a sequence of labels."""

    name: str

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> tuple[Any, ...]: ...
    def field(self, index: int, field: int) -> Any: ...
    def text(self, index: int, field: int) -> str: ...
    def location(self, index: int) -> str: ...


class LabelSet:
    """The labels in the order of their ids, each with its count in training data (0 if unknown)."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self.counts = dict(counts)
        self.names = list(self.counts)
        self.ids = {name: number for number, name in enumerate(self.names)}

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    @property
    def majority(self) -> str:
        """The most frequent label: the prediction of a baseline that ignores its input."""
        return max(self.names, key=lambda name: self.counts[name])

    @property
    def listed(self) -> str:
        """The first labels, for messages."""
        return _list_names(self.names)

    @property
    def spans(self) -> bool:
        """True if the labels encode spans, as B-PER, I-PER and O do."""
        return all(name == "O" or re.match(r"[BIES]-.", name) for name in self.names) and self.names != ["O"]

    def in_order_of(self, other: "LabelSet") -> "LabelSet":
        """These labels with the ids of `other`, if both have the same labels; else this set."""
        return LabelSet({name: self.counts[name] for name in other}) if self.ids.keys() == other.ids.keys() else self

    def require_known(self, examples: LabeledSource, key: str) -> None:
        """Raise if a label of `examples` is not in this set: no prediction could match it."""
        for index in range(len(examples)):
            target = examples.field(index, 1)
            for label in (target,) if isinstance(target, str) else target:
                if label not in self.ids:
                    raise UserError(
                        f"{key}: {examples.location(index)} has the label {_quote(label)}, which data.train never has; "
                        f"expected {_list_names(self.names)}. Correct it, or set data.invalid=skip to leave it out"
                    )


def _read_labels(path: Path, kind: str, version: int) -> LabelSet:
    saved = read_saved(path, kind, version)
    try:
        return LabelSet({name: int(count) for name, count in dict(saved["labels"]).items()})
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); it belongs to the run, restore it") from error


# --- processors ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelProcessor:
    """The label of an example, or the labels of its parts, such as of its boxes."""

    labels: LabelSet
    kind: ClassVar[str] = "labels"
    version: ClassVar[int] = 1
    file: ClassVar[str] = "labels.json"

    @property
    def modality(self) -> TensorKind:
        return "labels"

    def encode(self, raw: str | Sequence[str], rng: Rng | None = None) -> Array:
        """The id of a label, (); of several labels, (labels,)."""
        if isinstance(raw, str):
            return np.array(self._id(raw), np.int64)
        return np.array([self._id(name) for name in raw], np.int64)

    def _id(self, name: str) -> int:
        if name not in self.labels.ids:
            raise UserError(f"the label {_quote(name)} is unknown; expected {_list_names(self.labels.names)}")
        return self.labels.ids[name]

    def cost(self, encoded: Array) -> int:
        return max(encoded.size, 1)

    def collate(self, encoded: Sequence[Array]) -> Inputs:
        """(batch,), or of several labels per example (batch, labels) with IGNORED as padding."""
        if encoded[0].ndim:
            return Inputs("labels", *pad_arrays(encoded, IGNORED))
        return Inputs("labels", torch.from_numpy(np.stack(encoded)))

    def decode(self, values: int | Sequence[int] | Array | Tensor) -> str | list[str]:
        ids = to_array(values)
        if not ids.ndim:
            return self.labels.names[int(ids)]
        return [self.labels.names[number] for number in ids.tolist() if number != IGNORED]

    def save(self, path: Path) -> None:
        write_saved(path, self.kind, self.version, {"labels": self.labels.counts})

    @classmethod
    def load(cls, path: Path) -> Self:
        return cls(_read_labels(path, cls.kind, cls.version))


class TagProcessor:
    """The tags of the words of a sentence, each at the first token of its word between START and END.

    It needs the tokenizer of the words, which it reads lazily from the file of the run's text processor.
    """

    kind: ClassVar[str] = "tags"
    version: ClassVar[int] = 1
    file: ClassVar[str] = "labels.json"

    def __init__(self, labels: LabelSet, tokenizer: Tokenizer | Path) -> None:
        self.labels, self._tokenizer = labels, tokenizer

    @cached_property
    def tokenizer(self) -> Tokenizer:
        if not isinstance(self._tokenizer, Path):
            return self._tokenizer
        tokenizer: Tokenizer = load_tokenizer(self._tokenizer)
        return tokenizer

    @property
    def modality(self) -> TensorKind:
        return "labels"

    def encode(self, raw: tuple[Sequence[str], Sequence[str]], rng: Rng | None = None) -> Array:
        """A label for every token of (words, tags): (tokens + 2,), IGNORED where nothing is scored."""
        words, tags = raw
        if len(words) != len(tags):
            raise UserError(f"there are {len(words)} words and {len(tags)} tags; each word needs its tag")
        ids = LabelProcessor(self.labels).encode(tags)
        sizes = np.array([1, *(len(tokens) for tokens in encode_words(self.tokenizer, [words])[0])])
        labels = np.full(int(sizes.sum()) + 1, IGNORED, np.int64)
        labels[sizes.cumsum()[:-1]] = ids
        return labels

    def cost(self, encoded: Array) -> int:
        return len(encoded)

    def collate(self, encoded: Sequence[Array]) -> Inputs:
        return Inputs("labels", *pad_arrays(encoded, IGNORED))

    def decode(self, values: Sequence[int] | Array | Tensor) -> list[str]:
        """The tags of the words, without the other positions."""
        return [self.labels.names[number] for number in to_array(values).tolist() if number != IGNORED]

    def save(self, path: Path) -> None:
        write_saved(path, self.kind, self.version, {"labels": self.labels.counts})

    @classmethod
    def load(cls, path: Path) -> Self:
        return cls(_read_labels(path, cls.kind, cls.version), path.with_name(TextProcessor.file))


# --- label sets of data ----------------------------------------------------------------------------------------------


def _list_names(names: Sequence[str]) -> str:
    more = f" or another of {len(names)}" if len(names) > SHOWN_LABELS else ""
    return ", ".join(names[:SHOWN_LABELS]) + more


def sorted_labels(counts: Mapping[str, int]) -> LabelSet:
    """Labels in alphabetical order, numbers in numerical order, so that ids depend only on the set of labels."""
    return LabelSet({name: counts[name] for name in sorted(counts, key=_natural_key)})


def _natural_key(name: str) -> tuple[bool, int, str]:
    return (not name.isdecimal(), int(name) if name.isdecimal() else 0, name)


def collect_labels(examples: LabeledSource, remedy: str = "") -> LabelSet:
    """The labels of training examples. Columns that look swapped, and a single label, are errors.

    `remedy` ends the error for a single label, for data whose columns cannot be swapped. By default the examples are
    texts.
    """
    labels = sorted_labels(Counter(examples.text(i, 1) for i in range(len(examples))))
    swap = remedy or "set data.columns, for instance data.columns=label,text if the label comes first"
    swapped = len(labels) > MAX_LABELS and 2 * len(labels) > len(examples)
    if not remedy and (len(labels) == len(examples) > 1 or swapped):
        many = f"{len(labels):,} labels in {len(examples):,} lines"
        raise UserError(
            f"data.train: {examples.name} has {many}, such as {_quote(labels.names[-1])}: perhaps the columns are "
            f"swapped; {swap}"
        )
    if len(labels) == 1:
        every = f"every label of {examples.name} is {_quote(labels.names[0])}"
        raise UserError(f"data.train: {every}, expected at least two; {swap}")
    return labels


def collect_label_sets(examples: LabeledSource) -> LabelSet:
    """The labels of multi-label training examples."""
    counts = Counter(label for i in range(len(examples)) for label in examples.field(i, 1))
    if not counts:
        raise UserError(
            f"data.train: no example of {examples.name} has a label; choose the column that holds the labels "
            "(data.columns)"
        )
    return sorted_labels(counts)


def collect_tags(sentences: LabeledSource) -> LabelSet:
    """The tags of training sentences."""
    counts = Counter(tag for i in range(len(sentences)) for tag in sentences[i][1])
    if len(counts) == 1:
        raise UserError(
            f"data.train: every tag of {sentences.name} is {next(iter(counts))!r}, expected at least two; "
            "choose the column that holds the tags (data.column)"
        )
    return sorted_labels(counts)


def _quote(text: str) -> str:
    return repr(text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 3]}…")
