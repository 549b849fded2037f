"""Tables of records, and the examples in them."""

import bisect
import hashlib
import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from ...errors import UserError
from ..files.line_index import BLANK, INVALID, VALID
from ..files.open import text_error
from ..source import Example, LazySequence, Source
from .cells import Row
from .columns import Choice, ColumnRule, MediaValue, is_media

SKIP_HINT = "correct it, or set data.invalid=skip to leave such records out"


class Table(LazySequence[Row]):
    """Records in order. An item has the fields of an example; statuses mark the valid records."""

    name: str
    counts: dict[str, int]
    has_header = True  # False: the first record may be one

    @abstractmethod
    def statuses(self) -> np.ndarray:
        """The status of every record."""

    @abstractmethod
    def location(self, index: int) -> str:
        """The file and line of a record, or its number."""

    @abstractmethod
    def digest(self) -> bytes:
        """Identifies the content and the columns that are read; it does not depend on file names."""

    def record(self, index: int) -> dict[str, object]:
        """All columns of a record by name, also those that are not read."""
        return {}

    def facts(self) -> list[str]:
        """Sentences about the columns that are read."""
        return []

    def adjacent(self, index: int) -> bool:
        """True if the next record comes from the same file."""
        return True

    def release_statuses(self) -> None:
        """Free the statuses, once the source has read them."""


class TableSource(Source):
    """The valid records of a table. Invalid records, and those with an empty field, are left out and counted."""

    def __init__(self, table: Table) -> None:
        self.table, self.name = table, table.name
        statuses = table.statuses()
        whole = statuses == VALID
        self.rows: Sequence[int] | np.ndarray = range(len(statuses))
        if not whole.all():
            self.rows = np.flatnonzero(whole).astype(np.int32 if len(statuses) < 2**31 else np.int64)
        self.counts = {"examples": len(self.rows), "empty": int((statuses == BLANK).sum())}
        self.counts |= {"invalid": int((statuses == INVALID).sum()), **table.counts}
        table.release_statuses()

    def __len__(self) -> int:
        return len(self.rows)

    def item(self, index: int) -> Example:
        return self.table.item(int(self.rows[index]))

    def text(self, index: int, field: int) -> str:
        text = self.item(index)[field]
        return text if isinstance(text, str) else " ".join(text)

    def location(self, index: int) -> str:
        return self.table.location(int(self.rows[index]))

    def adjacent(self, index: int) -> bool:
        row = int(self.rows[index])
        return int(self.rows[index + 1]) == row + 1 and self.table.adjacent(row)

    def fingerprint(self) -> str:
        return hashlib.blake2b(b"%d\0" % len(self) + self.table.digest(), digest_size=16).hexdigest()

    def report(self) -> list[str]:
        return self.table.facts() + super().report()


def row_status(row: Row, rule: ColumnRule) -> int:
    """VALID or, if a required field is empty, BLANK. A ValueError says what is wrong with the record."""
    whole = True
    for role, field in zip(rule.roles[: rule.needed], row, strict=False):
        if role.optional:
            continue
        if not isinstance(field, str):
            return _lists_status(row[: rule.needed], rule)
        if not field or field.isspace():
            whole = False
    return VALID if whole else BLANK


def _lists_status(fields: Row, rule: ColumnRule) -> int:
    lists = [field for field in fields if not isinstance(field, str | MediaValue)]
    if len({len(field) for field in lists}) > 1:
        named = zip(fields, rule.words, strict=False)
        counts = [f"{len(field)} {word}" for field, word in named if not isinstance(field, MediaValue)]
        raise ValueError(f"{' and '.join(counts)}; expected equally many")
    if not all(word.strip() for field in lists for word in field):
        raise ValueError("an empty word or tag")
    return VALID if all(field.strip() if isinstance(field, str) else field for field in fields) else BLANK


def check_encodable(row: Row) -> None:
    """Raise a ValueError for texts that UTF-8 files cannot contain."""
    for field in row:
        for text in (field,) if isinstance(field, str) else () if isinstance(field, MediaValue) else field:
            if ("\0" in text or not text.isascii()) and text_error(text.encode("utf-8", "surrogatepass")):
                raise ValueError("a text with a NUL or half a surrogate pair")


