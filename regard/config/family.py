"""What settings need of a family, and families by name."""

from collections.abc import Callable, Mapping
from typing import Protocol, cast

from .merge import Settings, format_value, one_of
from .registry import FAMILIES, load_module
from .types import Base


class FamilySettings(Protocol):
    """What settings need of the module of a family. `families.protocols.Family` has all of it."""

    @property
    def Config(self) -> type[Base]:
        """The settings of its models."""

    @property
    def SIZES(self) -> Mapping[str, Settings]:
        """Settings by the name of a size."""

    @property
    def SPEC(self) -> "StartSpec":
        """How its models start from others."""


class StartSpec(Protocol):
    """What settings need of the ModelSpec of a family."""

    @property
    def settings(self) -> Mapping[str, Mapping[str, type[Base]]]:
        """The types of settings that its models replace, by task and section."""

    @property
    def start_settings(self) -> Callable[[str, Settings], Settings]:
        """Model settings, by dotted key, that another head needs over those of the start that has these settings."""


def family_of(name: object) -> FamilySettings:
    """The settings of a family by name."""
    if name is None:
        raise ValueError(f"model.family is missing; {one_of(name, list(FAMILIES))}")
    if not isinstance(name, str) or name not in FAMILIES:
        raise ValueError(f"model.family is {format_value(name)}; {one_of(name, list(FAMILIES))}")
    return cast(FamilySettings, load_module(FAMILIES[name]))
