"""The settings of a run as TOML with their origins: what differs from the defaults first."""

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

from pydantic import ValidationError

from .family import family_of
from .merge import flatten, to_toml
from .run import Run

FROM_DATA = frozenset(  # keys that a task sets when it has read the data, unless they are given
    f"model.{name}" for name in ("vocab", "target_vocab", "head", "labels", "next_sentence", "inputs", "bins")
)
CHOOSING = ("task", "model.family", "model.size")  # settings on which the defaults of others depend
FILES = ("data.train", "data.valid", "data.test")  # a recipe that has them must name files


def show_settings(run: Run, origin: Mapping[str, str], everything: bool = False) -> str:
    """TOML lines with the origin of each as a comment; as a file they are a recipe of the same run.

    Settings that have their defaults follow with `everything`; else their number does.
    """
    values = {key: value for key, value in flatten(run.dump()) if value is not None}
    differing = _differing(run, values, origin)
    others = [key for key in values if key not in differing]
    unread = [key for key in others if key in FROM_DATA]
    lines = {key: f"{key} = {to_toml(value)}" for key, value in values.items()}
    lines |= {key: f"# {lines[key]}" for key in FILES if key in others and not run.data.train}
    widest = max(len(line) for line in lines.values() if len(line) < 60)
    notes = {key: origin[key] for key in values} | {key: f"{origin[key]}; set by the data" for key in unread}
    commented = {key: f"{line:<{widest}}  # {notes[key]}" for key, line in lines.items()}
    blocks = _blocks([key for key in values if key in differing], commented)
    if everything:
        return "\n\n".join([*blocks, *_blocks(others, commented)])
    hint = f"# {len(others)} other settings have their defaults; --show all prints them, --explain KEY explains one"
    return "\n\n".join([*blocks, "\n".join([hint, *([f"# set by the data: {', '.join(unread)}"] if unread else [])])])


def _differing(run: Run, values: Mapping[str, Any], origin: Mapping[str, str]) -> set[str]:
    """The settings that a recipe, a size, `start` or the user chose, without those whose defaults a recipe repeats."""
    family: str = run.model.family
    of_size = dict(flatten({"model": family_of(family).SIZES.get(values.get("model.size", ""), {})}))
    defaults = _defaults(run.task, family)
    by_recipe = {key for key in values if origin[key].startswith("recipe") and key.count(".") < 2}  # not in slots
    repeated = {key for key in by_recipe if key not in of_size and defaults.get(key, ...) == values[key]}
    return {key for key in values if origin[key] != "default"}.difference(repeated).union({*CHOOSING} & values.keys())


def _defaults(task: str, family: str) -> dict[str, Any]:
    """The values of a run of which the task and the family alone are given."""
    try:
        return dict(flatten(Run.model_validate({"task": task, "model": {"family": family}}).dump()))
    except ValidationError:  # the model of a plugin needs settings
        return {}


def _blocks(keys: Iterable[str], lines: Mapping[str, str]) -> list[str]:
    """The lines of these keys, a block for each section."""
    sections = groupby(keys, key=lambda key: key.partition(".")[0] if "." in key else "")
    return ["\n".join(lines[key] for key in section) for _, section in sections]
