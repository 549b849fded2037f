"""Launch a training: resolve or resume its run, prepare the task, create or lock the run folder, run the loop."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, Unpack

from ..config import run as config
from ..config import run_folder
from ..config.merge import Settings, flatten
from ..config.run import INFERENCE_SECTIONS, ResolvedRun, Run, change_settings, changed_keys, load_config
from ..data.sources.data_files import keep_memory, splits_in_memory
from ..device import resolve_device, use_threads
from ..errors import UserError
from ..files import JsonMapping, JsonObject, atomic_write, remove
from ..processors.base import Processor
from ..processors.saved import load_processors, save_processors
from ..progress import show_progress
from ..tasks.base import TrainingJob
from ..tasks.custom import NO_CUSTOM_PARTS, CustomParts
from ..tasks.task import prepare
from ..training import progress
from ..training.checkpoint import MODEL, load_model
from ..training.lock import RunLock
from ..training.loop import Reporting, run_loop
from ..training.protocols import Outcome
from ..training.ranks import Ranks, joined_processes
from . import tuned
from .pretrained import Pretrained, read_settings

OpenStart: TypeAlias = Callable[[str], Pretrained]  # loads the folder that `start` names

FIXED_ON_RESUME: tuple[str, ...] = ("task", "start", "tune.", "model.", "pruned_heads", "data.", "tokenizer.")
FIXED_ON_RESUME += ("train.seed", "train.tokens", "train.batch", "train.optimizer.kind")
FIXED_ON_RESUME += ("train.objective.teacher", "train.objective.glancing", "train.objective.rdrop")
# Exceptions: keys that --resume may change, and keys that the task sets (learned vocabularies, labels, heads).
CHANGEABLE_DATA = ("data.workers", "data.test", "data.cache", "data.verify", "data.stride")
SET_BY_TASK = tuple(
    f"model.{key}" for key in ("vocab", "target_vocab", "head", "labels", "next_sentence", "pooled", "bins", "inputs")
) + ("data.pairs", "data.problem_type", "data.ngrams.order", "data.column_count")


@dataclass(frozen=True)
class FinishedTraining:
    """The outcome of a training, and the base of a tuned run, which is still in memory."""

    outcome: Outcome
    pretrained: Pretrained | None


class LaunchOptions(Reporting, total=False):
    """Optional arguments of `launch`."""

    custom: CustomParts


def launch(
    out: Path,
    recipe: str | None,
    changes: Settings,
    *,
    resume: bool,
    open_start: OpenStart,
    custom: CustomParts = NO_CUSTOM_PARTS,
    **reporting: Unpack[Reporting],
) -> FinishedTraining:
    """Train a recipe with some settings changed into `out`, or resume the run there, which needs no recipe.

    `custom` are the parts that the user gives as Python objects.
    """
    changes = changes if resume else {**changes, **custom.settings}
    if resume:
        resolved = resume_run(out, recipe, changes)
    elif recipe is None:
        raise UserError("no recipe is given; give a name from `regard list` or a .toml file, or resume a run")
    else:
        resolved = config.resolve_run(recipe, changes, read_start=read_settings)
    custom.check(resolved.run)
    use_threads(resolved.run.threads)
    with joined_processes(resolve_device(resolved.run.device)) as ranks, ExitStack() as stack:
        if ranks.first and resume:
            stack.enter_context(RunLock(out))
        elif ranks.first:
            check_free(out)
        return _train(out, recipe or "", resolved, resume, ranks, stack, open_start, custom, reporting)


def _train(
    out: Path,
    recipe: str,
    resolved: ResolvedRun,
    resume: bool,
    ranks: Ranks,
    stack: ExitStack,
    open_start: OpenStart,
    custom: CustomParts,
    reporting: Reporting,
) -> FinishedTraining:
    """Train in this process. Of several processes, only the first writes to `out`."""
    run = resolved.run
    start = run.start and (tuned.base_folder(run, out) if resume else run.start)
    pretrained = open_start(start) if start else None
    run = pretrained.complete(run) if pretrained else run
    saved = load_processors(out) if resume else pretrained.processors if pretrained else custom.processors
    with ranks.first_in_turn():
        job = prepare(run, saved, resolve_device(run.device), out if resume else None)
    custom.apply(job)
    run, processors = job.run, job.processors
    notes = pretrained.copy_weights(job.model) if pretrained else []
    if pretrained and run.tune.kind != "none":
        notes += tuned.prepare_tuned(job.model, run, pretrained, processors)
    inputs: JsonObject = {"data": {name: split.fingerprint() for name, split in job.splits.items()}}
    if pretrained:
        inputs["start"] = tuned.describe_base(run, pretrained, out) | {"notes": notes}
    if resume:
        check_same_inputs(out, inputs)
    if ranks.first and resume:
        run_folder.update_run(out, config=run.dump())
    elif ranks.first:
        create_run(out, recipe, ResolvedRun(run, resolved.origin), processors, inputs)
        stack.enter_context(RunLock(out))
        job.write_files(out)
    try:
        outcome = run_loop(job, out, resume=resume, notes=[] if resume else notes, ranks=ranks, **reporting)
        if ranks.first and outcome.status != "stopped" and outcome.steps:
            write_measured(job, out)
    except UserError:
        if ranks.first and not resume and is_untrained(out):  # the first step failed
            remove(out)
        raise
    finally:
        job.loader.close()
    return FinishedTraining(outcome, pretrained)


def write_measured(job: TrainingJob, out: Path) -> None:
    """Measure the published weights, and write what predictions should know into run.json."""
    load_model(job.model, out / MODEL)
    job.model.eval()
    with show_progress(quiet=True):
        run_folder.update_run(out, measured=job.measure().model_dump(exclude_none=True))


# --- run folders -----------------------------------------------------------------------------------------------------


def check_free(out: Path) -> None:
    """Refuse a folder that holds a run or anything else."""
    if run_folder.is_run(out):
        raise UserError(f"{out} already holds a run; add --resume to continue it, or choose another --out")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is not a run; choose another --out, so that nothing there is lost")


def create_run(
    out: Path, recipe: str, resolved: ResolvedRun, processors: Mapping[str, Processor], inputs: JsonMapping
) -> None:
    """Create the run folder in one step, with everything except the weights."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(out, replace=False) as draft:
        draft.mkdir()
        about = {"recipe": recipe, "config": resolved.run.dump(), "origin": resolved.origin}
        run_folder.write_run(draft, {**about, "processors": save_processors(draft, processors), **inputs})
        check_free(out)  # again: another process may have created it meanwhile
        if out.exists():
            out.rmdir()


