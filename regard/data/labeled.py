"""Texts with labels, from TSV, CSV or JSONL, and the labels themselves, which a run learns and keeps."""

import csv
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import files
from ..config.schema import LabelData
from ..errors import UserError
from ..synthetic.dates import InMemoryExamples
from .examples import Examples
from .readers import (
    BROKEN,
    HEADER,
    UNPACKERS,
    ColumnSplitter,
    PairExamples,
    TextLines,
    broken,
    matching_files,
    named_kind,
    open_text,
    wrong,
)

MOST = 1000  # labels; with more it is likelier that the columns are swapped
ROLES = ("text", "label")

csv.field_size_limit(sys.maxsize)  # a text may be long


def labeled_texts(sides: Sequence[Sequence[str]], data: LabelData) -> Examples:
    """The examples in these files, each a text and its label."""
    if len(sides) != 1:
        raise UserError(
            f"texts and labels stand in one file, and {len(sides)} were given with a comma between; "
            "join several files by a glob or a TOML list"
        )
    kinds = {".csv": "csv", ".jsonl": "jsonl", ".json": "jsonl"}
    format = named_kind(sides[0][0], kinds, "tsv") if data.format == "auto" else data.format
    if format == "csv":
        return CsvExamples([path for pattern in sides[0] for path in matching_files(pattern)], data)
    table = LabelColumns(format, data.columns)
    return PairExamples([TextLines(sides[0], data.invalid, table.check)], table)


def roles(columns: Sequence[str]) -> tuple[tuple[str, str], bool]:
    """The columns of text and label, and whether `columns` only says in which order these two words stand there."""
    if not columns:
        return ROLES, True
    if set(ROLES) <= set(columns):
        return ROLES, True
    if len(columns) != 2:
        raise UserError(
            f"data.columns={','.join(columns)} is not clear; expected two, the text's and the label's, by number or by "
            "name, or the words text and label in the order of the columns, such as label,text"
        )
    return (columns[0], columns[1]), False


class LabelColumns(ColumnSplitter):
    """How a line of TSV or JSONL splits into a text and its label."""

    def __init__(self, format: str, columns: Sequence[str]) -> None:
        chosen, ordered = roles(columns)
        order = list(columns) or list(ROLES)
        self.order = [order.index(role) for role in ROLES] if ordered and format == "tsv" else None
        super().__init__(format, [str(place + 1) for place in self.order] if self.order else chosen, references=False)

    def check(self, file: int, line: int, text: str) -> int:
        if file not in self._places and self.order and set(ROLES) <= set(text.split("\t")):
            self._places[file] = [text.split("\t").index(role) for role in ROLES]
            return HEADER
        return super().check(file, line, text)

    def split(self, file: int, text: str) -> tuple[str, str]:
        read, label = super().split(file, text)
        return read, label.strip()

    def value(self, record: Mapping[str, Any], column: str) -> Any:
        """A label may be a number."""
        value = record.get(column)
        return json.dumps(value) if column == self.columns[1] and isinstance(value, int | float) else value


class CsvExamples(InMemoryExamples):
    """The rows of CSV files. They may hold line ends inside quotes, so they are read at once, not line by line."""

    def __init__(self, paths: Sequence[Path], data: LabelData) -> None:
        self.columns, _ = roles(data.columns)
        self.places: list[str] = []
        counts = Counter[str]()
        examples = []
        for path in paths:
            for line, cells in self._rows(path):
                if isinstance(cells, str) and data.invalid == "skip":
                    counts["invalid"] += 1
                elif isinstance(cells, str):
                    hint = "put it right, or set data.invalid=skip to leave such rows out"
                    raise UserError(f"{path}:{line}: {cells}; {hint}")
                elif not all(cell.strip() for cell in cells):
                    counts["empty"] += 1
                else:
                    examples.append((cells[0], cells[1].strip()))
                    self.places.append(f"{path}:{line}")
        super().__init__(", ".join(map(str, paths)), examples)
        self.counts |= counts

    def location(self, index: int) -> str:
        return self.places[index]

    def _rows(self, path: Path) -> Iterator[tuple[int, list[str] | str]]:
        """The line that each row ends at, with its text and label, or with what is wrong with it."""
        reader = csv.reader(io.StringIO(_text(path), newline=""), strict=True)
        try:
            header = [name.strip() for name in next(reader, [])]
            chosen = [_place(path, header, column) for column in self.columns]
            for row in reader:
                if len(row) == len(header):
                    yield reader.line_num, [row[place] for place in chosen]
                elif row:
                    yield reader.line_num, f"{len(row)} cells, and the header has {len(header)}"
        except csv.Error as error:
            raise UserError(f"{path}:{reader.line_num}: this is no CSV ({error}); look at its quotes") from error


