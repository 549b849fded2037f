"""The values of cells: texts, labels, numbers, lists, and media."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeAlias


@dataclass(frozen=True, eq=False)
class MediaValue:
    """A cell that is not text, such as an image; `digest` identifies its content."""

    value: Any
    digest: Callable[[], str]


FieldValue: TypeAlias = str | tuple[str, ...] | MediaValue  # what a task reads of a cell
Row: TypeAlias = tuple[FieldValue, ...]


def is_media(fields: Iterable[str]) -> bool:
    """True for the fields of an image or a sound in a Hugging Face data set, stored or decoded."""
    fields = {*fields}
    return fields == {"bytes", "path"} or {"array", "sampling_rate"} <= fields


def is_missing(cell: object) -> bool:
    """True for None and NaN, the empty cells of frames and JSON."""
    return cell is None or (isinstance(cell, Real) and cell != cell) or type(cell).__name__ in ("NAType", "NaTType")


def text_value(cell: object, names: Sequence[str] = ()) -> str:
    """A text; an empty one for a missing cell."""
    if isinstance(cell, str):
        return cell
    if is_missing(cell):
        return ""
    raise ValueError(_as_text(cell))


def label_value(cell: object, names: Sequence[str] = ()) -> str:
    """A label as text. With `names` (data.names), an integer is the index of one."""
    if isinstance(cell, str):
        number = cell.strip()
        return names[_index(int(number), names)] if names and number.isdecimal() else number
    if is_missing(cell):
        return ""
    cell = cell.item() if hasattr(cell, "item") else cell  # numpy's scalars
    if names and isinstance(cell, int) and not isinstance(cell, bool):
        return names[_index(cell, names)]
    if isinstance(cell, bool | int | float):
        return json.dumps(cell)
    raise ValueError(_as_text(cell))


def any_label_value(cell: object, names: Sequence[str] = ()) -> str:
    """A label as text; a list of labels as JSON, from which the problem type is detected."""
    try:
        return label_value(cell, names)
    except ValueError:
        return json.dumps(list(map(str, _list_value(cell))), ensure_ascii=False)


def labels_value(cell: object, names: Sequence[str] = (), delimiter: str = "") -> tuple[str, ...]:
    """The labels of a cell: a list, a list as JSON, or text with a delimiter (a comma); an empty cell has none."""
    if isinstance(cell, str) and cell.lstrip().startswith("["):
        try:
            cell = json.loads(cell)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{_as_text(cell)}, which is no list in JSON") from error
    if isinstance(cell, str):
        cell = [part.strip() for part in cell.split(delimiter or ",") if part.strip()]
    if isinstance(cell, int | float) and not is_missing(cell):
        cell = [cell]
    return tuple(dict.fromkeys(label_value(label, names) for label in _list_value(cell)))


def number_value(cell: object, names: Sequence[str] = ()) -> str:
    """A number as text."""
    if is_missing(cell) or (isinstance(cell, str) and not cell.strip()):
        return ""
    try:
        value = float(cell)  # type: ignore[arg-type]  # all else is a ValueError
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value) or isinstance(cell, bool):
        raise ValueError(_as_text(cell))
    return cell.strip() if isinstance(cell, str) else repr(value)


def words_value(cell: object, names: Sequence[str] = ()) -> tuple[str, ...]:
    """The words of a list; an empty cell has none."""
    return tuple(_checked_text(word) for word in _list_value(cell))


def tags_value(cell: object, names: Sequence[str] = ()) -> tuple[str, ...]:
    """The tags of a list, each read as a label; an empty cell has none."""
    return tuple(label_value(tag, names) for tag in _list_value(cell))


def _list_value(cell: object) -> Sequence[object]:
    cell = cell.tolist() if hasattr(cell, "tolist") else cell
    if is_missing(cell):
        return ()
    if isinstance(cell, str) or not isinstance(cell, Sequence):
        raise ValueError(_as_text(cell))
    return cell


def _checked_text(word: object) -> str:
    if not isinstance(word, str):
        raise ValueError(f"one with {_as_text(word)}")
    return word


def _index(number: int, names: Sequence[str]) -> int:
    if not 0 <= number < len(names):
        raise ValueError(f"{number}, which is no index of the {len(names)} names (data.names)")
    return number


def _as_text(cell: object) -> str:
    try:
        return f"{json.dumps(cell, ensure_ascii=False):.40}"
    except (TypeError, ValueError, RecursionError):
        return f"a {type(cell).__name__}"
