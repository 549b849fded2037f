"""Tables of data in memory: rows or columns, frames, Arrow tables, Hugging Face data sets."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ...errors import UserError
from ..files.in_memory import is_frame, type_name
from .columns import LABEL, TAGS, Choice, ColumnRule, is_media
from .records import ColumnTable, check_names, record_cells, record_names


def memory_table(data: Any, name: str, rule: ColumnRule, invalid: str = "refuse") -> ColumnTable:
    """The table of data in memory."""
    try:
        if isinstance(data, Mapping) or is_frame(data):
            chosen = _choose_columns(*_columns(data), rule)
        else:
            chosen = _choose_cells(data, rule)
    except (UserError, ValueError) as error:
        raise UserError(f"{name}: {error}") from error
    place = lambda index: f"{name}, record {index + 1}"  # noqa: E731
    return ColumnTable(name, chosen.size, chosen.cells, place, chosen.rule, chosen.choice, invalid, chosen.record)


class _Chosen(NamedTuple):
    """The cells of the columns that are read."""

    size: int
    cells: Callable[[int], Sequence[object]]
    rule: ColumnRule
    choice: Choice | None
    record: Callable[[int], dict[str, object]] = lambda index: {}  # all columns


def _choose_cells(rows: Sequence[Any], rule: ColumnRule) -> _Chosen:
    """Of a sequence of records."""
    if not len(rows):
        return _Chosen(0, lambda index: (), rule, None)
    first = rows[0]
    if isinstance(first, Mapping):
        choice = rule.by_name(record_names(dict(first)))

        def cells(index: int) -> Sequence[object]:
            row = rows[index]
            if not isinstance(row, Mapping):
                raise ValueError(f"a {type(row).__name__}, and the first record is a dict")
            return record_cells(dict(row), choice, rule)

        return _Chosen(len(rows), cells, rule, choice)
    width = 1 if isinstance(first, str) else len(first) if isinstance(first, tuple | list) else 0
    if not width:
        raise ValueError(f"its first record is a {type(first).__name__}; expected tuples, dicts or texts")
    choice = _by_number(rule, width)

    def row_cells(index: int) -> Sequence[object]:
        row = (rows[index],) if isinstance(rows[index], str) else rows[index]
        if not isinstance(row, tuple | list) or len(row) != width:
            count = len(row) if isinstance(row, tuple | list) else 1
            raise ValueError(f"{count} values, and the first record has {width}")
        return [None if number is None else row[number] for number in choice.indices]

    return _Chosen(len(rows), row_cells, rule, choice)


def _choose_columns(
    columns: Mapping[str, Sequence[Any]], labels: Mapping[str, Sequence[str]], rule: ColumnRule
) -> _Chosen:
    """Of columns by name; `labels` has the names of integer labels by column."""
    columns = _flatten(columns)
    sizes = {len(column) for column in columns.values()}
    if len(sizes) > 1:
        raise UserError(f"the columns differ in length: {', '.join(map(str, sorted(sizes)))}; give equal ones")
    names = list(columns)
    numbered = names == [str(number) for number in range(1, len(names) + 1)]
    choice = _by_number(rule, len(names)) if numbered else rule.by_name(names)
    for role, index in zip(rule.roles, choice.indices, strict=False):
        if role.name in (LABEL.name, TAGS.name) and index is not None and names[index] in labels and not rule.names:
            rule = replace(rule, names=tuple(labels[names[index]]))
    chosen = [None if index is None else columns[names[index]] for index in choice.indices]
    cells = lambda index: [None if column is None else column[index] for column in chosen]  # noqa: E731
    record = lambda index: {name: column[index] for name, column in columns.items()}  # noqa: E731
    return _Chosen(max(sizes, default=0), cells, rule, choice, record)


def _by_number(rule: ColumnRule, count: int) -> Choice:
    try:
        return replace(rule, header="no").by_number(count)
    except ValueError as error:
        raise UserError(f"{error}; give a value for each of {', '.join(rule.words[: rule.needed])}") from error


def _flatten(columns: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    """Columns of dicts, as in {"translation": {"en": …, "de": …}}, become `translation.en` and `translation.de`."""
    flat: dict[str, Sequence[Any]] = {}
    for name, column in columns.items():
        first = column[0] if len(column) else None
        if isinstance(first, dict) and not is_media(first):
            flat |= {
                f"{name}.{inner}": [None if cell is None else cell.get(inner) for cell in column] for inner in first
            }
        else:
            flat[name] = column
    return flat


def _columns(data: Any) -> tuple[Mapping[str, Sequence[Any]], Mapping[str, Sequence[str]]]:
    """The columns of a frame by name, and the names of integer labels by column."""
    if isinstance(data, Mapping):
        return {str(name): column for name, column in data.items()}, {}
    module = type(data).__module__.partition(".")[0]
    if module in ("pyarrow", "datasets"):
        from .arrow import arrow_columns

        return arrow_columns(data)
    if not hasattr(data, "columns"):
        raise ValueError(f"a {type_name(data)} has no columns; give a frame")
    names = check_names([str(name) for name in _numbered(list(data.columns))])
    lists = [_pandas_values(data[name]) if module == "pandas" else data[name].to_list() for name in data.columns]
    return dict(zip(names, lists, strict=True)), {}


def _numbered(names: list[Any]) -> list[Any]:
    """The names; numbers from 1 if pandas or polars numbered the columns, because they were given none."""
    count = range(len(names))
    return [*range(1, len(names) + 1)] if names in ([*count], [f"column_{number}" for number in count]) else names


def _pandas_values(column: Any) -> list[Any]:
    """The values of a column. Integers with a missing one, which pandas keeps as decimals, are integers again."""
    values: list[Any] = column.tolist()
    decimals = column.dtype.kind == "f" and column.hasnans
    if decimals and all(value.is_integer() for value in values if value == value):
        return [int(value) if value == value else None for value in values]
    return values
