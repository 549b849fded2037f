"""Data in memory instead of file names: lists, frames, Arrow tables, data sets, iterables."""

from collections.abc import Mapping
from typing import Any

IN_MEMORY = "records in memory"  # ends the description of data in memory


class InMemory(str):
    """Stands for data in memory where a file name is expected. As text, it describes the data."""

    data: Any

    def __new__(cls, data: Any) -> "InMemory":
        described = super().__new__(cls, _describe(data))
        described.data = data
        return described


def is_indexable(data: Any) -> bool:
    """True for data that have a length and can be read by index or by column."""
    if isinstance(data, Mapping):
        return all(hasattr(column, "__len__") and not isinstance(column, str) for column in data.values())
    return is_frame(data) or (hasattr(data, "__len__") and hasattr(data, "__getitem__") and not isinstance(data, bytes))


def is_frame(data: Any) -> bool:
    """True for a data frame of pandas or polars, or an Arrow table."""
    module = type(data).__module__.partition(".")[0]
    return module in ("pandas", "polars", "pyarrow", "datasets") and hasattr(data, "shape")


def type_name(data: Any) -> str:
    """The type of data in memory, for messages."""
    module = type(data).__module__.partition(".")[0]
    return (
        f"{module} {type(data).__name__}"
        if module in ("pandas", "polars", "pyarrow", "datasets")
        else type(data).__name__
    )


def _describe(data: Any) -> str:
    count = len(next(iter(data.values()), ())) if isinstance(data, Mapping) else len(data)
    return f"{type_name(data)} of {count:,} {IN_MEMORY}"
