"""The Python interface: train, load, build, convert, compare, align. The command line calls these functions."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from . import run_folder
from .alignment.ibm import align_words
from .alignment.links import Link, Links, Symmetrization, check_symmetrization
from .config import run as config
from .config.data.base import Sides
from .config.merge import flatten, split_commas
from .config.run import ResolvedRun, Run, change_settings, family_of, load_config
from .data.sources.data_files import evaluation_sides, with_data
from .errors import UserError
from .files import JsonObject, path_name
from .formats.hub import local_folder
from .formats.model_source import find_model
from .pretrained import Pretrained, read_settings

if TYPE_CHECKING:
    from torch import nn

    from .adapt.tuned_run import Tunes
    from .tasks.predictor import AnyPredictor
    from .training.callbacks import Callback
    from .training.custom import LossFunction, Metrics
    from .training.launch import Launched

Settings: TypeAlias = Mapping[str, Any]  # by dotted or nested keys

CPU_FP32 = {"precision": "fp32", "device": "cpu"}  # to inspect, convert or start from a model


def resolve(recipe: str, overrides: Settings | None = None) -> ResolvedRun:
    """All settings of the run that a recipe and overrides (dotted or nested keys) define, with their origins."""
    return config.resolve(recipe, overrides, read_start=read_settings)


def train(
    recipe: str | PathLike[str] | None = None,
    overrides: Settings | None = None,
    *,
    out: str | PathLike[str],
    resume: bool = False,
    progress: bool = False,
    on_event: Callable[[JsonObject], None] | None = None,
    callbacks: "Sequence[Callback]" = (),
    loss: "LossFunction | None" = None,
    metrics: "Metrics | None" = None,
    tokenizer: Any = None,
    **sections: Any,
) -> "AnyPredictor | None":
    """Train a recipe into the run folder `out` and return `load(out)`, or None if the training was interrupted.

    `overrides` has dotted keys, `sections` are groups: `train("translate", out="runs/x", model={"size": "tiny"})`.
    `train(out="runs/x", resume=True)` continues a run; give it the same functions again.

    - `callbacks` are functions of a `CallbackContext`, called after every step and evaluation.
    - `loss(model, batch)` returns the loss summed over what `batch.count` counts.
    - `metrics` are functions of the references and predictions of the validation data, by name.
    - `tokenizer` is a group of settings, or a tokenizer: one of the library `tokenizers`, a folder with
      tokenizer.json, or an object with `encode(text)` and `decode(ids)`.
    """
    from .processors.text.custom import as_tokenizer
    from .tasks.custom import OwnParts
    from .training.custom import as_metrics

    if isinstance(tokenizer, Mapping):
        sections, tokenizer = {**sections, "tokenizer": tokenizer}, None
    own = OwnParts(loss, as_metrics(metrics), None if tokenizer is None else as_tokenizer(tokenizer))
    out, changes = Path(path_name(out, "out")), _merge(overrides, sections)
    recipe = None if recipe is None else path_name(recipe, "recipe")
    report = {"progress": progress, "on_event": on_event, "callbacks": callbacks, "own": own}
    launched = run_training(recipe, changes, out=out, resume=resume, **report)
    if launched.outcome.status == "stopped":
        return None
    return _load_run(_read_config(out), out, launched.pretrained)


def run_training(recipe: str | None, changes: Settings, *, out: Path, resume: bool, **report: Any) -> "Launched":
    """Train as `train` does, without loading the result; the command line needs only the outcome."""
    from .training.launch import launch

    return launch(out, recipe, changes, resume=resume, open_start=_pretrained, **report)


def load(
    path: str | PathLike[str],
    overrides: Settings | None = None,
    *,
    tune: "Tunes | None" = None,
    force: bool = False,
    mute: str | None = None,
    **sections: Any,
) -> "AnyPredictor":
    """Load a model as a predictor: a run folder, a Hugging Face folder, a GGUF file, or `org/name` of the hub.

    `a,b` loads an ensemble.

    `tune` is the folder of a run that was tuned over this base, or several by name: the result is then an
    AdapterSwitch, whose `[name]` is one of them. `mute` names attention heads whose outputs become zeros: "3.2,4.1".
    """
    if mute is not None:
        return load(path, overrides, tune=tune, force=force, **sections).muted(mute)
    if force and tune is None:
        raise UserError("--force applies only to --tune; give --tune, or leave --force out")
    path, changes = path_name(path, "path"), _merge(overrides, sections)
    if tune is not None:
        return _load_tuned(path, tune, changes, force)
    if len(names := _split_paths(path)) > 1:
        return _load_ensemble(names, changes)
    source = find_model(names[0])
    if source.kind == "run":
        return _load_run(change_settings(_read_config(source.path), changes), source.path)
    return _apply_precision(source.load(changes))


def build(recipe: str | PathLike[str], overrides: Settings | None = None, **sections: Any) -> "nn.Module":
    """The untrained model of a recipe. Set model.vocab, else it is tokenizer.vocab."""
    return _build(resolve(path_name(recipe, "recipe"), {"train.steps": 1, **_merge(overrides, sections)}).run)


def _build(run: Run) -> "nn.Module":
    from .adapt.prune import prune
    from .tasks.catalog import with_max_vocab

    run = with_max_vocab(run)
    return prune(family_of(run.model.family).Model(run.model), run.pruned_heads)


def show(recipe: str, overrides: Settings) -> str:
    """All settings of a run with their origins, as TOML."""
    return resolve(recipe, overrides).show()


def dry(recipe: str, overrides: Settings) -> str:
    """The shapes of all parameters, their number, the memory that training needs, and what was counted in the data."""
    import torch

    from .adapt import tuned_run
    from .adapt.freeze import freeze
    from .tasks.catalog import prepare

    run = resolve(recipe, overrides).run
    pretrained = _pretrained(run.start) if run.start and (run.tune.kind != "none" or run.data.train) else None
    run, job = pretrained.complete(run) if pretrained else run, None
    meta = torch.device("meta")  # shapes without storage
    with meta:
        if run.data.train:
            job = prepare(run, pretrained.processors if pretrained else {}, meta)
        model = job.model if job else _build(run)
        if pretrained:
            pretrained.shared_names(model)
        if pretrained and run.tune.kind != "none":
            tuned_run.check_room(model, run)
            tuned_run.attach(model, run, pretrained.unfrozen)
        freeze(model, run.train.freeze)
    return "\n".join([*_describe_parameters(model), *(job.count_data() if job else _describe_assumptions(run))])


def _describe_parameters(model: "nn.Module") -> list[str]:
    tensors = dict(model.named_parameters())
    widest = max(map(len, tensors))
    lines = [f"{name:<{widest}}  {str(tuple(each.shape)):<14}  {each.numel():>12,}" for name, each in tensors.items()]
    count = sum(each.numel() for each in tensors.values())
    trained = sum(each.numel() for each in tensors.values() if each.requires_grad)
    weights, gradients = 4 * count / 2**20, 4 * trained / 2**20
    lines.append(f"parameters {count:,}" + (f", trained {trained:,}" if trained < count else ""))
    memory = f"weights {weights:,.0f} MiB, gradients {gradients:,.0f} MiB, optimizer {2 * gradients:,.0f} MiB"
    return [*lines, f"memory {memory}"]


def _describe_assumptions(run: Run) -> list[str]:
    from .tasks.catalog import with_max_vocab

    assumed = with_max_vocab(run).model
    vocab, labels = getattr(assumed, "vocab", 0), getattr(assumed, "labels", 0)
    parts = [f"a vocabulary of {vocab:,}"] * bool(vocab) + [f"{labels} labels"] * bool(labels)
    what = f"{' and '.join(parts)} {'is' if vocab else 'are'} assumed"
    return [f"no data were read: {what}; set data.train to count them"]


def recipes() -> list[tuple[str, str]]:
    """(name, description) of every packaged recipe."""
    from .recipes import header, names, stage_names

    return [(name, header(name)) for name in sorted([*names(), *stage_names()])]


def convert(
    path: str | PathLike[str],
    *,
    out: str | PathLike[str],
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

    path, out = path_name(path, "path"), path_name(out, "out")
    folder = Path(path) if Path(path).exists() else find_model(path).path
    return write(folder, Path(out), lambda each: load(each, CPU_FP32), to, average, precision, data, merge)


def prune(
    path: str | PathLike[str], *, heads: str, out: str | PathLike[str], effect: str | PathLike[str] | None = None
) -> dict[str, str]:
    """Write a run without some attention heads to `out`: "3.2,4.1", or "least:8" of the file of an effect."""
    from .formats.pruned_run import prune_run

    run, target = Path(path_name(path, "path")), Path(path_name(out, "out"))
    measured = None if effect is None else Path(path_name(effect, "effect"))
    return prune_run(run, target, lambda each: load(each, CPU_FP32), heads, measured)


def compare(paths: Iterable[str | PathLike[str]], overrides: Settings | None = None, data: Any = None) -> JsonObject:
    """Metrics of several runs on the same data; for runs that write text, also a paired bootstrap against the first."""
    from .measure.comparison import compare_predictors

    if isinstance(paths, str | PathLike) or not isinstance(paths, Iterable):
        raise UserError(f"paths is a {type(paths).__name__}; expected a list of runs to compare")
    runs = [path_name(path, "a path") for path in paths]
    for name in (name for run in runs for name in _split_paths(run)):
        find_model(name)  # report a wrong path before any work
    return compare_predictors(((run, load(run, overrides)) for run in runs), evaluation_sides(data))


def align(
    sources: Iterable[str],
    targets: Iterable[str],
    *,
    run: str | PathLike[str] | None = None,
    symmetrize: Symmetrization = "grow-diag-final-and",
    iterations: int = 5,
) -> list[list[Link]]:
    """Links between the words of texts and their translations, as (source word, target word), both from 0.

    They come from an IBM model of both directions that is fitted to these texts, or from the attention of a run.
    """
    from .tasks.texts import as_pairs

    found, wanted = as_pairs(sources, targets, ("source", "target"))
    aligner = open_aligner(None if run is None else path_name(run, "run"), symmetrize, iterations)
    return [sorted(links) for links in aligner(zip(found, wanted, strict=True))]


def distill(
    path: str | PathLike[str],
    overrides: Settings | None = None,
    *,
    out: str | PathLike[str],
    data: Any = None,
    splice: int = 0,
    report: Callable[[str], None] = lambda line: None,
    **sections: Any,
) -> int:
    """Write the translations of a run to `out`, in order: lines, or pairs in a .tsv file. Return their number.

    `data` names the files of the sources; by default those that the run was trained on. `splice` new texts for each
    source, made of pieces of the sources, follow in a .tsv file. A call that was killed is continued by the same call.
    """
    from .tasks.parallel.distillation import distill as write
    from .tasks.translate.task import TranslatePredictor

    predictor = load(path, overrides, **sections)
    if not isinstance(predictor, TranslatePredictor):
        raise UserError(f"{path} is a run of the task {predictor.run.task}; distill takes one that writes texts")
    return write(predictor, evaluation_sides(data), Path(path_name(out, "out")), report, splice)


def open_aligner(
    run: str | None, symmetrize: str, iterations: int, report: Callable[[str], None] = lambda line: None
) -> Callable[[Iterable[tuple[str, str]]], Iterator[Links]]:
    """A function from sentence pairs to their links, in order. That of a run reads the pairs in chunks."""
    kind = check_symmetrization(symmetrize)
    if run is None:
        if iterations < 1:
            raise UserError(f"--iterations is {iterations}; expected 1 or more")
        return lambda pairs: align_words(pairs, kind, iterations, report)
    from .tasks.generate.scorer import KnownTargets

    predictor = load(run)
    if not isinstance(predictor, KnownTargets):
        raise UserError(f"{run} is a run of the task {predictor.run.task} and aligns no words; give one of translate")
    return lambda pairs: predictor.align_chunks(pairs, kind)


# --- loading ---------------------------------------------------------------------------------------------------------


def _merge(overrides: Settings | None, sections: Settings) -> dict[str, Any]:
    """Settings by dotted key; overrides win over sections. Data in memory get a name, paths become text."""
    if not isinstance(overrides or {}, Mapping):
        raise UserError(f"overrides is a {type(overrides).__name__}; expected a dict of settings by dotted key")
    merged = {**dict(flatten(with_data(sections))), **dict(flatten(with_data(overrides or {})))}
    return {key: fspath(value) if isinstance(value, PathLike) else value for key, value in merged.items()}


def _pretrained(folder: str) -> Pretrained:
    return Pretrained(folder, lambda path: load(path, CPU_FP32))


def _split_paths(path: str) -> list[str]:
    """One folder, or the folders of a comma-separated list."""
    if Path(path).exists():
        return [path]
    try:
        return [str(name) for name in split_commas(path)]
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
    from .tasks.catalog import restore
    from .training.checkpoint import load_model

    predictor = restore(run, path, resolve_device(run.device))
    predictor.folder_of_run = path
    if run.tune.kind != "none":
        return tuned_run.restore(predictor, path, pretrained or _pretrained(tuned_run.base_folder(run, path)))
    load_model(predictor.model, path / "model.safetensors")
    return _apply_precision(predictor)


def _load_tuned(base: str, tunes: "Tunes", changes: Settings, force: bool) -> "AnyPredictor":
    """Load tuned runs over one base; the weights of the base are in memory once."""
    from .adapt import tuned_run
    from .device import resolve_device
    from .formats import peft
    from .tasks.catalog import restore

    if len(_split_paths(base)) > 1:
        raise UserError(f"--tune needs one base, and {base} are several; give one of them")
    pretrained = cache(lambda: _pretrained(base))

    def read(name: Path) -> "AnyPredictor":
        folder = local_folder(name)
        if peft.is_peft_folder(folder):
            return peft.load_adapter(load(base, changes), folder, base)
        if not run_folder.is_run(folder):
            raise UserError(f"{name} is not a tuned run: it has no run.json; give the folder of a tuned run")
        run = change_settings(_read_config(folder), changes)
        if run.tune.kind == "none":
            raise UserError(f"{name} is not tuned but a whole model; load it without a base")
        predictor = restore(run, folder, resolve_device(run.device))
        predictor.folder_of_run = folder
        return tuned_run.restore(predictor, folder, pretrained(), force)

    return tuned_run.load_over(tunes, read)


def _apply_precision(predictor: "AnyPredictor") -> "AnyPredictor":
    from .adapt.outliers import smallest_vocab
    from .adapt.precision import apply

    apply(predictor.model, predictor.run.precision, vocab=smallest_vocab(predictor.run.model))
    return predictor


def _read_config(path: Path) -> Run:
    about = run_folder.read_run(path)
    if "module" in about:
        raise UserError(
            f"{path} was trained by regard.fit and has no recipe; load its weights into the module: "
            f"safetensors.torch.load_model(module, {str(path / 'model.safetensors')!r})"
        )
    return load_config(about["config"], str(path / run_folder.FILE))
