"""Explain a setting: meaning, range, default, value, origin."""

import difflib
import re

from ..errors import UserError
from ..files import Json, JsonObject
from .merge import flatten, format_value
from .renamed import moved_key
from .run import ResolvedRun
from .schema import SchemaField, choices_of_run, schema_of_run


def explain_setting(recipe: str, resolved: ResolvedRun, key: str) -> list[JsonObject]:
    """A record of the setting `key`, or of every setting of the group `key`; `all` is every setting.

    It has meaning, range, default, value and origin, and what the kinds of a slot are.
    """
    values = dict(flatten(resolved.run.dump()))
    key = moved_key(key, values)
    keys = [name for name in values if key in (name, "all") or name.startswith(f"{key}.")]
    if not keys:
        groups = {name[: place.start()] for name in values for place in re.finditer(r"\.", name)}
        candidates = [*values, *sorted(groups)]
        near = [name for name in candidates if name.endswith(f".{key.rpartition('.')[2]}")]
        near = difflib.get_close_matches(key, candidates, n=1) or near[:1]
        hint = f"did you mean {near[0]}?" if near else f"`regard train {recipe} --show all` lists the keys"
        raise UserError(f"{key} is not a key; {hint}")
    schema, choices = schema_of_run(resolved.run), choices_of_run(resolved.run)
    return [_record(resolved, schema[name], values[name], choices.get(name, [])) for name in keys]


def format_explanation(records: list[JsonObject]) -> str:
    """The records as text."""
    blocks = []
    for record in records:
        lines = [f"{record['key']}: {record['meaning'] or 'not described'}", f"  range    {record['range']}"]
        lines += [f"           {name}: {about}" for name, about in record.get("kinds", {}).items() if about]
        lines += [f"  default  {format_value(record['default'])}"]
        lines += [f"  value    {format_value(record['value'])} ({record['origin']})"]
        blocks.append("\n".join(lines))
    return "\n".join(blocks)


def _record(resolved: ResolvedRun, field: SchemaField, value: Json, choices: list[str]) -> JsonObject:
    default = field.default
    plain = default if isinstance(default, str | int | float | bool | list | tuple | None) else value
    return {
        "key": field.key,
        "meaning": field.meaning,
        "range": f"one of {', '.join(choices)}" if choices else field.describe_range(),
        **({"kinds": field.options} if field.kinds else {}),
        "default": list(plain) if isinstance(plain, tuple) else plain,
        "value": value,
        "origin": resolved.origin.get(field.key, "default"),
    }
