"""The fields of every request and result, and their JSON."""

import json
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from pydantic import ConfigDict, TypeAdapter

from ..files import JsonObject
from ..html import html_table

FORBID_UNKNOWN = ConfigDict(extra="forbid")  # pydantic ignores unknown fields of dataclasses otherwise


@dataclass(frozen=True, kw_only=True)
class Request:
    """The fields of every request."""

    __pydantic_config__: ClassVar[ConfigDict] = FORBID_UNKNOWN
    adapter: str | None = None  # one of the tuned runs that were loaded over a base; None: the selected one


@dataclass(frozen=True, kw_only=True)
class Result:
    """The fields of every result."""

    __pydantic_config__: ClassVar[ConfigDict] = FORBID_UNKNOWN
    notices: tuple[str, ...] = ()  # sentences for the user, such as that a text was cut

    def _repr_html_(self) -> str:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        filled = {name: value for name, value in values.items() if value not in (None, ())}
        return html_table(type(self).__name__, filled)


ADAPTERS: dict[type, TypeAdapter[Any]] = {}


def message_adapter(message: type) -> TypeAdapter[Any]:
    """Reads and writes the JSON of a request or a result type."""
    if message not in ADAPTERS:
        ADAPTERS[message] = TypeAdapter(message)
    return ADAPTERS[message]


def to_json(result: Result) -> JsonObject:
    """A result as a JSON object. There is no other form."""
    record: JsonObject = message_adapter(type(result)).dump_python(result, mode="json")
    for name in (field.name for field in fields(Result)):  # last, as people read them
        record[name] = record.pop(name)
    return record


def message_schema(message: type) -> JsonObject:
    """The JSON schema of a request, which is read, or of a result, which is written."""
    mode = "validation" if issubclass(message, Request) else "serialization"
    schema: JsonObject = message_adapter(message).json_schema(mode=mode)  # type: ignore[arg-type]
    return json.loads(json.dumps(schema))  # type: ignore[no-any-return]
