"""Recipes: TOML files of settings, packaged here or given by path. A recipe may inherit from a `base`.

Their comments say why they choose a value; what a setting means stands beside its field (`config/meanings.py`).
"""

import difflib
import tomllib
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from ..errors import UserError
from ..files import Toml


def recipe_names() -> list[str]:
    """The names of the packaged recipes, sorted."""
    inside = resources.files(__name__).iterdir()
    return sorted(file.name.removesuffix(".toml") for file in inside if file.name.endswith(".toml"))


def stage_names() -> list[str]:
    """The names of the packaged recipes of several stages, sorted."""
    inside = resources.files(__name__).joinpath("stages").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in inside if file.name.endswith(".toml"))


def locate_stages(recipe: str) -> Traversable:
    """The file of a recipe of several stages: a packaged one, or one given by its path."""
    if recipe in stage_names():
        return resources.files(__name__).joinpath("stages", f"{recipe}.toml")
    return locate(recipe, Path())


def header(name: str) -> str:
    """The description of a packaged recipe: its first comment line."""
    folder = "stages/" if name in stage_names() else ""
    first = resources.files(__name__).joinpath(f"{folder}{name}.toml").read_text(encoding="utf-8").partition("\n")[0]
    return first.lstrip("# ").rstrip()


def layers(recipe: str) -> list[tuple[str, dict[str, Toml]]]:
    """(origin, settings) of a recipe and its bases, the lowest base first."""
    chain: list[tuple[str, dict[str, Toml]]] = []
    name, folder, seen = recipe, Path(), list[Traversable]()
    while True:
        file = locate(name, folder)
        if file in seen:
            raise UserError(f"recipe {recipe} is its own base, through base = {name!r}; remove that line")
        seen.append(file)
        values = load_recipe(file)
        base = values.pop("base", None)
        chain.insert(0, (f"recipe {name}", values))
        if base is None:
            return chain
        if not isinstance(base, str):
            raise UserError(f"base in recipe {name} is {base!r}; expected the name or path of one recipe")
        name, folder = base, file.parent if isinstance(file, Path) else folder


def locate(name: str, folder: Path) -> Traversable:
    """The file of a recipe. A path is relative to `folder`, that of the recipe that names it as base."""
    if name.endswith(".toml") or "/" in name or "\\" in name:
        path = folder / name
        if not path.is_file():
            raise UserError(f"recipe {path} is not a file; give a .toml file or one of {', '.join(recipe_names())}")
        return path.resolve()
    if name not in recipe_names():
        near = difflib.get_close_matches(name, recipe_names(), n=1)
        hint = (
            f"did you mean {near[0]}?"
            if near
            else f"give one of {', '.join(recipe_names())}, or the path of a .toml file"
        )
        raise UserError(f"there is no recipe {name!r}; {hint}")
    return resources.files(__name__).joinpath(f"{name}.toml")


def load_recipe(file: Traversable) -> dict[str, Toml]:
    """The settings in a recipe file."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{file} is not valid TOML: {error}; correct it") from error
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}; give a readable .toml file") from error
