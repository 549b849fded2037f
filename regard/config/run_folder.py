"""The only reader and writer of run.json. Older formats are translated when they are read."""

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from .. import __version__
from ..errors import UserError
from ..files import Json, JsonMapping, JsonObject, read_json, write_json
from .merge import flatten, nest
from .renamed import RENAMED_RECIPES, renamed_settings

FORMAT = 3  # formats 1 and 2 had other names for some settings
FILE = "run.json"


def is_run(folder: Path) -> bool:
    """True if the folder holds a run of regard."""
    return (folder / FILE).is_file()


def read_run(folder: Path) -> JsonObject:
    """The content of run.json in the current format; older formats are converted."""
    about = read_json(folder / FILE)
    if "config" not in about:
        raise UserError(f"{folder / FILE} is not complete: it has no config; restore it, or train the run again")
    if about.get("format") in (1, 2):
        about = _from_former(about)
    if about.get("format") == FORMAT:
        if "processors" not in about:
            return about | {"processors": _former_processors(folder, about["config"])}
        processors = check_entries(about["processors"], folder / FILE)
        return _with_former_defaults(about) | {"processors": processors}
    raise UserError(
        f"{folder} has format {about.get('format')!r} and this version of regard reads 1 to {FORMAT}; "
        "use the version that wrote it"
    )


def write_run(folder: Path, about: JsonMapping) -> None:
    """Write run.json with the current format number and the versions of regard and torch."""
    versions = {"regard": __version__, "torch": version("torch")}
    rest = {key: value for key, value in about.items() if key != "format"}
    write_json(folder / FILE, {"format": FORMAT, "versions": versions, **rest})


def update_run(folder: Path, **changes: Json) -> None:
    """Change entries of run.json; the rest stays, including the versions that created the run."""
    write_json(folder / FILE, read_run(folder) | changes)


def check_entries(entries: Json, where: Path) -> dict[str, dict[str, str]]:
    """The list of processors by field, each with its kind and the name of its file; anything else raises UserError."""
    checked: dict[str, dict[str, str]] = {}
    for field, entry in entries.items() if isinstance(entries, Mapping) else [("every field", entries)]:
        for key in ("kind", "file"):
            if (
                not isinstance(entry, Mapping)
                or not isinstance(value := entry.get(key), str)
                or Path(value).name != value
            ):
                raise UserError(f"{where}: the processor of {field} has no valid {key}; restore the file")
            checked.setdefault(field, {})[key] = value
    return checked


def _with_former_defaults(about: JsonObject) -> JsonObject:
    """The content with what settings meant that the version lacked which wrote it, where their default differs."""
    data = about["config"].get("data")
    if not isinstance(data, dict) or "flip" not in data:  # no images
        return about
    return about | {"config": about["config"] | {"data": {"background": "none", **data}}}


def _former_processors(folder: Path, config: JsonMapping) -> dict[str, dict[str, str]]:
    """The processors of a run that does not list them, by the file names of its task."""
    task, text = config.get("task"), {"kind": "text", "file": "tokenizer.json"}
    if task not in ("translate", "text2text", "spans"):
        labels = {"classify": ("label", "labels"), "tag": ("tags", "tags")}
        field, kind = labels.get(str(task), ("", ""))
        return {"text": text} | ({field: {"kind": kind, "file": "labels.json"}} if field else {})
    fields = ("source", "target")
    separate = not config.get("tokenizer", {}).get("joint", True) or (folder / "source.tokenizer.json").is_file()
    return {name: {"kind": "text", "file": f"{name}.tokenizer.json"} if separate else text for name in fields}


def _from_former(about: JsonObject) -> JsonObject:
    """The content of a run.json of format 1 or 2 in the current format."""
    from .run import without_foreign  # takes 30 ms, which current runs do not need here

    former, current = int(about["format"]), about | {"format": FORMAT}
    former_keys: dict[str, str] = {}
    if isinstance(about.get("config"), dict):
        settings, former_keys = without_foreign(renamed_settings(dict(flatten(about["config"])), former))
        current["config"] = nest(settings)
    if isinstance(about.get("origin"), dict):
        recipes = {f"recipe {old}": f"recipe {new}" for old, new in RENAMED_RECIPES.items()}
        origin = renamed_settings(about["origin"], former)
        origins = {key: origin[old] for key, old in former_keys.items() if old in origin}
        current["origin"] = {key: recipes.get(where, where) for key, where in origins.items()}
    if former == 1 and isinstance(start := about.get("start"), dict):
        current["start"] = {"notes" if key == "told" else key: value for key, value in start.items()}
    if (recipe := about.get("recipe")) in RENAMED_RECIPES:
        current["recipe"] = RENAMED_RECIPES[recipe]
    return current
