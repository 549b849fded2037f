"""Merge layers of settings, check them against a schema of pydantic models and dataclasses, and collect all errors."""

import dataclasses
import difflib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from os import PathLike
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ..errors import UserError
from ..files import Json, Toml
from .renamed import MOVED, moved_key, renamed_key

if TYPE_CHECKING:
    from typing_extensions import TypeForm

Settings: TypeAlias = Mapping[str, Any]  # by dotted or nested keys
Section: TypeAlias = Settings | BaseModel | str | PathLike[str] | int  # a group of settings, or one without a group
TypeHint: TypeAlias = "TypeForm[Any] | None"  # a class, Annotated, Literal or a union
Value = TypeVar("Value")


class Setting(NamedTuple):
    """One field of a group: its type annotation and default."""

    annotation: TypeHint
    default: Any = None


def settings_of(group: type) -> dict[str, Setting]:
    """The fields of a pydantic model or of a dataclass."""
    if issubclass(group, BaseModel):
        return {name: Setting(field.annotation, field.default) for name, field in group.model_fields.items()}
    assert dataclasses.is_dataclass(group)
    hints = get_type_hints(group, include_extras=True)
    return {field.name: Setting(hints[field.name], field.default) for field in dataclasses.fields(group)}


def groups_in(annotation: TypeHint) -> list[type]:
    """The models or dataclasses that a field may hold: none for a plain value, several for a slot."""
    if get_origin(annotation) is Annotated:
        return groups_in(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [group for part in get_args(annotation) for group in groups_in(part)]
    if not isinstance(annotation, type):
        return []
    return [annotation] if issubclass(annotation, BaseModel) or dataclasses.is_dataclass(annotation) else []


def kind_of(group: type) -> str | None:
    """The `kind` of a group in a slot, or None."""
    return settings_of(group)["kind"].default if "kind" in settings_of(group) else None


def with_kind(value: Value, setting: Setting) -> Value | Settings:
    """Turn `"cosine"` into `{"kind": "cosine"}`; settings without a kind get the default kind."""
    if not any(kind_of(group) for group in groups_in(setting.annotation)):
        return value
    if isinstance(value, str):
        return {"kind": value}
    if isinstance(value, Mapping) and "kind" not in value and hasattr(setting.default, "kind"):
        return {"kind": setting.default.kind, **value}
    return value


def flatten(values: Settings, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of a mapping whose keys are nested, dotted or both."""
    for name, value in values.items():
        if isinstance(value, BaseModel):
            value = value.model_dump()
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = dataclasses.asdict(value)
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def nest(values: Settings) -> Settings:
    """Nested dicts from dotted keys."""
    whole: dict[str, Any] = {}
    for key, value in values.items():
        *groups, name = key.split(".")
        inner = whole
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[name] = value
    return whole


class SettingsDraft:
    """Values by dotted key with their origins. Errors are collected and raised together."""

    def __init__(self, root: type[BaseModel], swapped: Mapping[str, type]) -> None:
        """`swapped` has the classes of fields that depend on other settings, by dotted key."""
        self.values: dict[str, Any] = {}
        self.origin: dict[str, str] = {}
        self.errors: list[str] = []
        self.leaves: dict[str, Any] = {}  # dotted key -> annotation
        self.groups: dict[str, Setting] = {}  # dotted key of a section or slot
        self._register(root, "", swapped)

    def _register(self, group: type, prefix: str, swapped: Mapping[str, type]) -> None:
        for name, setting in settings_of(group).items():
            key, setting = (
                f"{prefix}{name}",
                setting._replace(annotation=swapped.get(f"{prefix}{name}", setting.annotation)),
            )
            inner = groups_in(setting.annotation)
            if inner:
                self.groups[key] = setting
            else:  # a setting that several kinds of a slot share accepts the values of all of them
                self.leaves[key] = self.leaves[key] | setting.annotation if key in self.leaves else setting.annotation
            for member in inner:
                self._register(member, f"{key}.", swapped)
                for short in set(MOVED.values()) & {f"{key}.{constant}" for constant in vars(member)}:
                    self.leaves.setdefault(short, int)  # one that is fixed for some kinds, or for all

    def add_layer(self, where: str, values: Settings) -> None:
        """Add a layer above the present values. A new kind in a slot removes the settings of the previous kind."""
        layer = dict(self._expand(values))
        for slot, setting in self.groups.items():
            kind = layer.get(f"{slot}.kind")
            if kind is not None and kind != self._kind(slot) and len(groups_in(setting.annotation)) > 1:
                self._clear(slot)
        for key, value in layer.items():
            problem = self._problem(key, value)
            if problem:
                self.errors.append(problem + origin_note(where))
            else:
                self.values[key], self.origin[key] = value, where

    def _clear(self, group: str) -> None:
        for key in [key for key in self.values if key.startswith(f"{group}.")]:
            del self.values[key], self.origin[key]

    def _expand(self, values: Settings) -> Iterator[tuple[str, Any]]:
        for key, value in flatten(values):
            key = self.current_key(key)
            if isinstance(value, str) and key not in self.groups:
                value = parse_value(value, self.leaves.get(key, str))
            elif isinstance(value, str):
                table = from_toml(value) if value.startswith("{") else None
                value = table if isinstance(table, dict) else with_kind(value, self.groups[key])
            yield from flatten({key: value})

    def current_key(self, key: str) -> str:
        """The key under which these settings have a key of an older format."""
        return moved_key(key, self.leaves, self.groups)

    def _problem(self, key: str, value: Any) -> str | None:
        if key in self.groups and (inside := [name for name in self.leaves if name.startswith(f"{key}.")]):
            keys = ", ".join(inside[:3])
            return f"{key} is a group of settings, not {format_value(value)}; set {keys} or another of its keys"
        if key not in self.leaves:
            return f"{key} is not a key; {self._hint(key)}"
        if isinstance(value, bool) and bool not in plain_types(self.leaves[key]):
            return f"{key} is {format_value(value)}; expected {expected_type(self.leaves[key])}"
        return None

    def _hint(self, key: str) -> str:
        filled = [group for group in self.groups if any(leaf.startswith(f"{group}.") for leaf in self.leaves)]
        keys = [*self.leaves, *filled]
        if (new := moved_key(renamed_key(key), keys)) != key and new in keys:
            return f"it is now called {new}"
        if key in MOVED:  # of another task or family
            return "`--show all` lists the keys of this task and family"
        keys += [old for old, new in MOVED.items() if new in self.leaves]  # short forms, too
        near = [name for name in keys if name.endswith(f".{key.rpartition('.')[2]}")]
        near = difflib.get_close_matches(key, keys, n=1) or difflib.get_close_matches(key, near, n=1, cutoff=0.0)
        near = [self.current_key(name) for name in near]
        return f"did you mean {near[0]}?" if near else "`regard train RECIPE --show all` lists the keys"

    def _kind(self, slot: str) -> Any:
        return self.values.get(f"{slot}.kind", getattr(self.groups[slot].default, "kind", None))

    def kinds(self, slot: str) -> dict[str | None, type]:
        """The groups that a slot may hold, by their kinds."""
        return {kind_of(group): group for group in groups_in(self.groups[slot].annotation)}

    def nested_values(self) -> Settings:
        """The nested values, without settings of another kind of their slot, which are reported as errors."""
        for slot in self.groups:
            kinds, kind = self.kinds(slot), self._kind(slot)
            if kind is None or kind not in kinds:
                continue
            known = settings_of(kinds[kind])
            for key in [key for key in self.values if key.startswith(f"{slot}.")]:
                name, absent = key[len(slot) + 1 :].partition(".")[0], object()
                if name in known:
                    continue
                if vars(kinds[kind]).get(name, absent) != self.values[key]:  # a constant of the kind may be given
                    others = ", ".join(name for name in known if name != "kind") or "no settings"
                    self.errors.append(f"{key} does not belong to {slot}={kind}, which has {others}")
                del self.values[key]
        return nest(self.values)

    def add_validation_errors(self, error: ValidationError, prefix: str = "") -> None:
        """Add the errors that pydantic found, as sentences."""
        for details in error.errors(include_url=False):
            key = prefix
            for part in map(str, details["loc"]):  # pydantic adds slot kinds and list positions to the path
                longer = f"{key}.{part}".lstrip(".")
                key = longer if longer in self.leaves or longer in self.groups else key
            inner = details.get("ctx", {}).get("error")
            if isinstance(inner, ValidationError):
                self.add_validation_errors(inner, key)
            else:
                self.errors.append(self._message(key, details) + origin_note(self.origin.get(key, "")))

    def _message(self, key: str, error: ErrorDetails) -> str:
        error_type, bounds = error["type"], error.get("ctx", {})
        if error_type == "value_error":  # the message of a validator; that of a field validator may omit its key
            message = str(bounds["error"])
            return message if key not in self.leaves or key in message else f"{key}: {message}"
        if error_type == "missing":
            return f"{key} is missing; give it a value"
        if error_type.startswith("union_tag"):
            tags = [str(kind_of(group)) for group in groups_in(self.groups[key].annotation)]
            tag = bounds.get("tag")
            return f"{key}.kind is {format_value(tag)}; {one_of(tag, tags)}"
        for bound, words in {"gt": "more than", "ge": "at least", "lt": "less than", "le": "at most"}.items():
            if bound in bounds:
                return f"{key} is {format_value(error['input'])}; expected {words} {bounds[bound]:g}"
        options = [str(option) for option in get_args(self.leaves.get(key)) if isinstance(option, str)]
        if error_type == "literal_error" and options:
            return f"{key} is {format_value(error['input'])}; {one_of(error['input'], options)}"
        return f"{key} is {format_value(error['input'])}; expected {expected_type(self.leaves.get(key), error['msg'])}"

    def raise_errors(self) -> None:
        """Raise UserError with the collected errors, one per line, if there are any."""
        if self.errors:
            raise UserError("\n".join(dict.fromkeys(self.errors)))


def origin_note(where: str) -> str:
    """ " (in recipe x)" for a message; empty for the command line, which the user sees."""
    return "" if where in ("", "command line") else f" (in {where})"


def plain_types(annotation: TypeHint) -> set[TypeHint]:
    """The types at the bottom of an annotation: {str} for tuple[tuple[str, ...], ...], {int, None} for int | None."""
    if get_origin(annotation) is Literal:
        return {type(option) for option in get_args(annotation)}
    if get_origin(annotation) is Annotated:
        return plain_types(get_args(annotation)[0])
    inner = {each for part in get_args(annotation) if part is not Ellipsis for each in plain_types(part)}
    return inner or {annotation}


def parse_value(text: str, annotation: TypeHint) -> Toml:
    """Parse text as a value of the annotated type. Text that cannot be parsed stays text; validation reports it."""
    types = plain_types(annotation)
    if types & {str, Any}:
        return text
    if types & {bool} and text.lower() in ("true", "false"):
        return text.lower() == "true"
    value = from_toml(text)
    if value is None and get_origin(annotation) is tuple:
        value = from_toml(f"[{text}]")
    return text if value is None else value


def from_toml(text: str) -> Toml | None:
    """The TOML value of the text, or None if it is not one."""
    try:
        table = tomllib.loads(f"value = {text}")
    except ValueError:  # TOMLDecodeError, or an integer of thousands of digits
        return None
    return table["value"] if len(table) == 1 else None


def to_toml(value: Json) -> str:
    """A value as TOML."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(to_toml, value))}]"
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def format_value(value: Any) -> str:
    """A value for a message, at most 80 characters."""
    text = to_toml(value) if isinstance(value, str | int | float | list | tuple) else repr(value)
    return text if len(text) <= 80 else f"{text[:76]} ..."


def one_of(value: object, options: list[str]) -> str:
    """ "expected one of …" with the option closest to the value."""
    near = difflib.get_close_matches(str(value), options, n=1)
    return f"expected one of {', '.join(options)}" + (f"; did you mean {near[0]}?" if near else "")


def expected_type(annotation: TypeHint, otherwise: str = "another value") -> str:
    """The expected type in words, such as "a whole number or text in a list"."""
    words: dict[TypeHint, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    names = [words[value_type] for value_type in words if value_type in plain_types(annotation)]
    listed = get_origin(annotation) is tuple
    return (" or ".join(names) + (" in a list" if listed else "")) if names else otherwise


def split_commas(text: str) -> list[Toml]:
    """Split at commas; `\\,` is a comma inside an item. A TOML list is used as it is."""
    listed = from_toml(text) if text.startswith("[") else None
    if isinstance(listed, list):  # a glob such as [ab].txt is not a list
        return listed
    parts = [part.replace("\\,", ",") for part in re.split(r"(?<!\\),", text)] if text else []
    if not all(parts):
        raise ValueError(f"{text!r} has nothing on one side of a comma; write a comma inside a name as \\,")
    return parts
