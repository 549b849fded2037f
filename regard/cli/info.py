"""Descriptions of run folders, and lists and explanations of recipes, families and settings."""

from pathlib import Path

from ..errors import UserError
from ..files import JsonObject, json_line


def describe_run(folder: Path) -> JsonObject:
    """A record of a run folder; weights are counted, not loaded."""
    from ..config.run_folder import is_run, read_run  # its settings take 30 ms, which completion and --help would wait

    if not is_run(folder):
        raise UserError(f"{folder} is not a run folder: it has no run.json; give one that `regard train` wrote")
    about = read_run(folder)
    config, start = about["config"], about.get("start") or {}
    model = config.get("model") or {}
    facts: JsonObject = {"run": str(folder), "task": config.get("task") or "fit", "recipe": about.get("recipe")}
    facts |= {"module": about["module"]} if "module" in about else {}
    facts |= {"family": model.get("family"), "size": model.get("size"), "parameters": _parameters(folder)}
    data = config.get("data") or {}
    facts["data"] = {name: data[name] for name in ("train", "valid", "test") if data.get(name)} or None
    facts |= {"start": start.get("folder"), "tuning": None if not config.get("tune") else config["tune"]["kind"]}
    facts["processors"] = {field: entry["kind"] for field, entry in about["processors"].items()}
    facts |= _history(folder) | {"weights": about.get("weights"), "versions": about.get("versions")}
    files = [path for path in folder.rglob("*") if path.is_file()]
    return facts | {"bytes": sum(path.stat().st_size for path in files), "format": about["format"]}


def _parameters(folder: Path) -> int | None:
    """The number of stored values; None before the first weights are saved."""
    from math import prod

    from safetensors import safe_open

    path = folder / "model.safetensors"
    if not path.is_file():
        return None
    with safe_open(path, framework="numpy") as file:
        return sum(int(prod(file.get_slice(name).get_shape())) for name in file.keys())  # noqa: SIM118


def _history(folder: Path) -> JsonObject:
    """The steps so far, how the training ended, and the metrics of its last evaluation."""
    from ..training.progress import read_records

    records = read_records(folder / "metrics.jsonl")
    evaluated = [record for record in records if record.get("event") == "valid"]
    ended = [record for record in records if record.get("event") == "end"]
    last = {} if not evaluated else {name: value for name, value in evaluated[-1].items() if name != "event"}
    return {
        "steps": max((record["step"] for record in records), default=0),
        "status": ended[-1]["status"] if ended else None,
        "seconds": ended[-1]["seconds"] if ended else None,
        "metrics": last or None,
    }


def print_info(run: str, as_json: bool) -> None:
    """Print the record, as JSON or as lines."""
    from ..config.merge import flatten

    facts = describe_run(Path(run))
    if as_json:
        print(json_line(facts))
        return
    for name, value in flatten({name: value for name, value in facts.items() if value is not None}):
        if name in ("parameters", "bytes", "steps"):
            value = f"{value:,}"
        print(name.replace(".", " "), f"{value:.4f}" if isinstance(value, float) else value)


def print_lists(as_json: bool) -> None:
    """Print the recipes with their descriptions, and the families with their sizes."""
    from .. import api
    from ..config.registry import FAMILIES
    from ..families import family

    recipes, sizes = dict(api.recipes()), {name: list(family(name).SIZES) for name in FAMILIES}
    if as_json:
        print(json_line({"recipes": recipes, "families": sizes}))
        return
    print("recipes")
    for name, header in recipes.items():
        print(f"  {name}  {header}")
    print("families")
    for name, family_sizes in sizes.items():
        print(f"  {name}  sizes: {', '.join(family_sizes)}")


def print_explanation(recipe: str, changes: dict[str, str], key: str, as_json: bool) -> None:
    """Explain a setting, or all settings of a group, of a recipe."""
    from .. import api
    from ..config.explain import explain_setting, format_explanation

    records = explain_setting(recipe, api.resolve(recipe, changes), key)
    print("\n".join(map(json_line, records)) if as_json else format_explanation(records))


def preview(recipe: str, changes: dict[str, str], out: Path, show: bool, dry: bool, everything: bool) -> str:
    """What a training would do: its settings (`--show`, `--show all`), or the sizes of its model (`--dry`)."""
    from .. import api
    from ..runs import stages

    if stages.has_stages(recipe, out, resume=False):
        if dry:
            raise UserError("--dry reads the data of one training and this recipe has several; use --show")
        return stages.show_stages(recipe, changes, out, everything)
    return api.show(recipe, changes, everything) if show else api.dry(recipe, changes)
