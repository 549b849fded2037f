"""How files and stdin become the items of a predictor: one value, by which the command line reads and prints."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ..config.run import Run
from ..data.tables.columns import ColumnRule, Role
from ..data.tables.open import SUFFIXES


@dataclass(frozen=True)
class FileItems:
    """Files are items, such as images, or hold some."""

    open: Callable[[str], Iterable[tuple[str, Any]]]  # a file, folder, archive or table of paths; each item has a name
    text_item: Callable[[str], Any] | None = None  # of a line of stdin; None: a line is the name of a file
    as_records: bool = False  # results have no form of one line: records are printed
    named: bool = False  # the line of a result begins with the name of its item


@dataclass(frozen=True)
class ItemReader:
    """Items are lines, rows of tables and JSON records; or files, if there are `files`."""

    rule: ColumnRule  # the columns of an example in a table: its item, then its target
    item_rule: ColumnRule  # those of an item alone
    columns: int = 1  # of an item: 2 for a pair of texts
    fields: int = 1  # of an example to score: an item, or an item and its target
    table_formats: frozenset[str] = frozenset(SUFFIXES.values())  # files of others are read as lines
    record_field: str | None = None  # of a line that is a JSON record: it holds the text
    result_field: str | None = None  # of a record: it gets the result; None: the result is printed as a line
    split: Callable[[Iterable[str]], Iterator[str]] | None = None  # makes items of several lines; None: each is one
    files: FileItems | None = None

    @property
    def roles(self) -> tuple[Role, ...]:
        """The purposes of the columns of an example."""
        return self.rule.roles


def reader_of(run: Run, *roles: Role) -> ItemReader:
    """The reader of texts, or of examples with these columns, by the settings of a run; some tasks read no tables."""
    named = {name: value for name, value in run.data if name in ("columns", "header", "names")}
    rule = ColumnRule(roles, **named, required=1)
    return ItemReader(rule, rule, fields=len(roles))
