"""Tables of data in memory: rows or columns, frames, Arrow tables, Hugging Face data sets."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import UserError
from .columns import LABEL, TAGS, Choice, ColumnRule
from .memory import is_frame, kind_of
from .tables import ColumnTable, record_cells, record_names


def memory_table(data: Any, name: str, rule: ColumnRule, invalid: str = "refuse") -> ColumnTable:
    """The table of data in memory."""
    place = lambda index: f"{name}, record {index + 1}"  # noqa: E731
    try:
        if isinstance(data, Mapping) or is_frame(data):
            columns, labels = _columns(data)
            return _column_table(columns, labels, name, place, rule, invalid)
        choice, cells = _row_cells(data, rule)
    except (UserError, ValueError) as error:
        raise error if str(error).startswith(name) else UserError(f"{name}: {error}") from error
    return ColumnTable(name, len(data), cells, place, rule, choice, invalid)


def _row_cells(rows: Sequence[Any], rule: ColumnRule) -> tuple[Choice | None, Callable[[int], Sequence[object]]]:
    """The choice of columns for a sequence of records, and their cells."""
    if not len(rows):
        return None, lambda index: ()
    first = rows[0]
    if isinstance(first, Mapping):
        choice = rule.by_name(record_names(dict(first)))

        def cells(index: int) -> Sequence[object]:
            row = rows[index]
            if not isinstance(row, Mapping):
                raise ValueError(f"a {type(row).__name__}, and the first record is a dict")
            return record_cells(dict(row), choice, rule)

        return choice, cells
    width = 1 if isinstance(first, str) else len(first) if isinstance(first, tuple | list) else 0
    if not width:
        raise ValueError(f"its first record is a {type(first).__name__}; expected tuples, dicts or texts")
    choice = replace(rule, header="no").by_number(width)

    def row_cells(index: int) -> Sequence[object]:
        row = (rows[index],) if isinstance(rows[index], str) else rows[index]
        if not isinstance(row, tuple | list) or len(row) != width:
            count = len(row) if isinstance(row, tuple | list) else 1
            raise ValueError(f"{count} values, and the first record has {width}")
        return [None if number is None else row[number] for number in choice.indices]

    return choice, row_cells


def _column_table(
    columns: dict[str, Sequence[Any]],
    labels: Mapping[str, Sequence[str]],
    name: str,
    place: Callable[[int], str],
    rule: ColumnRule,
    invalid: str,
) -> ColumnTable:
    columns = _flatten(columns)
    sizes = {len(column) for column in columns.values()}
    if len(sizes) > 1:
        raise UserError(f"{name}: the columns differ in length: {', '.join(map(str, sorted(sizes)))}; give equal ones")
    names = list(columns)
    numbered = names == [str(number) for number in range(1, len(names) + 1)]
    choice = replace(rule, header="no").by_number(len(names)) if numbered else rule.by_name(names)
    for role, index in zip(rule.roles, choice.indices, strict=False):
        if role in (LABEL, TAGS) and index is not None and names[index] in labels and not rule.names:
            rule = replace(rule, names=tuple(labels[names[index]]))
    chosen = [None if index is None else columns[names[index]] for index in choice.indices]
    cells = lambda index: [None if column is None else column[index] for column in chosen]  # noqa: E731
    return ColumnTable(name, max(sizes, default=0), cells, place, rule, choice, invalid)


def _flatten(columns: dict[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    """Columns of dicts, as in {"translation": {"en": …, "de": …}}, become `translation.en` and `translation.de`."""
    flat: dict[str, Sequence[Any]] = {}
    for name, column in columns.items():
        first = column[0] if len(column) else None
        if isinstance(first, dict):
            flat |= {f"{name}.{inner}": [None if one is None else one.get(inner) for one in column] for inner in first}
        else:
            flat[name] = column
    return flat


def _columns(data: Any) -> tuple[dict[str, Sequence[Any]], Mapping[str, Sequence[str]]]:
    """The columns of a frame by name, and the names of integer labels by column."""
    if isinstance(data, Mapping):
        return {str(name): column for name, column in data.items()}, {}
    module = type(data).__module__.partition(".")[0]
    if module in ("pyarrow", "datasets"):
        from .arrow import arrow_columns

        return arrow_columns(data)
    if not hasattr(data, "columns"):
        raise ValueError(f"a {kind_of(data)} has no columns; give a frame")
    names = [str(name) for name in data.columns]
    if len(set(names)) < len(names):
        raise ValueError(f"two columns have the same name; the columns are {', '.join(names)}")
    lists = [data[name].tolist() if module == "pandas" else data[name].to_list() for name in data.columns]
    return dict(zip(names, lists, strict=True)), {}
