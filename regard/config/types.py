"""The types of settings: a group, numbers within bounds, lists of strings and of token numbers."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from .merge import settings_of, split_commas, with_kind


class Base(BaseModel):
    """A group of settings. A union of groups with different `kind` is a slot; a plain string there names the kind."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    if not TYPE_CHECKING:

        def __class_getitem__(cls, types: Any) -> type:
            """The class itself: only type checkers know the types of the sections of a run."""
            return cls

    @model_validator(mode="before")
    @classmethod
    def _fill_kinds(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        settings = settings_of(cls)
        return {name: with_kind(value, settings[name]) if name in settings else value for name, value in values.items()}


def as_strings(value: Any) -> Any:
    """A list of strings from text with commas, or from a list of strings and numbers."""
    value = split_commas(value) if isinstance(value, str) else value
    if not isinstance(value, list | tuple):
        return value
    return tuple(str(entry) if isinstance(entry, int) else entry for entry in value)


def _ids(value: Any) -> Any:
    return () if value is None else (value,) if isinstance(value, int) else value


Count: TypeAlias = Annotated[int, Field(ge=0)]
Positive: TypeAlias = Annotated[int, Field(ge=1)]
Threads: TypeAlias = Annotated[int, Field(ge=0, le=1024)]
Share: TypeAlias = Annotated[float, Field(ge=0, lt=1)]
Ids: TypeAlias = Annotated[tuple[Count, ...], BeforeValidator(_ids)]
"""Numbers of tokens; a single number is a list of one."""
Strings: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(as_strings)]
