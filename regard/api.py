"""The front door in Python: train, load, build. The command line calls these and adds nothing."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from . import run_folder
from .config.merge import flat, split
from .config.run import USE, ResolvedRun, Run, change_settings, changed_keys, family_of, load_config, resolve
from .errors import UserError
from .files import atomic_write, remove
from .pretrained import Pretrained

FIXED: tuple[str, ...] = ("task", "start", "tune.", "model.", "data.", "tokenizer.")
FIXED += ("train.seed", "train.tokens", "train.batch", "train.optimizer.kind")
# What --resume may change among them, or has no word in: vocabularies and labels are learnt, heads are the task's.
HANDLING = ("data.workers", "data.test", "data.cache", "data.verify", "data.stride")
FREE = (*HANDLING, *(f"model.{key}" for key in ("vocab", "target_vocab", "head", "labels", "next_sentence", "pooled")))
PLAIN = {"precision": "fp32", "device": "cpu"}  # how a run is loaded to be looked into, not used


def train(
    recipe: str,
    overrides: Mapping[str, Any] | None = None,
    *,
    out: str | Path,
    resume: bool = False,
    progress: bool = False,
    on_event: Callable[[dict[str, Any]], None] | None = None,
    **sections: Any,
) -> Any:
    """Train as a recipe says and return what `load(out)` returns.

    `overrides` has dotted keys, `sections` are groups: `train("translate", out="runs/x", model={"size": "tiny"})`.
    """
    from .adapt import tuned_run
    from .device import resolve_device
    from .tasks import prepare
    from .training import fit

    out, wanted = Path(out), {**dict(flat(sections)), **dict(flat(overrides or {}))}
    resolved = resolve(recipe, wanted)
    if not resume:
        _refuse_taken(out)
    run = _taken_up(out, recipe, resolved, wanted) if resume else resolved.run
    origin = Pretrained(run.start, lambda path: load(path, PLAIN)) if run.start else None
    with _tokenizers(out if resume else None, origin) as folder:
        lesson, tokenizers, run = prepare(run, folder, resolve_device(run.device))
        notes = origin.give(lesson.model) if origin else []
        if origin and run.tune.kind != "none":
            notes += tuned_run.prepare(lesson.model, run, origin, tokenizers)
        begun = {"data": {name: examples.fingerprint() for name, examples in lesson.parts.items()}}
        begun |= {"start": {"folder": run.start, "weights": origin.digest(), "told": notes}} if origin else {}
        if resume:
            _same_data(out, begun)
            notes = []
            run_folder.update_run(out, config=run.dump())
        else:
            _begin(out, recipe, ResolvedRun(run, resolved.origin), tokenizers, begun)
        try:
            outcome = fit(lesson, lesson.model, out, resume=resume, on_event=on_event, progress=progress, notes=notes)
        except UserError:
            if not resume and _unused(out):  # only the first update showed it
                remove(out)
            raise
    return load(out) if outcome.status != "stopped" else None


def load(
    path: str | Path,
    overrides: Mapping[str, Any] | None = None,
    *,
    tune: Any = None,
    force: bool = False,
    **sections: Any,
) -> Any:
    """What a run folder or a Hugging Face folder holds, ready to predict, score and look; `a,b` is an ensemble.

    `tune` is the folder of a run that tuned it, or several by name: `.use(name)` then says which of them it is.
    """
    if force and tune is None:
        raise UserError("--force is about a base that --tune does not fit; give --tune, or leave it out")
    if tune is not None:
        return _over(str(path), tune, {**dict(flat(sections)), **dict(flat(overrides or {}))}, force)
    if len(names := _names(path)) > 1:
        systems = {name: load(name, overrides, **sections) for name in names}
        first = systems[names[0]]
        for name, system in systems.items():
            if system.ensemble is not first.ensemble:
                tasks = f"{names[0]} is of the task {first.run.task} and {name} of {system.run.task}"
                raise UserError(f"{tasks}; models that are asked together have one task")
        return first.ensemble(systems)
    path, changes = Path(names[0]), {**dict(flat(sections)), **dict(flat(overrides or {}))}
    if _ours(path):
        return _loaded(change_settings(_run(path), changes), path)
    from .formats.huggingface.folder import load_folder

    return _precise(load_folder(path, changes))


def _ours(path: Path) -> bool:
    """Is it a run, or else a Hugging Face folder? What is neither is refused."""
    if (path / "run.json").is_file():
        return True
    if (path / "config.json").is_file() or (path / "modules.json").is_file():
        return False
    if not path.exists():
        raise UserError(
            f"{path} is not there; give a run folder (made by `regard train … --out`) or a Hugging Face folder"
        )
    raise UserError(f"{path} is no run: it has neither run.json (ours) nor config.json (Hugging Face's)")


def _names(path: str | Path) -> list[str]:
    """One folder, or those between commas."""
    if Path(path).exists():
        return [str(path)]
    try:
        return [str(name) for name in split(str(path))]
    except ValueError as error:
        raise UserError(str(error)) from error


def _loaded(run: Run, path: Path) -> Any:
    from .adapt import tuned_run
    from .device import resolve_device
    from .tasks import restore
    from .training.checkpoint import load_model

    system = restore(run, path, resolve_device(run.device))
    if run.tune.kind != "none":
        return tuned_run.restore(system, path, Pretrained(tuned_run.base_of(run, path), lambda base: load(base, PLAIN)))
    load_model(system.model, path / "model.safetensors")
    return _precise(system)


def _over(base: str, tunes: Any, changes: Mapping[str, Any], force: bool) -> Any:
    """What tuned runs are over this base, which is loaded once."""
    from .adapt import tuned_run
    from .device import resolve_device
    from .formats import peft
    from .tasks import restore

    if len(_names(base)) > 1:
        raise UserError(f"--tune goes over one base, and {base} are several; give one of them")
    origin = cache(lambda: Pretrained(base, lambda path: load(path, PLAIN)))

    def read(folder: Path) -> Any:
        if peft.is_peft_folder(folder):
            return peft.load_adapter(load(base, changes), folder, base)
        if not (folder / "run.json").is_file():
            raise UserError(f"{folder} is no tuned run: it has no run.json; give the folder that such a training made")
        run = change_settings(_run(folder), changes)
        if run.tune.kind == "none":
            raise UserError(f"{folder} is no tuned run but a whole one; load it by itself")
        return tuned_run.restore(restore(run, folder, resolve_device(run.device)), folder, origin(), force)

    return tuned_run.over(tunes, read)


def _precise(system: Any) -> Any:
    from .adapt.precision import apply

    apply(system.model, system.run.precision)
    return system


def build(recipe: str, overrides: Mapping[str, Any] | None = None, **sections: Any) -> Any:
    """The untrained model that a recipe describes; set model.vocab, or it gets tokenizer.vocab."""
    from .tasks import sized

    run = sized(resolve(recipe, {"train.steps": 1, **dict(flat(sections)), **dict(flat(overrides or {}))}).run)
    return family_of(run.model.family).Model(run.model)


def show(recipe: str, overrides: Mapping[str, Any]) -> str:
    return resolve(recipe, overrides).show()


def dry(recipe: str, overrides: Mapping[str, Any]) -> str:
    """What would be trained: every tensor's shape, how many numbers, how much memory."""
    import torch

    from .adapt import tuned_run

    run = resolve(recipe, overrides).run
    origin = Pretrained(run.start, lambda path: load(path, PLAIN)) if run.tune.kind != "none" else None
    with torch.device("meta"):  # shapes without storage
        model = build(recipe, overrides)
        if origin:
            origin.shared(model)
            tuned_run.refuse(model, run)
            tuned_run.attach(model, run, origin.whole)
    tensors = dict(model.named_parameters())
    widest = max(map(len, tensors))
    lines = [f"{name:<{widest}}  {str(tuple(each.shape)):<14}  {each.numel():>12,}" for name, each in tensors.items()]
    count = sum(each.numel() for each in tensors.values())
    trained = sum(each.numel() for each in tensors.values() if each.requires_grad)
    whole, some = 4 * count / 2**20, 4 * trained / 2**20
    lines.append(f"parameters {count:,}" + (f", trained {trained:,}" if trained < count else ""))
    lines.append(f"memory weights {whole:,.0f} MiB, gradients {some:,.0f} MiB, optimizer {2 * some:,.0f} MiB")
    return "\n".join(lines)


