"""Layers of settings laid over one another, checked against the models that hold them: the machinery below `config`."""

import dataclasses
import difflib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ..errors import UserError
from .renamed import renamed_key


class Setting(NamedTuple):
    annotation: Any
    default: Any = None


def settings_of(group: Any) -> dict[str, Setting]:
    """The fields of a pydantic model or of a dataclass."""
    if issubclass(group, BaseModel):
        return {name: Setting(field.annotation, field.default) for name, field in group.model_fields.items()}
    hints = get_type_hints(group, include_extras=True)
    return {field.name: Setting(hints[field.name], field.default) for field in dataclasses.fields(group)}


def groups_in(annotation: Any) -> list[type]:
    """The models or dataclasses that a field may hold: none for a plain value, several for a slot."""
    if get_origin(annotation) is Annotated:
        return groups_in(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [group for part in get_args(annotation) for group in groups_in(part)]
    if not isinstance(annotation, type):
        return []
    return [annotation] if issubclass(annotation, BaseModel) or dataclasses.is_dataclass(annotation) else []


def kind_of(group: type) -> Any:
    return settings_of(group)["kind"].default if "kind" in settings_of(group) else None


def with_kind(value: Any, setting: Setting) -> Any:
    """`"cosine"` becomes `{"kind": "cosine"}`; settings without a kind belong to the default one."""
    if not any(kind_of(group) for group in groups_in(setting.annotation)):
        return value
    if isinstance(value, str):
        return {"kind": value}
    if isinstance(value, Mapping) and "kind" not in value and hasattr(setting.default, "kind"):
        return {"kind": setting.default.kind, **value}
    return value


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and their values, from dicts that are nested, dotted or both."""
    for name, value in values.items():
        if isinstance(value, BaseModel):
            value = value.model_dump()
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = dataclasses.asdict(value)
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    for key, value in values.items():
        *groups, name = key.split(".")
        inner = whole
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[name] = value
    return whole


class SettingsDraft:
    """Values by dotted key with their origins. Mistakes are collected, to be told together."""

    def __init__(self, root: type[BaseModel], swapped: Mapping[str, type]):
        """`swapped` names the class of a field whose annotation cannot: the model, whose family is itself a setting."""
        self.values: dict[str, Any] = {}
        self.origin: dict[str, str] = {}
        self.mistakes: list[str] = []
        self.leaves: dict[str, Any] = {}  # dotted key -> annotation
        self.groups: dict[str, Setting] = {}  # dotted key of a section or slot
        self._learn(root, "", swapped)

    def _learn(self, group: type, prefix: str, swapped: Mapping[str, type]) -> None:
        for name, setting in settings_of(group).items():
            key, setting = f"{prefix}{name}", setting._replace(annotation=swapped.get(name, setting.annotation))
            inner = groups_in(setting.annotation)
            if inner:
                self.groups[key] = setting
            else:  # a setting that several kinds of one slot share is written as any of them allows
                self.leaves[key] = self.leaves[key] | setting.annotation if key in self.leaves else setting.annotation
            for each in inner:
                self._learn(each, f"{key}.", {})

    def lay(self, where: str, values: Mapping[str, Any]) -> None:
        """Put values over those that are there. Another kind in a slot sweeps away the settings of the former kind."""
        layer = dict(self._written_out(values))
        for slot, setting in self.groups.items():
            kind = layer.get(f"{slot}.kind")
            if kind is not None and kind != self._kind(slot) and len(groups_in(setting.annotation)) > 1:
                self._sweep(slot)
        for key, value in layer.items():
            mistake = self._refusal(key, value)
            if mistake:
                self.mistakes.append(mistake + blame(where))
            else:
                self.values[key], self.origin[key] = value, where

    def _sweep(self, group: str) -> None:
        for key in [key for key in self.values if key.startswith(f"{group}.")]:
            del self.values[key], self.origin[key]

    def _written_out(self, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        for key, value in flat(values):
            if isinstance(value, str) and key not in self.groups:
                value = typed(value, self.leaves.get(key, str))
            elif isinstance(value, str):
                table = from_toml(value) if value.startswith("{") else None
                value = table if isinstance(table, dict) else with_kind(value, self.groups[key])
            yield from flat({key: value})

    def _refusal(self, key: str, value: Any) -> str | None:
        if key in self.groups:
            inside = [name for name in self.leaves if name.startswith(f"{key}.")]
            return f"{key} is a group of settings, not {shown(value)}; set {', '.join(inside[:3])} or another of it"
        if key not in self.leaves:
            return f"{key} is not a key; {self._nearest(key)}"
        if isinstance(value, bool) and bool not in plain_types(self.leaves[key]):
            return f"{key} is {shown(value)}; expected {expected(self.leaves[key])}"
        return None

    def _nearest(self, key: str) -> str:
        keys = [*self.leaves, *self.groups]
        if (new := renamed_key(key)) != key and new in keys:
            return f"it is now called {new}"
        near = [name for name in keys if name.endswith(f".{key.rpartition('.')[2]}")]
        near = difflib.get_close_matches(key, keys, n=1) or difflib.get_close_matches(key, near, n=1, cutoff=0.0)
        return f"did you mean {near[0]}?" if near else "`regard train RECIPE --show` lists the keys"

    def _kind(self, slot: str) -> Any:
        return self.values.get(f"{slot}.kind", getattr(self.groups[slot].default, "kind", None))

    def settle(self) -> dict[str, Any]:
        """The nested values, without the settings that belong to another kind of their slot (those are mistakes)."""
        for slot, setting in self.groups.items():
            kinds = {kind_of(group): settings_of(group) for group in groups_in(setting.annotation)}
            kind = self._kind(slot)
            for key in [key for key in self.values if key.startswith(f"{slot}.") and len(kinds) > 1 and kind in kinds]:
                if key[len(slot) + 1 :].partition(".")[0] not in kinds[kind]:
                    others = ", ".join(name for name in kinds[kind] if name != "kind") or "no settings"
                    self.mistakes.append(f"{key} does not belong to {slot}={kind}, which has {others}")
                    del self.values[key]
        return nested(self.values)

    def explain(self, error: ValidationError, prefix: str = "") -> None:
        """Add the mistakes that pydantic found, as sentences."""
        for each in error.errors(include_url=False):
            key = prefix
            for part in map(str, each["loc"]):  # pydantic puts the kind of a slot and list positions into the path
                longer = f"{key}.{part}".lstrip(".")
                key = longer if longer in self.leaves or longer in self.groups else key
            inner = each.get("ctx", {}).get("error")
            if isinstance(inner, ValidationError):
                self.explain(inner, key)
            else:
                self.mistakes.append(self._sentence(key, each) + blame(self.origin.get(key, "")))

    def _sentence(self, key: str, error: ErrorDetails) -> str:
        kind, bounds = error["type"], error.get("ctx", {})
        if kind == "value_error":  # the sentence of a validator; one about a single value need not name its key
            sentence = str(bounds["error"])
            return sentence if key not in self.leaves or key in sentence else f"{key}: {sentence}"
        if kind == "missing":
            return f"{key} is missing; give it a value"
        if kind.startswith("union_tag"):
            tags = [str(kind_of(group)) for group in groups_in(self.groups[key].annotation)]
            tag = bounds.get("tag")
            return f"{key}.kind is {shown(tag)}; {one_of(tag, tags)}"
        for bound, words in {"gt": "more than", "ge": "at least", "lt": "less than", "le": "at most"}.items():
            if bound in bounds:
                return f"{key} is {shown(error['input'])}; expected {words} {bounds[bound]:g}"
        options = [str(option) for option in get_args(self.leaves.get(key)) if isinstance(option, str)]
        if kind == "literal_error" and options:
            return f"{key} is {shown(error['input'])}; {one_of(error['input'], options)}"
        return f"{key} is {shown(error['input'])}; expected {expected(self.leaves.get(key), error['msg'])}"

    def refuse(self) -> None:
        """Raise the collected mistakes, one line each, if there are any."""
        if self.mistakes:
            raise UserError("\n".join(dict.fromkeys(self.mistakes)))


def blame(where: str) -> str:
    """Where it is written, unless that is plain to see."""
    return "" if where in ("", "command line") else f" (in {where})"


def plain_types(annotation: Any) -> set[Any]:
    """The types at the bottom of an annotation: {str} for tuple[tuple[str, ...], ...], {int, None} for int | None."""
    if get_origin(annotation) is Literal:
        return {type(option) for option in get_args(annotation)}
    if get_origin(annotation) is Annotated:
        return plain_types(get_args(annotation)[0])
    return {kind for part in get_args(annotation) for kind in plain_types(part)} - {Ellipsis} or {annotation}


def typed(text: str, annotation: Any) -> Any:
    """A value written as text, by the type that is wanted; text that cannot be read stays text, to be refused later."""
    kinds = plain_types(annotation)
    if kinds & {str, Any}:
        return text
    if kinds & {bool} and text.lower() in ("true", "false"):
        return text.lower() == "true"
    value = from_toml(text)
    if value is None and get_origin(annotation) is tuple:
        value = from_toml(f"[{text}]")
    return text if value is None else value


def from_toml(text: str) -> Any:
    """The value, or None where the text is not one."""
    try:
        table = tomllib.loads(f"value = {text}")
    except ValueError:  # not only TOML's own: an integer of thousands of digits, too
        return None
    return table["value"] if len(table) == 1 else None


def to_toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(to_toml, value))}]"
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def shown(value: Any) -> str:
    """A value as it stands in a message."""
    text = to_toml(value) if isinstance(value, str | int | float | list | tuple) else repr(value)
    return text if len(text) <= 80 else f"{text[:76]} ..."


def one_of(value: Any, options: list[str]) -> str:
    near = difflib.get_close_matches(str(value), options, n=1)
    return f"expected one of {', '.join(options)}" + (f"; did you mean {near[0]}?" if near else "")


def expected(annotation: Any, otherwise: str = "another value") -> str:
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    found = [words[kind] for kind in words if kind in plain_types(annotation)]
    listed = get_origin(annotation) is tuple
    return (" or ".join(found) + (" in a list" if listed else "")) if found else otherwise


def split(text: str) -> list[Any]:
    """Cut at commas; `\\,` is a comma. A TOML list is taken as it is."""
    listed = from_toml(text) if text.startswith("[") else None
    if isinstance(listed, list):  # else it may be a glob such as [ab].txt
        return listed
    parts = [part.replace("\\,", ",") for part in re.split(r"(?<!\\),", text)] if text else []
    if not all(parts):
        raise ValueError(f"{text!r} has nothing on one side of a comma; a comma that belongs to a name is written \\,")
    return parts
