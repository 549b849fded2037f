"""Opens the tables of a task: TSV, CSV, JSONL, JSON arrays, Parquet and Arrow files, and data in memory."""

import csv
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from ...config.data.base import TableData
from ...errors import UserError
from ..files.in_memory import InMemory
from ..files.open import (
    ARCHIVE_ERRORS,
    BOM,
    UTF_16,
    archive_error,
    matching_files,
    open_decompressed,
    plain_suffix,
    text_error,
)
from .columns import Choice, ColumnRule, Role
from .in_memory_table import memory_table
from .line_table import JsonParser, LineTable, TsvParser
from .records import ColumnTable, Concatenated, Table, record_cells, record_names

SUFFIXES = {".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json"}
SUFFIXES |= {".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow", ".feather": "arrow"}
DELIMITERS = ",;\t|"
NEWLINE = re.compile(r"[\r\n]")
HEAD = 1 << 20  # characters in which the first row of a CSV file ends

csv.field_size_limit(sys.maxsize)  # a text may be long


def column_rule(data: TableData, roles: tuple[Role, ...], required: int = 0, references: bool = False) -> ColumnRule:
    """The rule for the columns that a task reads, from its settings."""
    return ColumnRule(roles, data.columns, data.header, getattr(data, "names", ()), required, references)


def file_format(name: str, format: str, default: str) -> str:
    """The format of a file: data.format, else by its suffix, else `default`."""
    if isinstance(name, InMemory):
        return "memory"
    if format != "auto":
        return format
    return SUFFIXES.get(plain_suffix(name), default)


def open_table(patterns: Sequence[str], rule: ColumnRule, format: str, invalid: str, default: str = "tsv") -> Table:
    """The table in these files, one after the other. `format` is data.format; `default` is for unknown suffixes."""
    names = [path for pattern in patterns for path in _matches(pattern)]
    tables: list[Table] = []
    for content, group in groupby(names, lambda name: _content(name, file_format(name, format, default))):
        some = list(group)
        if content in ("tsv", "jsonl"):
            parser = TsvParser(rule) if content == "tsv" else JsonParser(rule)
            tables.append(LineTable(some, parser, invalid))
        elif content == "memory":
            tables += [memory_table(name.data, name, rule, invalid) for name in some if isinstance(name, InMemory)]
        else:
            tables += [READERS[content](Path(name), rule, invalid) for name in some]
    return tables[0] if len(tables) == 1 else Concatenated(tables)


def _content(name: str, format: str) -> str:
    """The format; a JSON file without an array has an object on every line."""
    return "jsonl" if format == "json" and not is_json_array(Path(name)) else format


def _matches(pattern: str) -> list[str]:
    return [pattern] if isinstance(pattern, InMemory) else [str(path) for path in matching_files(pattern)]


# --- CSV -------------------------------------------------------------------------------------------------------------


def read_csv(path: Path, rule: ColumnRule, invalid: str) -> ColumnTable:
    """A CSV file. Quoted cells may contain newlines, so it is parsed whole, not line by line."""
    rows = list(_csv_rows(path, _read_text(path, invalid)))
    first = next((number for number, (_, cells) in enumerate(rows) if any(map(str.strip, cells))), len(rows))
    line, cells = rows[first] if first < len(rows) else (1, [])
    choice = _csv_choice(f"{path}:{line}", cells, rule)
    rows = rows[first + 1 :] if choice.header else rows
    width = len(choice.names)
    rows = [(line, cells) for line, cells in rows if width == 1 or len(cells) > 1 or cells[0].strip()]

    def row(index: int) -> list[object]:
        cells = rows[index][1]
        if len(cells) != width:
            raise ValueError(f"{len(cells)} cells, and the {'header' if choice.header else 'first line'} has {width}")
        return [None if index is None else cells[index] for index in choice.indices]

    place = lambda index: f"{path}:{rows[index][0]}"  # noqa: E731
    record = lambda index: dict[str, object](zip(choice.names, rows[index][1], strict=False))  # noqa: E731
    return ColumnTable(str(path), len(rows), row, place, rule, choice, invalid, record)


def _csv_choice(where: str, cells: list[str], rule: ColumnRule) -> Choice:
    """The columns that are read, from the first row."""
    try:
        header = rule.is_header(cells) if cells else True
        if header is None:
            raise UserError(
                f"the first line, {', '.join(cells):.80}, has no known column name; set data.columns to the names or "
                f"numbers of {' and '.join(rule.words[: rule.needed])}, and data.header=no if it is no header"
            )
        return rule.by_name([cell.strip() for cell in cells]) if header else rule.by_number(len(cells))
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
    except ValueError as error:
        raise UserError(f"{where}: {error}; separate the cells by commas, semicolons, tabs or bars") from error