def recipes() -> list[tuple[str, str]]:
    from .recipes import header, names

    return [(name, header(name)) for name in names()]


def convert(
    path: str | Path,
    *,
    out: str | Path,
    to: str | None = None,
    average: int = 0,
    precision: str = "fp32",
    data: Any = None,
    merge: bool = False,
) -> dict[str, str]:
    """Write a run in another format (huggingface, ctranslate2, peft), or with the mean of its last checkpoints, or
    both. `merge` folds what LoRA has learnt into the base first.

    It is checked before it appears at `out`; what was checked is told. `data` are examples to measure it on.
    """
    from .formats.convert import convert as converted

    return converted(Path(path), Path(out), lambda folder: load(folder, PLAIN), to, average, precision, data, merge)


def compare(paths: Sequence[str | Path], overrides: Mapping[str, Any] | None = None, data: Any = None) -> Any:
    """Figures of several runs over the same examples or texts; where they gave answers, also a paired bootstrap of each
    run against the first."""
    systems: list[dict[str, Any]] = []
    answers: list[Any] = []
    tasks: list[str] = []
    for name in (name for path in paths for name in _names(path)):
        _ours(Path(name))  # a name that is wrong stops before any work
    for path in paths:
        compared = load(path, overrides)
        figures, *said = compared.examine(data)
        tasks.append(compared.run.task)
        if answers and said[1] != answers[0][1]:
            if tasks[0] != tasks[-1]:
                what = f"{paths[0]} is of the task {tasks[0]} and {path} of the task {tasks[-1]}"
                raise UserError(f"{what}; what is compared must be asked the same")
            how = "name one for all with --data, to be read in one way (data.document, data.format)"
            raise UserError(f"{paths[0]} and {path} have different test data; {how}")
        systems.append({"run": str(path), **figures})
        answers.append(said)
    if answers[0][0] is None:  # nothing was written: the figures are all there is to compare
        return {"systems": systems}
    signatures, results = compared.paired([found for found, _ in answers], answers[0][1])
    for system, result in zip(systems, results, strict=True):
        system["bootstrap"] = result
    return {"systems": systems, "signatures": signatures}


