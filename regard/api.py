"""The Python interface: train, load, build, convert, compare. The command line calls these functions."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from . import run_folder
from .config import run as config
from .config.merge import flatten, split_commas
from .config.run import INFERENCE_SECTIONS, ResolvedRun, Run, change_settings, changed_keys, family_of, load_config
from .config.schema import Sides
from .errors import UserError
from .files import JsonMapping, JsonObject, atomic_write, remove
from .metrics.text import check_same_signatures
from .pretrained import Pretrained, read_settings

if TYPE_CHECKING:
    from torch import nn

    from .adapt.tuned_run import Tunes
    from .processors.base import Processor
    from .tasks.predictor import AnyPredictor
    from .training.ranks import Ranks

Settings: TypeAlias = Mapping[str, Any]  # by dotted or nested keys

FIXED_ON_RESUME: tuple[str, ...] = ("task", "start", "tune.", "model.", "data.", "tokenizer.")
FIXED_ON_RESUME += ("train.seed", "train.tokens", "train.batch", "train.optimizer.kind")
# Exceptions: keys that --resume may change, and keys that the task sets (learned vocabularies, labels, heads).
CHANGEABLE_DATA = ("data.workers", "data.test", "data.cache", "data.verify", "data.stride")
SET_BY_TASK = tuple(f"model.{key}" for key in ("vocab", "target_vocab", "head", "labels", "next_sentence", "pooled"))
CPU_FP32 = {"precision": "fp32", "device": "cpu"}  # to inspect, convert or start from a model


def resolve(recipe: str, overrides: Settings | None = None) -> ResolvedRun:
    """All settings of the run that a recipe and overrides (dotted or nested keys) define, with their origins."""
    return config.resolve(recipe, overrides, read_start=read_settings)


def train(
    recipe: str,
    overrides: Settings | None = None,
    *,
    out: str | Path,
    resume: bool = False,
    progress: bool = False,
    on_event: Callable[[JsonObject], None] | None = None,
    **sections: Any,
) -> "AnyPredictor | None":
    """Train a recipe into the run folder `out` and return `load(out)`, or None if the training was interrupted.

    `overrides` has dotted keys, `sections` are groups: `train("translate", out="runs/x", model={"size": "tiny"})`.
    """
    from .device import resolve_device
    from .training.ranks import joined_processes

    out, changes = Path(out), _merge(overrides, sections)
    resolved = resolve(recipe, changes)
    with joined_processes(resolve_device(resolved.run.device)) as ranks:
        return _train(out, recipe, resolved, changes, resume, ranks, on_event=on_event, progress=progress)


def _train(
    out: Path,
    recipe: str,
    resolved: ResolvedRun,
    changes: Settings,
    resume: bool,
    ranks: "Ranks",
    **report: Any,
) -> "AnyPredictor | None":
    """Train in this process. Of several ones, only the first writes to `out`."""
    from .adapt import tuned_run
    from .device import resolve_device
    from .processors.saved import load_processors
    from .tasks import prepare
    from .training import fit

    if ranks.first and not resume:
        _check_free(out)
    run = _resumed_run(out, recipe, resolved, changes) if resume else resolved.run
    pretrained = _pretrained(run.start) if run.start else None
    run = pretrained.complete(run) if pretrained else run
    kept = load_processors(out) if resume else pretrained.processors if pretrained else {}
    with ranks.first_in_turn():
        job = prepare(run, kept, resolve_device(run.device), out if resume else None)
    run, processors = job.run, job.processors
    notes = pretrained.copy_weights(job.model) if pretrained else []
    if pretrained and run.tune.kind != "none":
        notes += tuned_run.prepare(job.model, run, pretrained, processors)
    inputs: JsonObject = {"data": {name: split.fingerprint() for name, split in job.splits.items()}}
    if pretrained:
        inputs["start"] = {"folder": run.start, "weights": pretrained.digest(), "notes": notes}
    if resume:
        _check_same_inputs(out, inputs)
    if ranks.first and resume:
        run_folder.update_run(out, config=run.dump())
    elif ranks.first:
        _create_run(out, recipe, ResolvedRun(run, resolved.origin), processors, inputs)
    try:
        outcome = fit(job, out, resume=resume, notes=[] if resume else notes, ranks=ranks, **report)
    except UserError:
        if ranks.first and not resume and _is_untrained(out):  # the first step failed
            remove(out)
        raise
    finally:
        job.loader.close()
    return _load_run(_read_config(out), out, pretrained) if outcome.status != "stopped" else None


def load(
    path: str | Path,
    overrides: Settings | None = None,
    *,
    tune: "Tunes | None" = None,
    force: bool = False,
    **sections: Any,
) -> "AnyPredictor":
    """Load a run folder or a Hugging Face folder as a predictor; `a,b` loads an ensemble.

    `tune` is the folder of a run that was tuned over this base, or several by name: the result is then an
    AdapterSwitch, whose `[name]` is one of them.
    """
    if force and tune is None:
        raise UserError("--force applies only to --tune; give --tune, or leave --force out")
    changes = _merge(overrides, sections)
    if tune is not None:
        return _load_tuned(str(path), tune, changes, force)
    if len(names := _split_paths(path)) > 1:
        return _load_ensemble(names, changes)
    folder = Path(names[0])
    if _check_folder(folder):
        return _load_run(change_settings(_read_config(folder), changes), folder)
    from .formats.huggingface.folder import load_folder

    return _apply_precision(load_folder(folder, changes))


def build(recipe: str, overrides: Settings | None = None, **sections: Any) -> "nn.Module":
    """The untrained model of a recipe. Set model.vocab, else it is tokenizer.vocab."""
    return _build(resolve(recipe, {"train.steps": 1, **_merge(overrides, sections)}).run)


def _build(run: Run) -> "nn.Module":
    from .tasks import with_max_vocab

    run = with_max_vocab(run)
    model: nn.Module = family_of(run.model.family).Model(run.model)
    return model


def show(recipe: str, overrides: Settings) -> str:
    """All settings of a run with their origins, as TOML."""
    return resolve(recipe, overrides).show()


def dry(recipe: str, overrides: Settings) -> str:
    """The shapes of all parameters, their number and the memory that training needs."""
    import torch

    from .adapt import tuned_run

    run = resolve(recipe, overrides).run
    pretrained = _pretrained(run.start) if run.tune.kind != "none" else None
    run = pretrained.complete(run) if pretrained else run
    with torch.device("meta"):  # shapes without storage
        model = _build(run)
        if pretrained:
            pretrained.shared_names(model)
            tuned_run.check_room(model, run)
            tuned_run.attach(model, run, pretrained.unfrozen)
    tensors = dict(model.named_parameters())
    widest = max(map(len, tensors))
    lines = [f"{name:<{widest}}  {str(tuple(each.shape)):<14}  {each.numel():>12,}" for name, each in tensors.items()]
    count = sum(each.numel() for each in tensors.values())
    trained = sum(each.numel() for each in tensors.values() if each.requires_grad)
    weights, gradients = 4 * count / 2**20, 4 * trained / 2**20
    lines.append(f"parameters {count:,}" + (f", trained {trained:,}" if trained < count else ""))
    lines.append(
        f"memory weights {weights:,.0f} MiB, gradients {gradients:,.0f} MiB, optimizer {2 * gradients:,.0f} MiB"
    )
    return "\n".join(lines)


def recipes() -> list[tuple[str, str]]:
    """(name, description) of every packaged recipe."""
    from .recipes import header, names

    return [(name, header(name)) for name in names()]


def convert(
    path: str | Path,
    *,
    out: str | Path,
    to: str | None = None,
    average: int = 0,
    precision: str = "fp32",
    data: Sides | None = None,
    merge: bool = False,
) -> dict[str, str]:
    """Write a run in another format (huggingface, ctranslate2, peft), with averaged checkpoints, or both.

    `merge` folds LoRA weights into the base first. `data` are examples to evaluate for the model card. The result is
    checked before it appears at `out`; the returned dict reports the checks.
    """
    from .formats.convert import convert as write

    return write(Path(path), Path(out), lambda folder: load(folder, CPU_FP32), to, average, precision, data, merge)


def compare(paths: Sequence[str | Path], overrides: Settings | None = None, data: Sides | None = None) -> JsonObject:
    """Metrics of several runs on the same data; for runs that write text, also a paired bootstrap against the first."""
    systems, tasks = list[JsonObject](), list[str]()
    outputs: list[Any] = []  # (answers, references) of each run
    for name in (name for path in paths for name in _split_paths(path)):
        _check_folder(Path(name))  # report a wrong path before any work
    for path in paths:
        predictor = load(path, overrides)
        metrics, *output = predictor.evaluate_with_outputs(data)
        tasks.append(predictor.run.task)
        if outputs and output[1] != outputs[0][1]:
            if tasks[0] != tasks[-1]:
                raise UserError(
                    f"{paths[0]} has task {tasks[0]} and {path} has task {tasks[-1]}; compare runs of one task"
                )
            raise UserError(
                f"{paths[0]} and {path} have different test data; set one for all with --data, read in one way "
                "(data.document, data.format)"
            )
        systems.append({"run": str(path), **metrics})
        outputs.append(output)
    if outputs[0][0] is None:  # no texts were written: only metrics can be compared
        return {"systems": systems}
    check_same_signatures(systems)
    signatures, results = predictor.paired_test([answers for answers, _ in outputs], outputs[0][1])
    compared = [system | {"bootstrap": result} for system, result in zip(systems, results, strict=True)]
    return {"systems": compared, "signatures": signatures}


# --- loading ---------------------------------------------------------------------------------------------------------


def _merge(overrides: Settings | None, sections: Settings) -> dict[str, Any]:
    """Settings by dotted key; overrides win over sections."""
    return {**dict(flatten(sections)), **dict(flatten(overrides or {}))}


def _pretrained(folder: str) -> Pretrained:
    return Pretrained(folder, lambda path: load(path, CPU_FP32))


def _check_folder(path: Path) -> bool:
    """True for a run folder, False for a Hugging Face folder; anything else raises UserError."""
    if run_folder.is_run(path):
        return True
    if (path / "config.json").is_file() or (path / "modules.json").is_file():
        return False
    if not path.exists():
        raise UserError(f"{path} does not exist; give a run folder (from `regard train`) or a Hugging Face folder")
    raise UserError(f"{path} is not a run: it has neither run.json nor config.json (Hugging Face); give another folder")


def _split_paths(path: str | Path) -> list[str]:
    """One folder, or the folders of a comma-separated list."""
    if Path(path).exists():
        return [str(path)]
    try:
        return [str(name) for name in split_commas(str(path))]
    except ValueError as error:
        raise UserError(str(error)) from error


def _load_ensemble(names: list[str], changes: Settings) -> "AnyPredictor":
    predictors = {name: load(name, changes) for name in names}
    first = predictors[names[0]]
    for name, predictor in predictors.items():
        if predictor.ensemble is not first.ensemble:
            raise UserError(
                f"{names[0]} has task {first.run.task} and {name} has task {predictor.run.task}; "
                "the models of an ensemble need the same task"
            )
    return first.ensemble(predictors)


def _load_run(run: Run, path: Path, pretrained: Pretrained | None = None) -> "AnyPredictor":
    """The predictor of a run folder. `pretrained` is the base of a tuned run, if it is in memory already."""
    from .adapt import tuned_run
    from .device import resolve_device
    from .tasks import restore
    from .training.checkpoint import load_model

    predictor = restore(run, path, resolve_device(run.device))
    if run.tune.kind != "none":
        return tuned_run.restore(predictor, path, pretrained or _pretrained(tuned_run.base_folder(run, path)))
    load_model(predictor.model, path / "model.safetensors")
    return _apply_precision(predictor)


def _load_tuned(base: str, tunes: "Tunes", changes: Settings, force: bool) -> "AnyPredictor":
    """Load tuned runs over one base; the weights of the base are in memory once."""
    from .adapt import tuned_run
    from .device import resolve_device
    from .formats import peft
    from .tasks import restore

    if len(_split_paths(base)) > 1:
        raise UserError(f"--tune needs one base, and {base} are several; give one of them")
    pretrained = cache(lambda: _pretrained(base))

    def read(folder: Path) -> "AnyPredictor":
        if peft.is_peft_folder(folder):
            return peft.load_adapter(load(base, changes), folder, base)
        if not run_folder.is_run(folder):
            raise UserError(f"{folder} is not a tuned run: it has no run.json; give the folder of a tuned run")
        run = change_settings(_read_config(folder), changes)
        if run.tune.kind == "none":
            raise UserError(f"{folder} is not tuned but a whole model; load it without a base")
        return tuned_run.restore(restore(run, folder, resolve_device(run.device)), folder, pretrained(), force)

    return tuned_run.load_over(tunes, read)


def _apply_precision(predictor: "AnyPredictor") -> "AnyPredictor":
    from .adapt.precision import apply

    apply(predictor.model, predictor.run.precision)
    return predictor


# --- run folders -----------------------------------------------------------------------------------------------------


def _check_free(out: Path) -> None:
    if run_folder.is_run(out):
        raise UserError(f"{out} already holds a run; add --resume to continue it, or choose another --out")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is not a run; choose another --out, so that nothing there is lost")


def _create_run(
    out: Path, recipe: str, resolved: ResolvedRun, processors: "Mapping[str, Processor]", inputs: JsonMapping
) -> None:
    """Create the run folder in one step, with everything except the weights."""
    from .processors.saved import save_processors

    out.parent.mkdir(parents=True, exist_ok=True)
    if out.exists():
        out.rmdir()  # empty: `_check_free` has passed
    with atomic_write(out) as draft:
        draft.mkdir()
        about = {"recipe": recipe, "config": resolved.run.dump(), "origin": resolved.origin}
        run_folder.write_run(draft, {**about, "processors": save_processors(draft, processors), **inputs})


def _is_untrained(out: Path) -> bool:
    """True if the folder has neither a checkpoint nor a record of a step."""
    from .training import progress

    recorded = any(record["step"] for record in progress.read_records(out / "metrics.jsonl"))
    return not recorded and not (out / "checkpoints").exists()


def _read_config(path: Path) -> Run:
    return load_config(run_folder.read_run(path)["config"], str(path / run_folder.FILE))


def _resumed_run(out: Path, recipe: str, resolved: ResolvedRun, wanted: Settings) -> Run:
    """The stored run with the settings that may change. Another model or other data would be another run."""
    if not run_folder.is_run(out):
        raise UserError(f"{out} holds no run to resume; leave out --resume to start one")
    old, about = _read_config(out), run_folder.read_run(out)
    if about.get("recipe") != recipe:
        raise UserError(f"{out} was started with recipe {about.get('recipe')!r}, not {recipe!r}; resume with that one")
    before, now = dict(flatten(old.dump())), dict(flatten(resolved.run.dump()))
    given_before = {key for key, origin in about.get("origin", {}).items() if origin == "command line"}
    given_now = {key for key, origin in resolved.origin.items() if origin == "command line"}
    for key in changed_keys(old, resolved.run):
        fixed = key.startswith(FIXED_ON_RESUME) and key not in (*CHANGEABLE_DATA, *SET_BY_TASK)
        fixed &= not resolved.origin.get(key, "").startswith("start ")  # the weights of the start are compared later
        if fixed and (key in given_now or key not in given_before):
            raise UserError(
                f"{key} was {before.get(key)!r} and is now {now.get(key)!r}; a resumed run cannot change it"
            )
    free = {
        key: value for key, value in wanted.items() if not key.startswith(FIXED_ON_RESUME) or key in CHANGEABLE_DATA
    }
    return change_settings(old, free, only=("train", *INFERENCE_SECTIONS))


def _check_same_inputs(out: Path, inputs: JsonMapping) -> None:
    """The data and the weights of `start` must be those that the run was started with."""
    about = run_folder.read_run(out)
    before, now = about.get("data", {}), inputs["data"]
    for name in before | now:
        if before.get(name) != now.get(name):
            raise UserError(f"data.{name} is not what {out} was started with; give the same files, or start a new run")
    if about.get("start", {}).get("weights") != inputs.get("start", {}).get("weights"):
        raise UserError(f"start has other weights than when {out} was started; restore them, or start a new run")