def is_untrained(out: Path) -> bool:
    """True if the folder has neither a checkpoint nor a record of a step."""
    recorded = any(record["step"] for record in progress.read_records(out / "metrics.jsonl"))
    return not recorded and not (out / "checkpoints").exists()


# --- resume ----------------------------------------------------------------------------------------------------------


def resume_run(out: Path, recipe: str | None, changes: Settings) -> ResolvedRun:
    """The stored run with the settings that may change. Another model or other data would be another run."""
    if not run_folder.is_run(out):
        raise UserError(f"{out} holds no run to resume; leave out --resume to start one")
    about = run_folder.read_run(out)
    old = load_config(about["config"], str(out / run_folder.FILE))
    origin: dict[str, str] = about.get("origin", {})
    if recipe is not None and about.get("recipe") != recipe:
        raise UserError(
            f"{out} was started with recipe {about.get('recipe')!r}, not {recipe!r}; resume with that one, or without "
            f"any: `regard train --resume --out {out}`"
        )
    requested = _requested_run(old, origin, recipe, changes)
    _check_fixed(old, origin, requested)
    allowed = {
        key: value for key, value in changes.items() if not key.startswith(FIXED_ON_RESUME) or key in CHANGEABLE_DATA
    }
    run = change_settings(old, allowed, only=("train", *INFERENCE_SECTIONS))
    run = run.model_copy(update={"data": keep_memory(run.data, requested.run.data)})
    return ResolvedRun(run, origin | dict.fromkeys(allowed, "command line"))


def _requested_run(old: Run, origin: Mapping[str, str], recipe: str | None, changes: Settings) -> ResolvedRun:
    """The run that the command line names: its recipe with the settings, or the stored run with them."""
    if recipe is not None:
        known = {"data.train": old.data.train} if old.data.train else {}  # need not be repeated
        if origin.get("model.family") == "command line":
            known["model.family"] = old.model.family
        return config.resolve_run(recipe, {**known, **changes}, read_start=read_settings)
    run = change_settings(old, changes, only=tuple(Run.model_fields))
    return ResolvedRun(run, dict.fromkeys(changed_keys(old, run), "command line"))


def _check_fixed(old: Run, origin: Mapping[str, str], requested: ResolvedRun) -> None:
    """Refuse another value of a setting that a resumed run cannot change."""
    before, now = dict(flatten(old.dump())), dict(flatten(requested.run.dump()))
    set_before = {key for key, where in origin.items() if where == "command line"}
    set_now = {key for key, where in requested.origin.items() if where == "command line"}
    in_memory = splits_in_memory(requested.run.data)
    for key in changed_keys(old, requested.run):
        fixed = key.startswith(FIXED_ON_RESUME) and key not in (*CHANGEABLE_DATA, *SET_BY_TASK)
        fixed &= not requested.origin.get(key, "").startswith("start ")  # the weights of the start are compared later
        fixed &= key.removeprefix("data.") not in in_memory  # and so are data in memory
        if fixed and (key in set_now or key not in set_before):
            raise UserError(
                f"{key} was {before.get(key)!r} and is now {now.get(key)!r}; a resumed run cannot change it"
            )


def check_same_inputs(out: Path, inputs: JsonMapping) -> None:
    """The data and the weights of `start` must be those that the run was started with."""
    about = run_folder.read_run(out)
    before, now = about.get("data", {}), inputs["data"]
    for name in before | now:
        if before.get(name) != now.get(name):
            raise UserError(f"data.{name} is not what {out} was started with; give the same files, or start a new run")
    if about.get("start", {}).get("weights") != inputs.get("start", {}).get("weights"):
        raise UserError(f"start has other weights than when {out} was started; restore them, or start a new run")