def _delimiter(text: str) -> str:
    """The delimiter of the first row: a comma, unless another delimiter is more frequent."""
    head = text[:HEAD].lstrip("\r\n ")
    counts = Counter[str]()
    for outside in head.split('"')[::2]:  # of quotes
        line, *after = NEWLINE.split(outside, maxsplit=1)
        counts.update(line)
        if after:
            break
    if not any(counts[delimiter] for delimiter in DELIMITERS):
        counts.update(NEWLINE.split(head, maxsplit=1)[0])  # the quotes belong to the text
    return max(DELIMITERS, key=lambda delimiter: counts[delimiter])


def _csv_rows(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    """The first line of each row, with its cells; blank lines are no rows."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=_delimiter(text))
    line = 1
    try:
        for cells in reader:
            if cells:
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}:{line}: this is not CSV ({error}); check its quotes") from error


def _read_text(path: Path, invalid: str) -> str:
    """The text of a file. With data.invalid=skip, invalid bytes stay in their records, which are left out later."""
    try:
        with open_decompressed(path) as file:
            data = file.read()
    except ARCHIVE_ERRORS as error:
        raise archive_error(path, error) from error
    if text_error(data) and (invalid != "skip" or data.startswith(UTF_16)):
        errors = ((number, text_error(line)) for number, line in enumerate(data.split(b"\n"), 1))
        number, problem = next((number, problem) for number, problem in errors if problem)
        raise UserError(f"{path}:{number}: {problem}; convert the file, for instance with iconv")
    return data.decode("utf-8-sig", "surrogateescape")


# --- JSON arrays -----------------------------------------------------------------------------------------------------


def is_json_array(path: Path) -> bool:
    """True if a JSON file holds one array."""
    with open_decompressed(path) as file:
        try:
            return file.read(1 << 12).removeprefix(BOM).lstrip().startswith(b"[")
        except ARCHIVE_ERRORS as error:
            raise archive_error(path, error) from error


def read_json_array(path: Path, rule: ColumnRule, invalid: str) -> ColumnTable:
    """A JSON file with one array of objects."""
    text = _read_text(path, invalid)
    records, lines = _json_items(path, text)
    first = next((record for record in records if isinstance(record, dict)), {})
    choice = _record_choice(f"{path}:{lines[0]}", first, rule) if records else None

    def cells(index: int) -> list[object]:
        record = records[index]
        if not isinstance(record, dict) or choice is None:
            raise ValueError(f"not a JSON object but {json.dumps(record):.40}")
        return record_cells(record, choice, rule)

    place = lambda index: f"{path}:{lines[index]}"  # noqa: E731
    record = lambda index: records[index] if isinstance(records[index], dict) else {}  # noqa: E731
    return ColumnTable(str(path), len(records), cells, place, rule, choice, invalid, record)


def _record_choice(where: str, record: dict[str, object], rule: ColumnRule) -> Choice:
    try:
        return rule.by_name(record_names(record))
    except UserError as error:
        raise UserError(f"{where}: {error}") from error


def _json_items(path: Path, text: str) -> tuple[list[Any], list[int]]:
    """The items of the array and the lines where they begin."""
    decoder, items, lines = json.JSONDecoder(), list[Any](), list[int]()
    place, line, counted = text.index("[") + 1, 1, 0
    try:
        while True:
            place = _skip_spaces(text, place)
            if not items and text[place : place + 1] == "]":
                place += 1
                break
            line, counted = line + text.count("\n", counted, place), place
            item, place = decoder.raw_decode(text, place)
            items.append(item)
            lines.append(line)
            place = _skip_spaces(text, place) + 1
            if text[place - 1 : place] == "]":
                break
            if text[place - 1 : place] != ",":
                raise json.JSONDecodeError("expected a comma or ]", text, place - 1)
        if text[_skip_spaces(text, place) :]:
            raise json.JSONDecodeError("text after the array", text, place)
    except (ValueError, RecursionError) as error:
        number = text.count("\n", 0, getattr(error, "pos", counted)) + 1
        raise UserError(f"{path}:{number}: not valid JSON ({error}); correct it, or create the file again") from error
    return items, lines


def _skip_spaces(text: str, place: int) -> int:
    while text[place : place + 1] in (" ", "\n", "\t", "\r"):
        place += 1
    return place


# --- Parquet and Arrow -----------------------------------------------------------------------------------------------


def read_arrow(path: Path, rule: ColumnRule, invalid: str) -> Table:
    """A Parquet or Arrow file, in Arrow's own memory."""
    from .arrow import read_arrow_file

    return memory_table(read_arrow_file(path), str(path), rule, invalid)


READERS: dict[str, Callable[[Path, ColumnRule, str], Table]] = {
    "csv": read_csv,
    "json": read_json_array,
    "parquet": read_arrow,
    "arrow": read_arrow,
}
