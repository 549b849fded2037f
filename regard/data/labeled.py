"""Texts with labels, from TSV, CSV or JSONL."""

import csv
import io
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ..config.schema import LabelData
from ..errors import UserError
from .examples import Examples, InMemoryExamples
from .line_index import HEADER
from .pairs import ColumnSplitter, PairExamples
from .text_lines import (
    ARCHIVE_ERRORS,
    TextLines,
    archive_error,
    format_by_suffix,
    matching_files,
    open_decompressed,
    text_error,
)

ROLES = ("text", "label")

csv.field_size_limit(sys.maxsize)  # a text may be long


def labeled_texts(sides: Sequence[Sequence[str]], data: LabelData) -> Examples:
    """The examples in these files, each a text and its label."""
    if len(sides) != 1:
        raise UserError(
            f"texts and labels are in one file, but {len(sides)} were given, separated by commas; "
            "join several files by a glob or a TOML list"
        )
    formats = {".csv": "csv", ".jsonl": "jsonl", ".json": "jsonl"}
    format = format_by_suffix(sides[0][0], formats, "tsv") if data.format == "auto" else data.format
    if format == "csv":
        return CsvExamples([path for pattern in sides[0] for path in matching_files(pattern)], data)
    splitter = LabelColumns(format, data.columns)
    check = f"labels {splitter.order} {splitter.name}"  # unlike other splitters of the same columns
    return PairExamples([TextLines(sides[0], data.invalid, splitter.check, check_name=check)], splitter)


def text_and_label_columns(columns: Sequence[str]) -> tuple[tuple[str, str], bool]:
    """The columns of text and label, and whether `columns` only gives the order of these two words."""
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
    """Splits a line of TSV or JSONL into a text and its label."""

    def __init__(self, format: str, columns: Sequence[str]) -> None:
        chosen, ordered = text_and_label_columns(columns)
        order = list(columns) or list(ROLES)
        self.order = [order.index(role) for role in ROLES] if ordered and format == "tsv" else None
        super().__init__(format, [str(place + 1) for place in self.order] if self.order else chosen, references=False)

    def check(self, file: int, line: int, text: str) -> int:
        if file not in self._column_indices and self.order and set(ROLES) <= set(text.split("\t")):
            self._column_indices[file] = [text.split("\t").index(role) for role in ROLES]
            return HEADER
        return super().check(file, line, text)

    def split(self, file: int, text: str) -> tuple[str, str]:
        content, label = super().split(file, text)
        return content, label.strip()

    def value(self, record: Mapping[str, object], column: str) -> object:
        """A label may be a number."""
        value = record.get(column)
        return json.dumps(value) if column == self.columns[1] and isinstance(value, int | float) else value


class CsvExamples(InMemoryExamples):
    """The rows of CSV files. Quoted cells may contain newlines, so a file is parsed whole, not line by line."""

    def __init__(self, paths: Sequence[Path], data: LabelData) -> None:
        self.columns, _ = text_and_label_columns(data.columns)
        self.locations: list[str] = []
        counts = Counter[str]()
        examples = []
        for path in paths:
            for line, cells in self._rows(path):
                if isinstance(cells, str) and data.invalid == "skip":
                    counts["invalid"] += 1
                elif isinstance(cells, str):
                    hint = "correct it, or set data.invalid=skip to leave such rows out"
                    raise UserError(f"{path}:{line}: {cells}; {hint}")
                elif not all(cell.strip() for cell in cells):
                    counts["empty"] += 1
                else:
                    examples.append((cells[0], cells[1].strip()))
                    self.locations.append(f"{path}:{line}")
        super().__init__(", ".join(map(str, paths)), examples)
        self.counts |= counts

    def location(self, index: int) -> str:
        return self.locations[index]

    def _rows(self, path: Path) -> Iterator[tuple[int, list[str] | str]]:
        """The last line of each row, with its text and label, or with an error message."""
        reader = csv.reader(io.StringIO(_read_text(path), newline=""), strict=True)
        try:
            header = [name.strip() for name in next(reader, [])]
            chosen = [_column_index(path, header, column) for column in self.columns]
            for row in reader:
                if len(row) == len(header):
                    yield reader.line_num, [row[index] for index in chosen]
                elif row:
                    yield reader.line_num, f"{len(row)} cells, and the header has {len(header)}"
        except csv.Error as error:
            raise UserError(f"{path}:{reader.line_num}: this is not CSV ({error}); check its quotes") from error


def _column_index(path: Path, header: list[str], column: str) -> int:
    """The index of a column given by its name, or by its number from 1."""
    if column in header:
        return header.index(column)
    if column.isdecimal() and 1 <= int(column) <= len(header):
        return int(column) - 1
    raise UserError(
        f"{path}:1: the header has no column {column!r}, it has {', '.join(header) or 'nothing'}; name the text's and "
        "the label's, such as data.columns=review,stars"
    )


def _read_text(path: Path) -> str:
    try:
        with open_decompressed(path) as file:
            data = file.read()
    except ARCHIVE_ERRORS as error:
        raise archive_error(path, error) from error
    if text_error(data):
        errors = ((number, text_error(line)) for number, line in enumerate(data.split(b"\n"), 1))
        number, problem = next((number, problem) for number, problem in errors if problem)
        raise UserError(f"{path}:{number}: {problem}; convert the file, for instance with iconv")
    return data.decode("utf-8-sig")
