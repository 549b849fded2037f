"""The schema of settings as one list of fields: explanations, shell completion and the tables of the docs read it."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from .family import family_of
from .meanings import meaning_of, meaning_of_kind
from .merge import Setting, expected_type, groups_in, kind_of, settings_of
from .registry import FAMILIES, TASKS
from .run import Run
from .task_settings import metrics_of

BOUNDS = {"gt": "more than", "ge": "at least", "lt": "less than", "le": "at most"}
Types = Mapping[str, type]  # of the sections that depend on other settings, by dotted key


class SchemaField(NamedTuple):
    """One setting: its dotted key, its place in a group, and the kinds of a slot whose kind it is."""

    key: str
    group: type
    name: str
    setting: Setting
    kinds: tuple[type, ...] = ()

    @property
    def meaning(self) -> str:
        """What it means."""
        return meaning_of(self.group, self.name)

    @property
    def default(self) -> Any:
        """Its default; of the kind of a slot the name of the kind."""
        return getattr(self.setting.default, "kind", None) if self.kinds else self.setting.default

    @property
    def options(self) -> dict[str, str]:
        """The values that it may have, with what they are; empty if there are more than names."""
        if self.kinds:
            return {str(kind_of(kind)): meaning_of_kind(kind) for kind in self.kinds}
        annotation = self.setting.annotation
        if annotation is bool:
            return {"true": "", "false": ""}
        return {str(option): "" for option in get_args(annotation)} if get_origin(annotation) is Literal else {}

    def describe_range(self) -> str:
        """Its type and bounds, or its options, in words."""
        if self.setting.annotation is not bool and (options := self.options):
            return f"one of {', '.join(options)}"
        fields = getattr(self.group, "model_fields", {})
        metadata = list(fields[self.name].metadata) if self.name in fields else []
        annotation = self.setting.annotation
        while get_origin(annotation) is Annotated:
            annotation, *more = get_args(annotation)
            metadata += more
        bounds = [f"{words} {bound:g}" for name, words in BOUNDS.items() for bound in _bounds(metadata, name)]
        return ", ".join([expected_type(annotation, "any value"), *bounds])


def schema_of(group: type, types: Types, prefix: str = "") -> Iterator[SchemaField]:
    """The fields of a group and of the groups in it; a slot has those of all its kinds, unless `types` names one."""
    for name, setting in settings_of(group).items():
        key, groups = f"{prefix}{name}", groups_in(setting.annotation)
        if not groups and key not in types:
            yield SchemaField(key, group, name, setting)
            continue
        if kinds := tuple(kind for kind in groups if _is_kind(kind)):
            yield SchemaField(f"{key}.kind", group, name, setting, kinds)
        for inner in [types[key]] if key in types else groups:
            yield from (field for field in schema_of(inner, types, f"{key}.") if not kinds or field.name != "kind")


def schema_of_run(run: Run) -> dict[str, SchemaField]:
    """The fields that a run has, by key."""
    return {field.key: field for field in schema_of(Run, dict(_types_in(run)))}


def choices_of_run(run: Run) -> dict[str, list[str]]:
    """The values of settings that name registered parts."""
    return {
        "task": list(TASKS),
        "model.family": list(FAMILIES),
        "model.size": list(family_of(run.model.family).SIZES),
        "train.metric": list(metrics_of(run.task, run.train)),
    }


def _is_kind(group: type) -> bool:
    """True for a kind of a slot; False for a group whose `kind` chooses between several ways."""
    return "kind" in (settings := settings_of(group)) and len(get_args(settings["kind"].annotation)) == 1


def _types_in(group: Any, prefix: str = "") -> Iterator[tuple[str, type]]:
    """The type of every group in a group, by dotted key."""
    for name, setting in settings_of(type(group)).items():
        value = getattr(group, name)
        if groups_in(setting.annotation) or groups_in(type(value)):
            yield f"{prefix}{name}", type(value)
            yield from _types_in(value, f"{prefix}{name}.")


def _bounds(metadata: list[Any], name: str) -> Iterator[float]:
    for constraint in metadata:
        inner = getattr(constraint, "metadata", [])  # of a pydantic Field
        yield from (
            value for part in [constraint, *inner] if isinstance(value := getattr(part, name, None), int | float)
        )
