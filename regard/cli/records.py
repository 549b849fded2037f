"""Input lines of the command line: plain text, or JSON records with the text in a field."""

import json
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, TypeAlias

from ..errors import UserError

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


def _parse_record(line: str, field: str) -> Record | None:
    if not line.lstrip().startswith("{"):
        return None
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get(field), str) else None
