"""Explain a setting: meaning, range, default. The comments of the recipes are the only source of meanings."""

import difflib
import re
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Annotated, Any, Literal, get_args, get_origin

from ..errors import UserError
from ..files import Json
from ..recipes import layers, recipe_names
from .merge import TypeHint, expected_type, flatten, format_value, groups_in, kind_of, settings_of
from .run import ResolvedRun

LINE = re.compile(r"(?:# )?(?P<key>[\w.]+) = (?P<value>\"[^\"]*\"|[^#]*)(?:# (?P<comment>.*))?")
MORE = re.compile(r"\s{8,}# ?(.*)")
COMPLETE = ("translate", "language")  # these recipes document every key of [train] and [tokenizer]
BOUNDS = {"gt": "more than", "ge": "at least", "lt": "less than", "le": "at most"}


def explain_setting(recipe: str, resolved: ResolvedRun, key: str) -> list[dict[str, Json]]:
    """A record of the setting `key`, or of every setting of the group `key`: meaning, range, default, value, origin."""
    values = dict(flatten(resolved.run.dump()))
    keys = [name for name in values if name == key or name.startswith(f"{key}.")]
    if not keys:
        groups = {name[: place.start()] for name in values for place in re.finditer(r"\.", name)}
        candidates = [*values, *sorted(groups)]
        near = [name for name in candidates if name.endswith(f".{key.rpartition('.')[2]}")]
        near = difflib.get_close_matches(key, candidates, n=1) or near[:1]
        hint = f"did you mean {near[0]}?" if near else f"`regard train {recipe} --show` lists the keys"
        raise UserError(f"{key} is not a key; {hint}")
    comments = _comments(recipe)
    return [_record(resolved, name, values[name], comments) for name in keys]


def format_explanation(records: list[dict[str, Json]]) -> str:
    """The records as text."""
    blocks = []
    for record in records:
        lines = [f"{record['key']}: {record['meaning'] or 'not described'}", f"  range    {record['range']}"]
        lines += [f"  default  {format_value(record['default'])}"]
        lines += [f"  value    {format_value(record['value'])} ({record['origin']})"]
        blocks.append("\n".join(lines))
    return "\n".join(blocks)


def _record(resolved: ResolvedRun, key: str, value: Json, comments: Mapping[str, str]) -> dict[str, Json]:
    owner: Any = resolved.run
    slot: Any = None
    *path, name = key.split(".")
    for part in path:
        slot, owner = settings_of(type(owner)).get(part), getattr(owner, part)
    setting = settings_of(type(owner))[name]
    kinds = [str(kind_of(group)) for group in groups_in(slot.annotation)] if name == "kind" and slot else []
    beside = ".".join([*path, "kind"])  # the settings of a slot are documented beside its kind
    default = getattr(slot.default, "kind", setting.default) if kinds else setting.default
    plain = default if isinstance(default, str | int | float | bool | list | tuple | None) else value
    return {
        "key": key,
        "meaning": comments.get(key) or comments.get(beside, ""),
        "range": f"one of {', '.join(kinds)}" if kinds else describe_range(setting.annotation, _metadata(owner, name)),
        "default": list(plain) if isinstance(plain, tuple) else plain,
        "value": value,
        "origin": resolved.origin.get(key, "default"),
    }


def _metadata(group: Any, name: str) -> list[Any]:
    fields = getattr(type(group), "model_fields", {})
    return list(fields[name].metadata) if name in fields else []


def describe_range(annotation: TypeHint, metadata: list[Any]) -> str:
    """The type and the bounds of a setting, in words."""
    while get_origin(annotation) is Annotated:
        annotation, *more = get_args(annotation)
        metadata = [*metadata, *more]
    if get_origin(annotation) is Literal:
        return "one of " + ", ".join(map(str, get_args(annotation)))
    bounds = [f"{words} {bound:g}" for name, words in BOUNDS.items() for bound in _bounds(metadata, name)]
    return ", ".join([expected_type(annotation, "any value"), *bounds])


def _bounds(metadata: list[Any], name: str) -> Iterator[float]:
    for constraint in metadata:
        inner = getattr(constraint, "metadata", [])  # of a pydantic Field
        yield from (
            value for part in [constraint, *inner] if isinstance(value := getattr(part, name, None), int | float)
        )


def _comments(recipe: str) -> dict[str, str]:
    """The comment of every key: from the recipe and its bases, else from the recipes that document all keys."""
    packaged = recipe_names()
    recipes = [where.removeprefix("recipe ") for where, _ in reversed(layers(recipe))]
    merged: dict[str, str] = {}
    choices: dict[str, str] = {}
    for name in [*(name for name in recipes if name in packaged), *COMPLETE, *packaged]:
        text = resources.files("regard.recipes").joinpath(f"{name}.toml").read_text(encoding="utf-8")
        comments = dict(_read_comments(text))
        if name not in COMPLETE:  # comments of other recipes explain their choice, unless the key is only theirs
            choices = {
                key: text for key, text in comments.items() if key.startswith(("train.", "tokenizer."))
            } | choices
            comments = {key: text for key, text in comments.items() if key not in choices}
        merged = comments | merged
    return choices | merged


def _read_comments(text: str) -> Iterator[tuple[str, str]]:
    section, key, parts = "", "", list[str]()
    for line in [*text.splitlines(), ""]:
        if key and (more := MORE.fullmatch(line)):
            parts.append(more[1])
            continue
        if key and parts:
            yield key, " ".join(parts)
        key, parts = "", []
        if re.fullmatch(r"\[[\w.]+\]", line):
            section = f"{line[1:-1]}."
        elif match := LINE.fullmatch(line):
            key, parts = section + match["key"], [match["comment"]] if match["comment"] else []
