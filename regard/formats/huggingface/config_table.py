"""One two-way table between a Hugging Face config.json and the Config of one of our families.

The same rows import a folder (`read`), export a run (`write`) and refuse what the other format cannot represent. A
field of ours is named by its dotted path below `model`, such as `attention.dropout`.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ...config.types import Base
from ...files import Json, JsonMapping, JsonObject

Value = TypeVar("Value")
REQUIRED: Any = object()  # the default of a key that every config.json of this type has
_ABSENT: Any = object()
ACTIVATIONS = {
    "gelu": "gelu", "relu": "relu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "silu": "silu",
    "swish": "silu", "quick_gelu": "quick_gelu", "gelu_python": "gelu", "gelu_fast": "gelu_tanh",
}  # fmt: skip  # of several names the first is written


def identity(value: Value) -> Value:
    """The value itself."""
    return value


@dataclass(frozen=True)
class Field:
    """A setting that both formats have. `default` is the value of an absent key; a converter may raise ValueError.

    With `write=None` the setting is only read: their key belongs to another Field and the outputs do not depend on it.
    """

    ours: str
    theirs: str
    default: Any = REQUIRED
    read: Callable[[Any], Any] = identity
    write: Callable[[Any], Any] | None = identity


@dataclass(frozen=True)
class Fixed:
    """A setting of ours that has one value in their format: set on import, refused on export if it differs."""

    ours: str
    value: Any
    expected: str | None = None  # what their model has, for the refusal; None: changes no output, so never refused


@dataclass(frozen=True)
class Only:
    """A setting of theirs that we support with one value: refused on import if it differs, written on export."""

    theirs: str
    value: Any
    reason: str  # why, or what regard supports, for the refusal
    written: bool = True  # False: leave the key out of an exported config.json


@dataclass(frozen=True)
class Joint:
    """Settings that correspond only together. `read` returns values by our dotted paths, `write` by their keys."""

    read: Callable[[JsonMapping], JsonMapping]
    write: Callable[[Any], JsonMapping]


@dataclass(frozen=True)
class Limit:
    """A restriction on our Config that is no fixed value: its refusals, or none where their model can represent it."""

    unsupported: Callable[[Any], str | list[str] | None]


Row = Field | Fixed | Only | Joint | Limit


@dataclass(frozen=True)
class ConfigTable:
    """The rows of one model type. Rows of a common base can be joined: `ConfigTable(SHARED + (Field(...),))`."""

    rows: Sequence[Row]

    def read(self, theirs: JsonMapping) -> JsonObject:
        """Settings of our Config, nested by group.

        ValueError names the first key that we cannot represent, KeyError the first required one that is missing.
        """
        ours: JsonObject = {}
        for row in self.rows:
            if isinstance(row, Only):
                if (value := theirs.get(row.theirs, row.value)) not in (row.value, None):
                    raise ValueError(f"{row.theirs} is {json_text(value)}; {row.reason}")
            elif isinstance(row, Fixed):
                set_path(ours, row.ours, row.value)
            elif isinstance(row, Joint):
                for path, value in row.read(theirs).items():
                    set_path(ours, path, value)
            elif isinstance(row, Field):
                set_path(ours, row.ours, row.read(present(theirs, row.theirs, row.default)))
        return ours

    def write(self, c: Base) -> JsonObject:
        """The keys of config.json that describe our Config."""
        theirs: JsonObject = {}
        for row in self.rows:
            if isinstance(row, Field) and row.write is not None:
                theirs[row.theirs] = row.write(get_path(c, row.ours))
            elif isinstance(row, Joint):
                theirs |= row.write(c)
            elif isinstance(row, Only) and row.written:
                theirs[row.theirs] = row.value
        return theirs

    def their_names(self, text: str) -> str:
        """A message about settings of ours, with the keys of config.json in their place."""
        fields = [row for row in self.rows if isinstance(row, Field)]
        names = {f"model.{row.ours}": row.theirs for row in fields} | {row.ours: row.theirs for row in fields}
        return re.sub(r"(?<![\w.])[a-z_]+(\.[a-z_]+)*(?= is |\))", lambda match: names.get(match[0], match[0]), text)

    def unsupported(self, c: Base) -> list[str]:
        """Settings of ours that their model cannot have, each as `model.key=value (expected …)`."""
        refusals = []
        for row in self.rows:
            if isinstance(row, Fixed) and row.expected is not None:
                if (value := get_path(c, row.ours, row.value)) != row.value:
                    text = str(value).lower() if isinstance(value, bool) else value
                    refusals.append(f"model.{row.ours}={text} ({row.expected})")
            elif isinstance(row, Limit) and (refusal := row.unsupported(c)):
                refusals += [refusal] if isinstance(refusal, str) else refusal
        return refusals


def present(theirs: JsonMapping, key: str, default: Any = REQUIRED) -> Any:
    """A value of config.json; an absent key and null mean `default`."""
    if (value := theirs.get(key)) is not None:
        return value
    if default is REQUIRED:
        raise KeyError(key)
    return default


def read_class(theirs: JsonMapping, architectures: Mapping[str, Value]) -> Value:
    """What a folder's class means; the first of `architectures` where config.json names none."""
    name = (theirs.get("architectures") or [next(iter(architectures))])[0]
    if name not in architectures:
        several = "one of " if len(architectures) > 1 else ""
        raise ValueError(f"architectures has {name!r}; expected {several}{', '.join(architectures)}")
    return architectures[name]