# --- run folders ---------------------------------------------------------------------------------------------------


def _refuse_taken(out: Path) -> None:
    if (out / "run.json").exists():
        raise UserError(f"{out} holds a run already; add --resume to go on with it, or choose another --out")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is no run; choose another --out, so that nothing there is lost")


@contextmanager
def _tokenizers(resumed: Path | None, origin: Pretrained | None) -> Iterator[Path | None]:
    """The folder that a task takes its tokenizers from, if it is not to learn them."""
    if resumed or not origin:
        yield resumed
        return
    with TemporaryDirectory() as folder:
        origin.save_tokenizers(Path(folder))
        yield Path(folder)


def _begin(out: Path, recipe: str, resolved: ResolvedRun, tokenizers: Mapping[str, Any], begun: dict[str, Any]) -> None:
    """The folder appears whole, with everything but the weights."""
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.exists():
        out.rmdir()  # empty, or `_refuse_taken` had refused it
    with atomic_write(out) as draft:
        draft.mkdir()
        for name, tokenizer in tokenizers.items():
            tokenizer.save(draft / name)
        about = {"recipe": recipe, "config": resolved.run.dump(), "origin": resolved.origin}
        run_folder.write_run(draft, about | begun)


def _unused(out: Path) -> bool:
    """Is there nothing of a training yet, neither a checkpoint nor a figure?"""
    from .training import progress

    told = any(record["step"] for record in progress.read_records(out / "metrics.jsonl"))
    return not told and not (out / "checkpoints").exists()


def _run(path: Path) -> Run:
    return load_config(run_folder.read_run(path)["config"], str(path / run_folder.FILE))


def _taken_up(out: Path, recipe: str, resolved: ResolvedRun, wanted: Mapping[str, Any]) -> Run:
    """The run to go on with: as it was, but for what may change. Another model or other data would be another run."""
    if not (out / "run.json").is_file():
        raise UserError(f"{out} holds no run to go on with; leave out --resume to begin one")
    old, about = _run(out), run_folder.read_run(out)
    if about.get("recipe") != recipe:
        raise UserError(f"{out} was begun with recipe {about.get('recipe')!r}, not {recipe!r}; go on with that one")
    before, now = dict(flat(old.dump())), dict(flat(resolved.run.dump()))
    said_then = {key for key, origin in about.get("origin", {}).items() if origin == "command line"}
    said_now = {key for key, origin in resolved.origin.items() if origin == "command line"}
    for key in changed_keys(old, resolved.run):
        fixed = key.startswith(FIXED) and key not in FREE
        if fixed and (key in said_now or key not in said_then):
            raise UserError(
                f"{key} was {before.get(key)!r} and is now {now.get(key)!r}; a resumed run cannot change it"
            )
    changes = {key: value for key, value in wanted.items() if not key.startswith(FIXED) or key in HANDLING}
    return change_settings(old, changes, only=("train", *USE))


def _same_data(out: Path, begun: Mapping[str, Any]) -> None:
    about = run_folder.read_run(out)
    before, prints = about.get("data", {}), begun["data"]
    for name in before | prints:
        if before.get(name) != prints.get(name):
            raise UserError(f"data.{name} is not what {out} was begun with; give the same files, or begin a new run")
    if about.get("start", {}).get("weights") != begun.get("start", {}).get("weights"):
        raise UserError(f"start holds other weights than when {out} was begun; restore them, or begin a new run")
