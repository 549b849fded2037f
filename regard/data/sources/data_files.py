"""The values of data.train, data.valid and data.test: names of files, or data that a program hands over."""

from collections.abc import Iterable, Mapping
from os import PathLike, fspath
from typing import Any

from pydantic import ValidationError

from ...config.data.base import Data, DataFiles
from ...errors import UserError
from ..files.in_memory import InMemory, is_known, kind_of

EXPECTED = (
    "expected file names, a list of tuples or dicts, a dict of columns, a pandas or polars frame, an Arrow table, a "
    "Hugging Face data set, or an iterable of records"
)


SPLITS = {"validation": "valid"}  # as Hugging Face names it


def as_data_files(data: Any, key: str) -> Any:
    """`data` as the value of data.train, data.valid or data.test: file names stay, anything else is `InMemory`."""
    if isinstance(data, PathLike):
        return ((fspath(data),),)
    if isinstance(data, str) or data is None:
        return data
    if isinstance(data, tuple):
        return tuple(map(_file_names, data))
    if isinstance(data, list) and all(isinstance(each, str | PathLike | list) for each in data):
        return [_file_names(each) for each in data]
    if type(data).__name__ == "LazyFrame" and hasattr(data, "collect"):
        data = data.collect()
    if is_known(data):
        return ((InMemory(data),),)
    if isinstance(data, Iterable) and not isinstance(data, bytes | Mapping | set | frozenset):
        from ..tables.arrow import spool

        return ((str(spool(data, key)),),)
    raise UserError(f"{key} is a {kind_of(data)}; {EXPECTED}")


def _file_names(names: Any) -> Any:
    """Names of files, or lists of them, as text."""
    if isinstance(names, list | tuple):
        return [_file_names(name) for name in names]
    return fspath(names) if isinstance(names, PathLike) else names


def with_data(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings whose data may be in memory: under `data` or, by dotted key, `data.train`."""
    changed = dict(settings)
    for key, value in settings.items():
        if key == "data" and isinstance(value, Mapping):
            changed[key] = {SPLITS.get(name, name): _side_value(f"data.{name}", each) for name, each in value.items()}
        else:
            changed[key] = _side_value(key, value)
    return changed


def keep_memory(stored: Data, given: Data) -> Data:
    """The data settings of a stored run; data that were in memory are those that are given now."""
    return stored.model_copy(update={split: getattr(given, split) for split in splits_in_memory(given)})


def splits_in_memory(data: Data) -> list[str]:
    """The splits whose data are in memory."""
    sides = {split: getattr(data, split) for split in ("train", "valid", "test")}
    return [
        split for split, value in sides.items() if any(isinstance(name, InMemory) for side in value for name in side)
    ]


def evaluation_files(data: Any) -> DataFiles | None:
    """What `evaluate` is given as the sides of examples: file names, such as "a.en,a.de", or data in memory."""
    if data is None:
        return None
    try:
        sides: DataFiles = Data.model_validate({"test": as_data_files(data, "data")}).test
    except ValidationError as error:
        raise UserError(f"the data are a {kind_of(data)}; {EXPECTED}") from error
    if not sides:
        raise UserError("the data are empty; give at least one example, or nothing to use data.test of the run")
    return sides


def _side_value(key: str, value: Any) -> Any:
    return as_data_files(value, key) if key.partition("data.")[2] in ("train", "valid", "test", *SPLITS) else value
