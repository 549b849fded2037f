"""The one reader and writer of run.json. Older formats are translated when they are read."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import __version__
from .config.renamed import RENAMED_RECIPES, renamed_settings
from .errors import UserError
from .files import read_json, write_json

FORMAT = 2  # of run.json; format 1 had other names for some settings
FILE = "run.json"


def is_run(folder: Path) -> bool:
    """True if the folder holds a run of regard."""
    return (folder / FILE).is_file()


def read_run(folder: Path) -> dict[str, Any]:
    """The content of run.json, with today's names whatever its format."""
    about = read_json(folder / FILE)
    if not isinstance(about, dict) or "config" not in about:
        raise UserError(f"{folder / FILE} is not complete; restore it, or train the run again")
    if about.get("format") == FORMAT:
        return about
    if about.get("format") == 1:
        return _from_format_1(about)
    raise UserError(
        f"{folder} has format {about.get('format')!r} and this regard reads 1 and {FORMAT}; "
        "use the version that wrote it"
    )


def write_run(folder: Path, about: Mapping[str, Any]) -> None:
    """Write run.json with the current format number and versions of regard and torch."""
    import torch

    versions = {"regard": __version__, "torch": torch.__version__}
    write_json(folder / FILE, {"format": FORMAT, "versions": versions} | _without_format(about))


def update_run(folder: Path, **changes: Any) -> None:
    """Change entries of run.json; the rest stays, including the versions that created the run."""
    about = read_json(folder / FILE)
    about = _from_format_1(about) if about.get("format") == 1 else about
    write_json(folder / FILE, about | changes)


def _without_format(about: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in about.items() if key != "format"}


def _from_format_1(about: dict[str, Any]) -> dict[str, Any]:
    recipe = about.get("recipe")
    found = about | {"format": FORMAT}
    if isinstance(about.get("config"), dict):
        found["config"] = renamed_settings(about["config"])
    if recipe in RENAMED_RECIPES:
        found["recipe"] = RENAMED_RECIPES[recipe]
    if isinstance(about.get("origin"), dict):
        found["origin"] = renamed_settings(about["origin"], flat=True)
    return found
