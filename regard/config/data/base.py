"""The settings that the data of every task have: files, formats, columns, limits."""

from os import PathLike
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, ValidatorFunctionWrapHandler, WrapValidator

from ..merge import split_commas
from ..types import Base as Base
from ..types import Count as Count
from ..types import Positive as Positive
from ..types import Share as Share
from ..types import Strings as Strings


def _split_files(value: Any) -> Any:
    value = split_commas(value) if isinstance(value, str) else value
    if not isinstance(value, list | tuple):
        return value
    return tuple(
        (names if isinstance(names, str) else str(names),) if isinstance(names, str | PathLike) else names
        for names in value
    )


def _keep(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """Keep a string unchanged: pydantic would turn a subclass, such as the name of data in memory, into a str."""
    checked = validate(value)
    return value if isinstance(value, str) else checked


Pattern: TypeAlias = Annotated[str, WrapValidator(_keep)]  # a file name, a glob, or data in memory


DataFiles: TypeAlias = Annotated[tuple[tuple[Pattern, ...], ...], BeforeValidator(_split_files)]
"""The files of each column (source, target): a tuple of file patterns per column."""


class Data(Base):
    """Settings of the data of every task."""

    train: DataFiles = ()  # files to learn from; a glob, or a list such as [["a.txt", "b.txt"]], names several. Empty:
    # the embedded data
    valid: DataFiles = ()  # as data.train: chooses the best weights; empty: the share data.holdout of data.train, or
    # embedded data
    test: DataFiles = ()  # as data.train: what `regard eval` reads without --data
    invalid: Literal["refuse", "skip"] = "refuse"  # what to do with lines and files that cannot be read: refuse (stop
    # and report where) or skip (and count them)
    holdout: Share = 0.0  # fraction of data.train for validation, drawn at random, if data.valid is empty
    max_tokens: Positive = 256  # of the longest side of an example; longer examples are skipped, counted and reported
    workers: Count = 0  # processes that load batches ahead


TextFormat: TypeAlias = Literal["auto", "text", "tsv", "csv", "jsonl", "json", "parquet", "arrow"]


class TableData(Data):
    """Data that may come as tables."""

    format: TextFormat = "auto"  # auto: by file name; text: plain lines
    columns: Strings = ()  # of a table, by name or by number from 1; empty: known names, such as text and label
    header: Literal["auto", "yes", "no"] = "auto"  # whether the first line of TSV and CSV names the columns


class PackedData(TableData):
    """Data of tasks with a source and a target."""

    packed: bool = False  # put several examples into a row instead of padding
