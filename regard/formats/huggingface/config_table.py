"""One two-way table between a Hugging Face config.json and the Config of one of our families.

The same rows import a folder (`read`), export a run (`write`) and refuse what the other side cannot represent. A field
of ours is named by its dotted path below `model`, such as `attention.dropout`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

REQUIRED: Any = object()  # the default of a key that every config.json of this type has
_ABSENT: Any = object()


def unchanged(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Field:
    """A setting that both sides have. `default` is what an absent key means; a converter may raise ValueError."""

    ours: str
    theirs: str
    default: Any = REQUIRED
    read: Callable[[Any], Any] = unchanged
    write: Callable[[Any], Any] = unchanged


@dataclass(frozen=True)
class Fixed:
    """A setting of ours that has one value on their side: set on import, refused on export if it differs."""

    ours: str
    value: Any
    expected: str  # what their model has, for the refusal


@dataclass(frozen=True)
class Only:
    """A setting of theirs that we support with one value: refused on import if it differs, written on export."""

    theirs: str
    value: Any
    reason: str  # why, or what regard supports, for the refusal
    written: bool = True  # False: leave the key out of an exported config.json


Row = Field | Fixed | Only


@dataclass(frozen=True)
class ConfigTable:
    """The rows of one model type. Rows of a common base can be joined: `ConfigTable(SHARED + (Field(...),))`."""

    rows: Sequence[Row]

    def read(self, theirs: Mapping[str, Any]) -> dict[str, Any]:
        """Settings of our Config, nested by group; ValueError names the first key that we cannot represent."""
        found: dict[str, Any] = {}
        for row in self.rows:
            if isinstance(row, Only):
                if (value := theirs.get(row.theirs, row.value)) not in (row.value, None):
                    raise ValueError(f"{row.theirs} is {value!r}; {row.reason}")
            elif isinstance(row, Fixed):
                put(found, row.ours, row.value)
            else:
                put(found, row.ours, self._read_field(row, theirs))
        return found

    def write(self, c: Any) -> dict[str, Any]:
        """The keys of config.json that say what our Config says."""
        found: dict[str, Any] = {}
        for row in self.rows:
            if isinstance(row, Field):
                found[row.theirs] = row.write(get(c, row.ours))
            elif isinstance(row, Only) and row.written:
                found[row.theirs] = row.value
        return found

    def unsupported(self, c: Any) -> list[str]:
        """Settings of ours that their model cannot have, each as `model.key=value (expected …)`."""
        found = []
        for row in self.rows:
            if isinstance(row, Fixed) and (value := get(c, row.ours, row.value)) != row.value:
                said = str(value).lower() if isinstance(value, bool) else value
                found.append(f"model.{row.ours}={said} ({row.expected})")
        return found

    def _read_field(self, row: Field, theirs: Mapping[str, Any]) -> Any:
        value = theirs.get(row.theirs)
        if value is None:
            if row.default is REQUIRED:
                raise ValueError(f"{row.theirs} is missing; every folder of this model type has it")
            value = row.default
        return row.read(value)


def choice(theirs: str, table: Mapping[str, str]) -> dict[str, Callable[[Any], Any]]:
    """Converters of a Field whose values have other names on their side; `table` maps theirs to ours."""

    def read(value: Any) -> str:
        if value not in table:
            raise ValueError(f"{theirs} is {value!r}; expected one of {', '.join(table)}")
        return table[value]

    return {"read": read, "write": {ours: name for name, ours in reversed(list(table.items()))}.__getitem__}


def put(values: dict[str, Any], path: str, value: Any) -> None:
    """Set a value by its dotted path in nested dicts."""
    *groups, name = path.split(".")
    for group in groups:
        values = values.setdefault(group, {})
    values[name] = value


def get(c: Any, path: str, default: Any = _ABSENT) -> Any:
    """A field of a Config by its dotted path; `default` where a slot of another kind does not have it."""
    for name in path.split("."):
        c = getattr(c, name, default) if default is not _ABSENT else getattr(c, name)
        if c is default:
            return default
    return c
