"""Input lines of the command line: plain text, or JSON records with the text in a field."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import UserError

if TYPE_CHECKING:
    from ..data.tables.cells import Row
    from ..data.tables.columns import Choice, ColumnRule
    from ..files import JsonMapping

Record: TypeAlias = dict[str, Any]


def parse_records(lines: Iterable[str], field: str | None) -> Iterator[tuple[str, Record | None]]:
    """(text, record) of each line. The record is None for plain text.

    If the first line is a JSON object with text in `field`, such as {"prompt": "def "}, all lines must be.
    """
    lines = iter(lines)
    first = next(lines, None)
    if first is None:
        return
    plain = field is None or _parse_record(first, field) is None
    for number, line in enumerate(chain([first], lines), 1):
        if plain or field is None:
            yield line, None
            continue
        record = _parse_record(line, field)
        if record is None:
            raise UserError(
                f"line {number} is not a JSON object with text in {field!r}, as the first line is: {line[:60]}"
            )
        yield record[field], record


def parse_rows(
    lines: Iterable[str], name: str, rule: "ColumnRule"
) -> Iterator[tuple[str, "Row | None", Record | None]]:
    """(line, fields, record) of each line; the last two are None for plain text.

    If the first line is a JSON object with known columns, all lines must be such objects; their columns are printed.
    """
    from ..data.tables.records import parse_object, record_cells

    choice: Choice | None = None
    for number, line in enumerate(lines, 1):
        try:
            if number == 1:
                choice = _choose_columns(line, rule)
                if choice:
                    print(f"regard: {name}: {rule.describe(choice)}", file=sys.stderr)
            if choice is None:
                yield line, None, None
            elif not line.strip():
                yield line, rule.blank, {}
            else:
                record = parse_object(line, "{" + f'"{choice.names[choice.indices[0] or 0]}": …' + "}")
                yield line, rule.row(record_cells(record, choice, rule)), record
        except (ValueError, UserError) as error:
            raise UserError(
                f"{name}:{number}: {error}; correct it, or read the lines whole with data.format=text"
            ) from error


def _choose_columns(line: str, rule: "ColumnRule") -> "Choice | None":
    """The columns of a JSON object on a line; None if it is something else, or has no known column."""
    from ..data.tables.records import record_names

    record = _parse_object(line)
    names = [] if record is None else record_names(record)
    lower = [name.lower() for name in names]
    matches = (role.find(lower, ()) for role in rule.roles[: rule.needed])
    return rule.by_name(names) if names and (rule.columns or all(matches)) else None


def _parse_record(line: str, field: str) -> Record | None:
    record = _parse_object(line)
    return record if record is not None and isinstance(record.get(field), str) else None


def _parse_object(line: str) -> Record | None:
    if not line.lstrip().startswith("{"):
        return None
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


# --- output ----------------------------------------------------------------------------------------------------------


def merge_record(record: "JsonMapping", result: "JsonMapping") -> Record:
    """The fields of an input record with those of its result; an input field of the same name becomes `input_…`."""
    clashing = {f"input_{name}": record[name] for name in result if name in record}
    return {**record, **result, **clashing}


def plain_record(record: Mapping[str, object]) -> Record:
    """A record of a table as JSON values; dates and others become texts."""
    return {name: _plain(value) for name, value in record.items()}


def _plain(value: object) -> object:
    from ..data.tables.cells import is_missing

    if value is None or is_missing(value):
        return None
    if isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        return plain_record(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value)
