"""Opens the tables of a task: TSV, CSV, JSONL, JSON arrays, Parquet and Arrow files, and data in memory."""

import csv
import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from ..config.schema import TableData
from ..errors import UserError
from .columns import Choice, ColumnRule, Role
from .line_table import JsonParser, LineTable, TsvParser
from .memory import InMemory
from .memory_table import memory_table
from .open_file import ARCHIVE_ERRORS, archive_error, matching_files, open_decompressed, plain_suffix, text_error
from .tables import (
    SKIP_HINT,
    ColumnTable,
    Concatenated,
    Table,
    record_cells,
    record_names,
)

SUFFIXES = {".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json"}
SUFFIXES |= {".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow", ".feather": "arrow"}
DELIMITERS = ",;\t|"

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
    for kind, group in groupby(names, lambda name: file_format(name, format, default)):
        some = list(group)
        if kind == "json" and not all(_is_array(Path(name)) for name in some):
            kind = "jsonl"
        if kind in ("tsv", "jsonl"):
            parser = TsvParser(rule) if kind == "tsv" else JsonParser(rule)
            tables.append(LineTable(some, parser, invalid))
        elif kind == "memory":
            tables += [memory_table(name.data, name, rule, invalid) for name in some if isinstance(name, InMemory)]
        else:
            tables += [READERS[kind](Path(name), rule, invalid) for name in some]
    return tables[0] if len(tables) == 1 else Concatenated(tables)


def _matches(pattern: str) -> list[str]:
    return [pattern] if isinstance(pattern, InMemory) else [str(path) for path in matching_files(pattern)]


# --- CSV -------------------------------------------------------------------------------------------------------------


def read_csv(path: Path, rule: ColumnRule, invalid: str) -> ColumnTable:
    """A CSV file. Quoted cells may contain newlines, so it is parsed whole, not line by line."""
    text = _read_text(path)
    first = next((line for line in text.splitlines() if line.strip()), "")
    rows = _csv_rows(path, text, _delimiter(first))
    names = next((cells for _, cells in rows), [])
    header = rule.is_header(names) if names else True
    if header is None:
        raise UserError(
            f"{path}:1: the first line, {', '.join(names):.80}, has no known column name; set data.columns to the "
            f"names or numbers of {' and '.join(rule.words[: rule.needed])}, and data.header=no if it is no header"
        )
    choice = _located(path, lambda: rule.by_name([name.strip() for name in names])) if header else None
    kept: list[list[object] | None] = []
    lines: list[int] = []
    for line, cells in rows if header else _csv_rows(path, text, _delimiter(first)):
        if choice is None:
            choice = _located(path, lambda: rule.by_number(len(cells)))  # noqa: B023 (called at once)
        cut = _csv_cells(cells, choice)
        if cut is None and invalid != "skip":
            raise UserError(f"{path}:{line}: {len(cells)} cells, and the header has {len(choice.names)}; {SKIP_HINT}")
        kept.append(cut)
        lines.append(line)
    return ColumnTable(
        str(path), len(kept), _checked(kept), lambda index: f"{path}:{lines[index]}", rule, choice, invalid
    )


def _checked(kept: Sequence[list[object] | None]) -> Callable[[int], list[object]]:
    def cells(index: int) -> list[object]:
        row = kept[index]
        if row is None:
            raise ValueError("another number of cells than the header has")
        return row

    return cells


def _csv_cells(cells: list[str], choice: Choice) -> list[object] | None:
    if len(cells) != len(choice.names):
        return None
    return [None if index is None else cells[index] for index in choice.indices]


def _delimiter(line: str) -> str:
    """The character that separates the cells of the first line: a comma, unless there are more of another."""
    outside = "".join(line.split('"')[::2])
    return max(DELIMITERS, key=outside.count)


def _csv_rows(path: Path, text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The first line of each row, with its cells; blank lines are no rows."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=delimiter)
    line = 1
    try:
        for cells in reader:
            if cells:
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}:{line}: this is not CSV ({error}); check its quotes") from error


def _located(path: Path, choose: Callable[[], Choice]) -> Choice:
    """What `choose` returns; its errors name the file."""
    try:
        return choose()
    except (UserError, ValueError) as error:
        raise UserError(f"{path}:1: {error}") from error


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


# --- JSON arrays -----------------------------------------------------------------------------------------------------


def _is_array(path: Path) -> bool:
    """True if a JSON file holds one array; else it has an object on every line."""
    with open_decompressed(path) as file:
        try:
            return file.read(1 << 12).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")
        except ARCHIVE_ERRORS as error:
            raise archive_error(path, error) from error


def read_json_array(path: Path, rule: ColumnRule, invalid: str) -> ColumnTable:
    """A JSON file with one array of objects."""
    text = _read_text(path)
    records, lines = _json_items(path, text)
    first = next((record for record in records if isinstance(record, dict)), {})
    choice = _located(path, lambda: rule.by_name(record_names(first))) if records else None

    def cells(index: int) -> list[object]:
        record = records[index]
        if not isinstance(record, dict) or choice is None:
            raise ValueError(f"not a JSON object but {json.dumps(record):.40}")
        return record_cells(record, choice, rule)

    return ColumnTable(str(path), len(records), cells, lambda index: f"{path}:{lines[index]}", rule, choice, invalid)


def _json_items(path: Path, text: str) -> tuple[list[Any], list[int]]:
    """The items of the array and the lines where they begin."""
    decoder, items, lines = json.JSONDecoder(), list[Any](), list[int]()
    place, line, seen = text.index("[") + 1, 1, 0
    try:
        while True:
            place = _skip_spaces(text, place)
            if not items and text[place : place + 1] == "]":
                break
            line, seen = line + text.count("\n", seen, place), place
            item, place = decoder.raw_decode(text, place)
            items.append(item)
            lines.append(line)
            place = _skip_spaces(text, place) + 1
            if text[place - 1 : place] == "]":
                break
            if text[place - 1 : place] != ",":
                raise json.JSONDecodeError("expected a comma or ]", text, place - 1)
        if text[place:].strip("]\n\r\t "):
            raise json.JSONDecodeError("text after the array", text, place)
    except (json.JSONDecodeError, RecursionError) as error:
        number = text.count("\n", 0, getattr(error, "pos", seen)) + 1
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
