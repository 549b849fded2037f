"""The label set of a run, collected from training data and saved beside the weights."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from .. import files
from ..errors import UserError

MAX_LABELS = 1000  # with more, the columns are probably swapped
SHOWN_LABELS, SHOWN_CHARACTERS = 12, 60  # in error messages


class LabeledExamples(Protocol):
    """Examples whose second side is a label, or a sequence of labels."""

    name: str

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> tuple[Any, ...]: ...
    def text(self, index: int, side: int) -> str: ...
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
    def spans(self) -> bool:
        """True if the labels encode spans, as B-PER, I-PER and O do."""
        return all(name == "O" or re.match(r"[BIES]-.", name) for name in self.names) and self.names != ["O"]

    def save(self, path: Path) -> None:
        files.write_json(path, {"labels": self.counts})

    @staticmethod
    def load(path: Path) -> "LabelSet":
        try:
            return LabelSet({name: int(count) for name, count in dict(files.read_json(path)["labels"]).items()})
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path} cannot be read ({error}); it belongs to the run, restore it") from error

    def require_known(self, examples: LabeledExamples, key: str) -> None:
        """Raise if a label of `examples` is not in this set: no prediction could ever match it."""
        for index in range(len(examples)):
            target = examples[index][1]
            for label in (target,) if isinstance(target, str) else target:
                if label not in self.ids:
                    raise UserError(
                        f"{key}: {examples.location(index)} has the label {_quote(label)}, which data.train never has; "
                        f"expected {_list_names(self.names)}. Correct it, or set data.invalid=skip to leave it out"
                    )


def _list_names(names: Sequence[str]) -> str:
    more = f" or another of {len(names)}" if len(names) > SHOWN_LABELS else ""
    return ", ".join(names[:SHOWN_LABELS]) + more


def sorted_labels(counts: Mapping[str, int]) -> LabelSet:
    """Labels in alphabetical order, numbers in numerical order: the same data give every label the same id."""
    return LabelSet({name: counts[name] for name in sorted(counts, key=_natural_key)})


def _natural_key(name: str) -> tuple[bool, int, str]:
    return (not name.isdecimal(), int(name) if name.isdecimal() else 0, name)


def collect_labels(examples: LabeledExamples) -> LabelSet:
    """The labels of training texts. Columns that look swapped, and a single label, are errors."""
    labels = sorted_labels(Counter(examples.text(i, 1) for i in range(len(examples))))
    swap = "set data.columns, for instance data.columns=label,text if the label comes first"
    if len(labels) == len(examples) > 1 or len(labels) > MAX_LABELS:
        many = f"{len(labels):,} labels in {len(examples):,} lines"
        raise UserError(
            f"data.train: {examples.name} has {many}, such as {_quote(labels.names[-1])}: perhaps the columns are "
            f"swapped; {swap}"
        )
    if len(labels) == 1:
        every = f"every label of {examples.name} is {_quote(labels.names[0])}"
        raise UserError(f"data.train: {every}, expected at least two; {swap}")
    return labels


def collect_tags(sentences: LabeledExamples) -> LabelSet:
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
