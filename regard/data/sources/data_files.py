"""The values of data.train, data.valid and data.test: names of files, or data that a program hands over."""

from collections.abc import Iterable, Mapping
from os import PathLike, fspath
from typing import Any

from pydantic import ValidationError

from ...config.data.base import Data, DataFiles
from ...config.merge import Settings
from ...errors import UserError
from ..files.in_memory import InMemory, is_indexable, type_name

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
    if isinstance(data, list) and all(isinstance(names, str | PathLike | list) for names in data):
        return [_file_names(names) for names in data]
    if type(data).__name__ == "LazyFrame" and hasattr(data, "collect"):
        data = data.collect()
    if is_indexable(data):
        return ((InMemory(data),),)
    if isinstance(data, Iterable) and not isinstance(data, bytes | Mapping | set | frozenset):
        from ..tables.arrow import spool

        return ((str(spool(data, key)),),)
    raise UserError(f"{key} is a {type_name(data)}; {EXPECTED}")


def _file_names(names: Any) -> Any:
    """Names of files, or lists of them, as text."""
    if isinstance(names, list | tuple):
        return [_file_names(name) for name in names]
    return fspath(names) if isinstance(names, PathLike) else names


def with_data(settings: Settings) -> Settings:
    """Convert data in settings, under `data` or a dotted key such as `data.train`, to data files."""
    changed = dict(settings)
    for key, value in settings.items():
        if key == "data" and isinstance(value, Mapping):
            changed[key] = {SPLITS.get(name, name): _split_value(f"data.{name}", data) for name, data in value.items()}
        else:
            changed[key] = _split_value(key, value)
    return changed


def keep_memory(stored: Data, current: Data) -> Data:
    """The data settings of a stored run; splits in memory come from `current`."""
    return stored.model_copy(update={split: getattr(current, split) for split in splits_in_memory(current)})


def splits_in_memory(data: Data) -> list[str]:
    """The splits whose data are in memory."""
    splits = {split: getattr(data, split) for split in ("train", "valid", "test")}
    return [
        split for split, files in splits.items() if any(isinstance(name, InMemory) for group in files for name in group)
    ]


def evaluation_files(data: Any) -> DataFiles | None:
    """The data of `evaluate`: file names, such as "a.en,a.de", or data in memory; None stays None."""
    if data is None:
        return None
    try:
        files: DataFiles = Data.model_validate({"test": as_data_files(data, "data")}).test
    except ValidationError as error:
        raise UserError(f"the data are a {type_name(data)}; {EXPECTED}") from error
    if not files:
        raise UserError("the data are empty; give at least one example, or nothing to use data.test of the run")
    return files


def _split_value(key: str, value: Any) -> Any:
    return as_data_files(value, key) if key.partition("data.")[2] in ("train", "valid", "test", *SPLITS) else value