def _place(path: Path, header: list[str], column: str) -> int:
    """Of a column by its name, or by its number from 1."""
    if column in header:
        return header.index(column)
    if column.isdecimal() and 1 <= int(column) <= len(header):
        return int(column) - 1
    raise UserError(
        f"{path}:1: the header has no column {column!r}, it has {', '.join(header) or 'nothing'}; name the text's and "
        "the label's, such as data.columns=review,stars"
    )


def _text(path: Path) -> str:
    try:
        with UNPACKERS.get(path.suffix.lower(), open_text)(path) as file:
            data = file.read()
    except BROKEN as error:
        raise broken(path, error) from error
    if wrong(data):
        number, problem = next((i, told) for i, line in enumerate(data.split(b"\n"), 1) if (told := wrong(line)))
        raise UserError(f"{path}:{number}: {problem}; convert the file, for instance with iconv")
    return str(data.decode("utf-8-sig"))


class LabelSet:
    """The labels of a run, in the order of their numbers, with how often training data have each (0 where nobody
    knows); `save` and `load` keep them beside the weights."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self.counts = dict(counts)
        self.names = list(self.counts)
        self.numbers = {name: number for number, name in enumerate(self.names)}

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    @property
    def majority(self) -> str:
        """The most frequent one: what to say without looking."""
        return max(self.names, key=lambda name: self.counts[name])

    @property
    def spans(self) -> bool:
        """Do they say where spans begin and go on, as B-PER, I-PER and O do?"""
        return all(name == "O" or re.match(r"[BIES]-.", name) for name in self.names) and self.names != ["O"]

    def save(self, path: Path) -> None:
        files.write_json(path, {"labels": self.counts})

    @staticmethod
    def load(path: Path) -> "LabelSet":
        try:
            return LabelSet({name: int(count) for name, count in dict(files.read_json(path)["labels"]).items()})
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path} cannot be read ({error}); it belongs to the run, restore it") from error

    def refuse_unseen(self, examples: Examples, key: str) -> None:
        """A label of valid data that training data have not: nobody could ever say it."""
        for place in range(len(examples)):
            right = examples[place][1]
            for label in (right,) if isinstance(right, str) else right:
                if label not in self.numbers:
                    raise UserError(
                        f"{key}: {examples.location(place)} has the label {_short(label)}, which data.train never has; "
                        f"expected {_some(self.names)}. Put it right, or set data.invalid=skip to leave it out"
                    )


def _some(names: list[str]) -> str:
    return ", ".join(names[:12]) + (f" or another of {len(names)}" if len(names) > 12 else "")


def in_order(counts: Mapping[str, int]) -> LabelSet:
    """By the alphabet, numbers as numbers: the same data give every label the same number."""
    return LabelSet({name: counts[name] for name in sorted(counts, key=_natural)})


def _natural(name: str) -> tuple[bool, int, str]:
    return (not name.isdecimal(), int(name) if name.isdecimal() else 0, name)


def collect_labels(examples: Examples) -> LabelSet:
    """The labels of training texts; what can hardly be labels is refused."""
    labels = in_order(Counter(examples.text(i, 1) for i in range(len(examples))))
    swap = "set data.columns, for instance data.columns=label,text where the label stands first"
    if len(labels) == len(examples) > 1 or len(labels) > MOST:
        many = f"{len(labels):,} labels in {len(examples):,} lines"
        raise UserError(
            f"data.train: {examples.name} has {many}, such as {_short(labels.names[-1])}: perhaps the columns are "
            f"swapped; {swap}"
        )
    if len(labels) == 1:
        every = f"every label of {examples.name} is {_short(labels.names[0])}"
        raise UserError(f"data.train: {every}, and at least two are needed; {swap}")
    return labels


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}…")
