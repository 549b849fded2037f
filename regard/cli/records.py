"""Lines that ask for something: plain text, or JSON records with the text in a field."""

import json
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from ..errors import UserError

Record = dict[str, Any]


def parse_records(lines: Iterable[str], field: str | None) -> Iterator[tuple[str, Record | None]]:
    """The text of each line, and the record it came in if the first line is one: a JSON object with text in `field`,
    such as {"prompt": "def "}. Then all have to be."""
    lines = iter(lines)
    first = next(lines, None)
    if first is None:
        return
    plain = field is None or _parse_record(first, field) is None
    for number, line in enumerate(chain([first], lines), 1):
        if plain or field is None:
            yield line, None
            continue
        found = _parse_record(line, field)
        if found is None:
            raise UserError(
                f"line {number} is no JSON object with text as {field!r}, and the first line is one: {line[:60]}"
            )
        yield found[field], found


def _parse_record(line: str, field: str) -> Record | None:
    if not line.lstrip().startswith("{"):
        return None
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and isinstance(found.get(field), str) else None
