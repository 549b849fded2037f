"""Recipes of several stages: trainings, distillation and word alignment. A stage uses the results of earlier stages.

Every stage writes its own folder or file in the output folder, which appears complete or can be continued. So a killed
pipeline continues with its current stage. The settings of all stages are checked first.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import AliasChoices, Field, ValidationError, model_validator

from .. import recipes
from ..alignment.links import format_pharaoh
from ..config import run as config
from ..config import run_folder
from ..config.losses import TEACHER
from ..config.merge import Settings, flatten
from ..config.run import Run, change_settings, override_settings
from ..config.types import Base
from ..data.files.lines import TextLines
from ..errors import UserError
from ..files import atomic_write, read_json, write_json
from .pretrained import read_settings
from .work import distill, open_aligner, run_training

FILE = "stages.json"  # in the output folder: the recipe, the settings, and the stages that are done
KINDS = "train", "distill", "align"
Report = Callable[[str], None]


class Stage(Base):
    """One of `train` (a recipe), `distill` (a stage that is a run) and `align` (a stage that has targets)."""

    name: str
    train: str = ""
    distill: str = ""
    align: str = ""
    targets: str = ""  # train: the stage whose lines replace the targets of data.train
    alignments: str = Field("", validation_alias=AliasChoices("alignments", "links"))  # train: data.alignments
    teacher: str = ""  # train: the stage that is train.objective.teacher
    start: str = ""  # train: the stage that is `start`
    settings: dict[str, Any] = {}

    @model_validator(mode="after")
    def _check_kind(self) -> "Stage":
        if len([name for name in KINDS if getattr(self, name)]) != 1:
            raise ValueError(f"stage {self.name} needs one of train, distill and align")
        return self

    @property
    def earlier(self) -> dict[str, str]:
        """The earlier stages that it uses, by the key that names them."""
        keys = ("distill", "align", "targets", "alignments", "teacher", "start")
        return {key: name for key in keys if (name := getattr(self, key))}


def has_stages(recipe: str | None, out: Path | None, resume: bool) -> bool:
    """True if the recipe, or the folder to resume, has several stages."""
    if recipe is None:
        return resume and out is not None and (out / FILE).is_file()
    if recipe in recipes.stage_names():
        return True
    return recipe.endswith(".toml") and Path(recipe).is_file() and "stages" in recipes.load_recipe(Path(recipe))


def read_stages(recipe: str) -> list[Stage]:
    """The stages of a recipe, after checking that each has its own name and uses only earlier ones."""
    values = recipes.load_recipe(recipes.locate_stages(recipe))
    if others := values.keys() - {"stages"}:
        raise UserError(f"recipe {recipe} has stages and also {sorted(others)[0]}; move it to settings of a stage")
    try:
        if not isinstance(entries := values["stages"], list):
            raise TypeError(f"a {type(entries).__name__} instead of a list")
        stages = [Stage.model_validate(entry) for entry in entries]
    except (ValidationError, TypeError) as error:
        first = (
            f"{error.errors()[0]['loc']}: {error.errors()[0]['msg']}" if isinstance(error, ValidationError) else error
        )
        raise UserError(f"the stages of recipe {recipe} are not valid, {first}; correct the file") from error
    names: list[str] = []
    for stage in stages:
        for key, name in stage.earlier.items():
            if name not in names:
                raise UserError(f"stage {stage.name} has {key}={name}, which is not an earlier stage; correct {recipe}")
        if stage.name in names:
            raise UserError(f"recipe {recipe} has two stages {stage.name}; rename one")
        names.append(stage.name)
    return stages


# --- plan ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlannedStage:
    """A stage with its resolved settings."""

    stage: Stage
    changes: dict[str, Any]  # by dotted key
    run: Run | None  # of a training


def plan(recipe: str, changes: Settings, out: Path) -> list[PlannedStage]:
    """All stages with their settings; the mistakes in all of them are reported together."""
    stages, settings = read_stages(recipe), dict(flatten(changes))
    names = [stage.name for stage in stages]
    shared = {key: value for key, value in settings.items() if key.partition(".")[0] not in names}
    if not shared.get("data.train"):
        raise UserError(f"recipe {recipe} needs data.train, two files of lines; give data.train=SOURCE,TARGET")
    planned: dict[str, PlannedStage] = {}
    mistakes: list[str] = []
    for stage in stages:
        prefix = f"{stage.name}."
        stage_settings = {key.removeprefix(prefix): value for key, value in settings.items() if key.startswith(prefix)}
        try:
            planned[stage.name] = _plan_stage(stage, shared, stage_settings, out, planned)
        except UserError as error:
            mistakes.append(f"stage {stage.name}: {error}")
    if mistakes:
        raise UserError("; ".join(mistakes))
    return list(planned.values())


def _plan_stage(
    stage: Stage,
    shared: Mapping[str, Any],
    overrides: Mapping[str, Any],
    out: Path,
    planned: Mapping[str, PlannedStage],
) -> PlannedStage:
    settings = dict(flatten(stage.settings))
    if missing := [name for name in stage.earlier.values() if name not in planned]:
        raise UserError(f"{missing[0]} has mistakes")
    if stage.distill:
        teacher = planned[stage.distill].run
        if teacher is None:
            raise UserError(f"distill is {stage.distill}, which is not a training; name one that is")
        device = {key: shared[key] for key in ("device", "threads", "precision") if key in shared}
        changes = override_settings(teacher, {**device, **settings}, overrides)
        change_settings(teacher, changes)
        return PlannedStage(stage, changes, None)
    if stage.align:
        changes = {**settings, **overrides}
        if unknown := changes.keys() - {"symmetrize", "iterations"}:
            raise UserError(f"{sorted(unknown)[0]} is not a setting of align; expected symmetrize or iterations")
        open_aligner(None, changes.get("symmetrize", "grow-diag-final-and"), int(changes.get("iterations", 5)))
        return PlannedStage(stage, changes, None)
    changes = {**settings, **shared, **overrides, **_paths(stage, shared["data.train"], out)}
    changes = {
        key: value for key, value in changes.items() if not (stage.start and key.startswith(("model.", "tokenizer.")))
    }

    def read_start(start: str) -> Mapping[str, Any]:
        earlier = planned[stage.start].run
        if earlier is None or run_folder.is_run(Path(start)):
            return read_settings(start)
        return dict(flatten({name: earlier.dump()[name] for name in ("model", "tokenizer")}))

    return PlannedStage(stage, changes, config.resolve_run(stage.train, changes, read_start=read_start).run)


def _paths(stage: Stage, train: Any, out: Path) -> dict[str, Any]:
    """The settings that name the results of earlier stages."""
    keys = {"alignments": "data.alignments", "teacher": TEACHER, "start": "start"}
    paths: dict[str, Any] = {keys[key]: str(out / name) for key, name in stage.earlier.items() if key in keys}
    if stage.targets:
        paths["data.train"] = (sources_of(train), (str(out / stage.targets),))
    return paths


def sources_of(train: str | Sequence[str | Sequence[str]]) -> tuple[str, ...]:
    """The files of the sources of data.train."""
    files = config.parse_data_files(train) if isinstance(train, str) else train
    if len(files) != 2:
        raise UserError(f"data.train has {len(files)} sides; stages need two files of lines, SOURCE,TARGET")
    sources = files[0]
    return (sources,) if isinstance(sources, str) else tuple(sources)


def show_stages(recipe: str, changes: Settings, out: Path, all: bool = False) -> str:
    """The settings of all stages, as TOML: those that differ from the defaults, or all of them."""
    lines = []
    for planned in plan(recipe, changes, out):
        lines.append(f"# stage {planned.stage.name}")
        lines += (
            [config.ResolvedRun(planned.run, _origins(planned.run)).show(all)]
            if planned.run
            else [f"# {planned.changes}"]
        )
    return "\n".join(lines)


def _origins(run: Run) -> dict[str, str]:
    return {key: "stage" for key, _ in flatten(run.dump())}


# --- run -------------------------------------------------------------------------------------------------------------


def run_stages(
    recipe: str | None, changes: Settings, *, out: Path, resume: bool, report: Report, progress: bool = False
) -> int:
    """Run all stages that are not done; return the signal that stopped a training, or 0."""
    from ..training.lock import RunLock

    recipe, settings = _begin(recipe, dict(flatten(changes)), out, resume)
    stages = plan(recipe, settings, out)
    with RunLock(out):
        if not (out / FILE).is_file():
            write_json(out / FILE, {"recipe": recipe, "settings": _plain(settings), "done": []})
        done = list(read_json(out / FILE)["done"])
        for number, planned in enumerate(stages, 1):
            name = planned.stage.name
            if name in done:
                report(f"stage {number} of {len(stages)}, {name}: done already")
                continue
            report(f"stage {number} of {len(stages)}, {name}: {_describe(planned.stage)}")
            if signal := _run_stage(planned, settings, out, report, progress):
                return signal
            done.append(name)
            write_json(out / FILE, {"recipe": recipe, "settings": _plain(settings), "done": done})
    return 0


def _begin(recipe: str | None, settings: dict[str, Any], out: Path, resume: bool) -> tuple[str, dict[str, Any]]:
    """The recipe and the settings of the pipeline in `out`, which is created unless it is resumed."""
    from .launch import check_free  # the loop and the tasks, which --show does not need

    if not resume:
        assert recipe is not None
        if (out / FILE).is_file():
            raise UserError(f"{out} already holds stages; add --resume to continue them, or choose another --out")
        check_free(out)
        plan(recipe, settings, out)  # a mistake leaves nothing behind
        out.mkdir(parents=True, exist_ok=True)
        return recipe, settings
    if not (out / FILE).is_file():
        raise UserError(f"{out} holds no stages to resume; leave out --resume to start")
    about = read_json(out / FILE)
    if recipe not in (None, about["recipe"]) or settings and _plain(settings) != about["settings"]:
        raise UserError(f"{out} was started with another recipe or other settings; resume it without any")
    return about["recipe"], about["settings"]


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as JSON has them."""
    return {
        key: [list(group) for group in value] if isinstance(value, tuple) else value for key, value in settings.items()
    }


