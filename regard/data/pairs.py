"""Pairs of source and target from parallel text files, TSV or JSONL."""

import hashlib
import json
from collections.abc import Mapping, Sequence

import numpy as np

from ..config.schema import PairData
from ..errors import UserError
from .examples import Examples
from .line_index import BLANK, HEADER, INVALID, VALID
from .text_lines import TextLines, format_by_suffix, text_error


def open_pairs(sides: Sequence[Sequence[str]], data: PairData, references: bool = False) -> "PairExamples":
    """The examples in these files. With `references`, `data.columns` after the second hold further references."""
    if not sides or not all(sides):
        raise UserError("no data file is named; give two sides such as data.train=train.en,train.de")
    formats = {".tsv": "tsv", ".jsonl": "jsonl", ".json": "jsonl"}
    format = format_by_suffix(sides[0][0], formats, "text") if data.format == "auto" else data.format
    if format == "text":
        if len(sides) != 2:
            raise UserError(
                f"text data need two sides, source and target, not {len(sides)} ({sides[0][0]} …); separate them by "
                "a comma, as in data.train=a,b, or give one .tsv or .jsonl file (data.format)"
            )
        return PairExamples([TextLines(side, data.invalid) for side in sides])
    if len(sides) != 1:
        raise UserError(
            f"{format} data hold both sides in one file, and {len(sides)} sides were given; join several files by a "
            "glob or a TOML list, or set data.format=text"
        )
    splitter = ColumnSplitter(format, data.columns, references)
    return PairExamples([TextLines(sides[0], data.invalid, splitter.check, check_name=splitter.name)], splitter)


def split_references(text: str) -> list[str]:
    """The references in a target of evaluation data, where tabs separate them."""
    return [one for one in text.split("\t") if one.strip()] or [""]


def parse_object(line: str, example: str) -> dict[str, object]:
    """The JSON object on a line. A ValueError says what is wrong and shows `example`."""
    try:
        record = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"not one JSON object on one line ({error})") from error
    if not isinstance(record, dict):
        raise ValueError(f"not a JSON object such as {example}")
    return record


class PairExamples(Examples):
    """Examples read from files: one `TextLines` per side, or one that a `ColumnSplitter` splits into sides."""

    def __init__(self, lines: Sequence[TextLines], splitter: "ColumnSplitter | None" = None) -> None:
        self.lines, self.splitter = lines, splitter
        self.name = ", ".join(side.name for side in lines)
        first = lines[0]
        for other in lines[1:]:
            if len(other) != len(first):
                raise UserError(
                    f"the sides of the data differ in length: {first.name} has {len(first):,} lines and {other.name} "
                    f"has {len(other):,}; line i of one must belong to line i of the other"
                )
        statuses = np.stack([side.statuses() for side in lines])
        invalid, header = (statuses == INVALID).any(0), (statuses == HEADER).any(0)
        empty = (statuses == BLANK).any(0) & ~invalid
        valid = ~(invalid | header | empty)
        self.line_numbers: Sequence[int] | np.ndarray = range(len(first))
        if not valid.all():
            self.line_numbers = np.flatnonzero(valid).astype(np.int32 if len(first) < 2**31 else np.int64)
        for side in lines:
            side.release_statuses()
        self.counts = {"examples": len(self.line_numbers), "empty": int(empty.sum()), "invalid": int(invalid.sum())}
        self.counts |= {key: sum(side.counts[key] for side in lines) for key in ("crlf", "bom")}

    def __len__(self) -> int:
        return len(self.line_numbers)

    def item(self, index: int) -> tuple[str, ...]:
        if self.splitter:
            line = int(self.line_numbers[index])
            return self.splitter.split(self.lines[0].locate(line)[0], self.lines[0][line])
        return tuple(self.text(index, side) for side in range(len(self.lines)))

    def text(self, index: int, side: int) -> str:
        return self.item(index)[side] if self.splitter else self.lines[side][int(self.line_numbers[index])]

    def location(self, index: int) -> str:
        return ", ".join(side.location(int(self.line_numbers[index])) for side in self.lines)

    def fingerprint(self) -> str:
        parts = [self.splitter.name.encode() if self.splitter else b"text", *(side.digest() for side in self.lines)]
        return hashlib.blake2b(b"\0".join([b"%d" % len(self), *parts]), digest_size=16).hexdigest()


class ColumnSplitter:
    """Splits a line of TSV or JSONL into the sides of an example."""

    def __init__(self, format: str, columns: Sequence[str], references: bool) -> None:
        self.json = format == "jsonl"
        self.columns = tuple(columns) or (("source", "target") if self.json else ("1", "2"))
        if len(self.columns) < 2:
            raise UserError(f"data.columns={','.join(columns)} names one column, expected two: source, target")
        if not references:
            self.columns = self.columns[:2]  # the others are further references, for evaluation only
        self.has_header = not self.json and not all(column.isdecimal() for column in self.columns)
        self._numbers = [] if self.json or self.has_header else [int(column) - 1 for column in self.columns]
        if -1 in self._numbers:
            raise UserError(f"data.columns={','.join(columns)} holds 0; columns are counted from 1")
        self.name = f"{format} {self.columns}"  # part of the fingerprint
        self._column_indices: dict[int, list[int]] = {}  # per file

    def check(self, file: int, line: int, text: str) -> int:
        """The status of a line."""
        if file not in self._column_indices:
            self._column_indices[file] = self._read_header(text) if self.has_header else self._numbers
            if self.has_header:
                return HEADER
        if not text.strip():
            return BLANK
        return VALID if all(side.strip() for side in self.split(file, text)) else BLANK

    def _read_header(self, text: str) -> list[int]:
        names = text.split("\t")
        for column in self.columns:
            if column not in names:
                raise UserError(
                    f"the header has no column {column!r} (data.columns), it has {', '.join(names)}; "
                    "name one of these, or a number"
                )
        return [names.index(column) for column in self.columns]

    def split(self, file: int, text: str) -> tuple[str, str]:
        cells = self._parse_json(text) if self.json else self._cells(text.split("\t"), self._column_indices[file])
        return cells[0], "\t".join(cell for cell in cells[1:] if cell.strip())

    def _cells(self, cells: list[str], indices: list[int]) -> list[str]:
        if len(cells) <= max(indices[:2]):
            raise ValueError(f"{len(cells)} columns, expected at least {max(indices[:2]) + 1} (data.columns)")
        return [cells[index] for index in indices if index < len(cells)]

    def value(self, record: Mapping[str, object], column: str) -> object:
        """The value of a column in a JSON object."""
        return record.get(column)

    def _parse_json(self, text: str) -> list[str]:
        record = parse_object(text, "{" + ", ".join(f'"{column}": …' for column in self.columns[:2]) + "}")
        values = [self.value(record, column) for column in self.columns]
        for column, value in zip(self.columns[:2], values, strict=False):
            if not isinstance(value, str):
                raise ValueError(
                    f"no text under {column!r}; there is {', '.join(map(str, record)) or 'nothing'} (data.columns)"
                )
        cells = [value for value in values if isinstance(value, str)]
        if any(text_error(cell.encode("utf-8", "surrogatepass")) for cell in cells):
            raise ValueError("a text with a NUL or half a surrogate pair")
        return cells