def parse_object(line: str, example: str) -> dict[str, object]:
    """The JSON object on a line. A ValueError says what is wrong and shows `example`."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not one JSON object on one line ({error})") from error
    if not isinstance(record, dict):
        raise ValueError(f"not a JSON object such as {example}")
    return record


def record_names(record: dict[str, object]) -> list[str]:
    """The columns of a record. Columns of a nested object are `translation.en`, `translation.de`."""
    names = []
    for name, value in record.items():
        inside = value if isinstance(value, dict) and not is_media(value) else None
        names += [str(name)] if inside is None else [f"{name}.{inner}" for inner in inside]
    return names


def record_cells(record: dict[str, object], choice: Choice, rule: ColumnRule) -> list[object]:
    """The values of the chosen columns. A missing required column raises a ValueError."""
    cells: list[object] = []
    for place, index in enumerate(choice.indices):
        name = None if index is None else choice.names[index]
        if name is not None and name not in record and "." in name:
            outer, _, inner = name.partition(".")
            value = record.get(outer)
            present = isinstance(value, dict) and inner in value
            cells.append(value[inner] if present else None)  # type: ignore[index]
        else:
            present = name is not None and name in record
            cells.append(record[name] if present else None)  # type: ignore[index]
        if not present and place < rule.needed:
            there = ", ".join(map(str, record)) or "nothing"
            raise ValueError(f"no text under {name!r}; there is {there} ({rule.key})")
    return cells


def check_names(names: list[str]) -> list[str]:
    """The names of the columns of a table in memory. Duplicate names raise a ValueError."""
    if len(set(names)) < len(names):
        raise ValueError(f"two columns have the same name; rename one of {', '.join(names)}")
    return names


class ColumnTable(Table):
    """Records with cells in memory: `cells(i)` returns those of the chosen columns, `place(i)` the location."""

    def __init__(
        self,
        name: str,
        count: int,
        cells: Callable[[int], Sequence[object]],
        place: Callable[[int], str],
        rule: ColumnRule,
        choice: Choice | None,
        invalid: str = "refuse",
        whole: Callable[[int], dict[str, object]] = lambda index: {},
    ) -> None:
        self.name, self.size, self.cells, self.place, self.rule = name, count, cells, place, rule
        self.choice, self.counts, self.whole = choice, dict[str, int](), whole
        self._digest = hashlib.blake2b(digest_size=16)
        self._statuses = np.fromiter((self._check(index, invalid) for index in range(count)), np.uint8, count)

    def __len__(self) -> int:
        return self.size

    def item(self, index: int) -> Row:
        return self.rule.row(self.cells(index))

    def statuses(self) -> np.ndarray:
        return self._statuses

    def location(self, index: int) -> str:
        return self.place(index)

    def digest(self) -> bytes:
        return self._digest.digest()

    def record(self, index: int) -> dict[str, object]:
        return self.whole(index)

    def facts(self) -> list[str]:
        return [self.rule.describe(self.choice)] if self.choice else []

    def _check(self, index: int, invalid: str) -> int:
        try:
            row = self.item(index)
            check_encodable(row)
            status = row_status(row, self.rule)
        except ValueError as error:
            if invalid == "skip":
                return INVALID
            raise UserError(f"{self.place(index)}: {error}; {SKIP_HINT}") from error
        try:
            content = json.dumps(row)  # without arguments it is three times as fast
        except TypeError:
            content = json.dumps(row, default=lambda media: media.digest())
        self._digest.update(content.encode())
        return status


class Concatenated(Table):
    """Several tables, one after the other."""

    def __init__(self, tables: Sequence[Table]) -> None:
        self.tables = tables
        self.starts = np.cumsum([0, *map(len, tables)]).tolist()
        others = len(tables) - 1
        self.name = tables[0].name + (f" (and {others} more)" if others else "")
        self.counts = dict(sum((Counter(table.counts) for table in tables), Counter[str]()))

    def __len__(self) -> int:
        return int(self.starts[-1])

    def _find(self, index: int) -> tuple[Table, int]:
        number = bisect.bisect_right(self.starts, index) - 1
        return self.tables[number], index - self.starts[number]

    def item(self, index: int) -> Row:
        table, inner = self._find(index)
        return table.item(inner)

    def statuses(self) -> np.ndarray:
        return np.concatenate([table.statuses() for table in self.tables])

    def release_statuses(self) -> None:
        for table in self.tables:
            table.release_statuses()

    def location(self, index: int) -> str:
        table, inner = self._find(index)
        return table.location(inner)

    def adjacent(self, index: int) -> bool:
        table, inner = self._find(index)
        return inner + 1 < len(table) and table.adjacent(inner)

    def digest(self) -> bytes:
        return b"\0".join(table.digest() for table in self.tables)

    def record(self, index: int) -> dict[str, object]:
        table, inner = self._find(index)
        return table.record(inner)

    def facts(self) -> list[str]:
        return list(dict.fromkeys(fact for table in self.tables for fact in table.facts()))