def _describe(stage: Stage) -> str:
    if stage.train:
        return f"training of recipe {stage.train}"
    return f"translations of {stage.distill}" if stage.distill else f"word alignment of {stage.align}"


def _run_stage(planned: PlannedStage, settings: Mapping[str, Any], out: Path, report: Report, progress: bool) -> int:
    stage, path = planned.stage, out / planned.stage.name
    if stage.train:
        begun = run_folder.is_run(path)
        recipe, changes = (None, {}) if begun else (stage.train, planned.changes)
        return run_training(recipe, changes, out=path, resume=begun, progress=progress).outcome.signal
    if path.exists():  # the process ended between writing it and noting that it is done
        return 0
    sources = sources_of(settings["data.train"])
    if stage.distill:
        distill(out / stage.distill, planned.changes, out=path, data=(sources,), report=report)
        return 0
    texts, targets = TextLines(sources, "refuse"), TextLines((str(out / stage.align),), "refuse")
    align = open_aligner(
        None,
        planned.changes.get("symmetrize", "grow-diag-final-and"),
        int(planned.changes.get("iterations", 5)),
        report,
    )
    with atomic_write(path) as draft, open(draft, "w", encoding="utf-8") as file:
        pairs = zip(_iterate(texts), _iterate(targets), strict=True)
        file.writelines(f"{format_pharaoh(links)}\n" for links in align(pairs))
    return 0


def _iterate(lines: TextLines) -> Any:
    return (lines[i] for i in range(len(lines)))