def require_class(
    theirs: JsonMapping, tensors: Collection[str], architectures: Collection[str], heads: tuple[str, ...]
) -> None:
    """ValueError if config.json does not name the class of a model whose tensors have one of these heads."""
    if not theirs.get("architectures") and (head := next((name for name in tensors if name.startswith(heads)), None)):
        raise ValueError(
            f"architectures is missing, and {head!r} belongs to a head; set architectures to [NAME], one of "
            f"{', '.join(architectures)}"
        )


def one_class(name: str, required: bool = True) -> Joint:
    """The row of a model type whose folders are of one class; without `required`, their tensors alone show it."""

    def read(theirs: JsonMapping) -> JsonObject:
        if required:
            read_class(theirs, {name: ""})
        return {}

    return Joint(read, lambda c: {"architectures": [name]})


def both_stacks(ours: str, theirs: str, default: int = REQUIRED) -> Joint:
    """A setting that theirs has once for the encoder and once for the decoder; ours is one for both."""
    encoder, decoder = f"encoder_{theirs}", f"decoder_{theirs}"

    def read(config: JsonMapping) -> JsonObject:
        first, second = (present(config, key, default) for key in (encoder, decoder))
        if first != second:
            raise ValueError(f"{encoder} is {first} and {decoder} {second}, which differ; regard needs them equal")
        return {ours: first}

    return Joint(read, lambda c: dict.fromkeys((encoder, decoder), getattr(c, ours)))


def depth(encoder: str, decoder: str) -> Joint:
    """Their numbers of layers; our decoder_layers is 0 where encoder and decoder are equally deep."""

    def read(theirs: JsonMapping) -> JsonObject:
        layers, others = theirs[encoder], present(theirs, decoder, 0)
        return {"layers": layers, "decoder_layers": 0 if others == layers else others}

    return Joint(read, lambda c: {encoder: c.layers, decoder: c.decoder_layers or c.layers})


def choice(theirs: str, table: Mapping[str, str]) -> dict[str, Callable[[str], str]]:
    """Converters of a Field whose values have other names on their side; `table` maps theirs to ours."""

    def read(value: str) -> str:
        if value not in table:
            raise ValueError(f"{theirs} is {json_text(value)}; expected one of {', '.join(table)}")
        return table[value]

    return {"read": read, "write": {ours: name for name, ours in reversed(list(table.items()))}.__getitem__}


def json_text(value: Json) -> str:
    """A value as config.json spells it, with strings in single quotes as elsewhere in our messages."""
    return str(value).lower() if isinstance(value, bool) else repr(value)


def set_path(values: JsonObject, path: str, value: Json) -> None:
    """Set a value by its dotted path in nested dicts."""
    *groups, name = path.split(".")
    for group in groups:
        values = values.setdefault(group, {})
    values[name] = value


def get_path(c: Base, path: str, default: Any = _ABSENT) -> Any:
    """A field of a Config by its dotted path; `default` where a slot of another kind does not have it."""
    value: Any = c
    for name in path.split("."):
        value = getattr(value, name, default) if default is not _ABSENT else getattr(value, name)
        if value is default:
            return default
    return value
