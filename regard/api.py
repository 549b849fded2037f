"""The Python interface: train, load, build, convert, compare, align. The command line calls these functions."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .alignment.links import Link, Symmetrization
from .config import run as config
from .config.data.base import DataFiles
from .config.merge import Section, Settings
from .config.run import ResolvedRun, Run
from .data.sources.data_files import evaluation_files
from .errors import UserError
from .files import JsonObject, path_name
from .formats.model_source import find_model
from .runs.load import load as load
from .runs.load import load_on_cpu, load_run, merge_settings, open_pretrained, read_config, split_paths
from .runs.pretrained import read_settings
from .runs.work import distill as distill
from .runs.work import open_aligner as open_aligner
from .runs.work import run_training as run_training

if TYPE_CHECKING:
    from torch import nn

    from .runs.launch import LaunchOptions
    from .tasks.predictor import AnyPredictor
    from .training.callbacks import Callback
    from .training.custom import LossFunction, Metrics


def resolve(recipe: str, overrides: Settings | None = None) -> ResolvedRun:
    """All settings of the run that a recipe and overrides (dotted or nested keys) define, with their origins."""
    return config.resolve_run(recipe, overrides, read_start=read_settings)


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
    **sections: Section,
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
    from .tasks.custom import CustomParts
    from .training.custom import as_metrics

    if isinstance(tokenizer, Mapping):
        sections, tokenizer = {**sections, "tokenizer": tokenizer}, None
    custom = CustomParts(loss, as_metrics(metrics), None if tokenizer is None else as_tokenizer(tokenizer))
    out, changes = Path(path_name(out, "out")), merge_settings(overrides, sections)
    recipe = None if recipe is None else path_name(recipe, "recipe")
    options: LaunchOptions = {"progress": progress, "on_event": on_event, "callbacks": callbacks, "custom": custom}
    training = run_training(recipe, changes, out=out, resume=resume, **options)
    if training.outcome.status == "stopped":
        return None
    return load_run(read_config(out), out, training.pretrained)


def build(recipe: str | PathLike[str], overrides: Settings | None = None, **sections: Section) -> "nn.Module":
    """The untrained model of a recipe. Set model.vocab, else it is tokenizer.vocab."""
    from .tasks.task import build_without_data

    changes = {"train.steps": 1, **merge_settings(overrides, sections)}
    return build_without_data(resolve(path_name(recipe, "recipe"), changes).run)


def show(recipe: str, overrides: Settings, all: bool = False) -> str:
    """The settings of a run that differ from the defaults, or all of them, with their origins, as TOML."""
    return resolve(recipe, overrides).show(all)


def dry(recipe: str, overrides: Settings) -> str:
    """The shapes of all parameters, their number, the memory that training needs, and what was counted in the data."""
    import torch

    from .adapt.freeze import freeze
    from .runs import tuned
    from .tasks.task import build_without_data, prepare

    run = resolve(recipe, overrides).run
    pretrained = open_pretrained(run.start) if run.start and (run.tune.kind != "none" or run.data.train) else None
    run, job = pretrained.complete(run) if pretrained else run, None
    meta = torch.device("meta")  # shapes without storage
    with meta:
        if run.data.train:
            job = prepare(run, pretrained.processors if pretrained else {}, meta)
        model = job.model if job else build_without_data(run)
        if pretrained:
            pretrained.shared_names(model)
        if pretrained and run.tune.kind != "none":
            tuned.check_room(model, run)
            tuned.attach_tuned(model, run, pretrained.unfrozen)
        freeze(model, run.train.freeze)
    return "\n".join([*_describe_parameters(model), *(job.count_data() if job else _describe_assumptions(run))])


def _describe_parameters(model: "nn.Module") -> list[str]:
    tensors = dict(model.named_parameters())
    widest = max(map(len, tensors))
    lines = [
        f"{name:<{widest}}  {str(tuple(tensor.shape)):<14}  {tensor.numel():>12,}" for name, tensor in tensors.items()
    ]
    count = sum(tensor.numel() for tensor in tensors.values())
    trained = sum(tensor.numel() for tensor in tensors.values() if tensor.requires_grad)
    weights, gradients = 4 * count / 2**20, 4 * trained / 2**20
    lines.append(f"parameters {count:,}" + (f", trained {trained:,}" if trained < count else ""))
    memory = f"weights {weights:,.0f} MiB, gradients {gradients:,.0f} MiB, optimizer {2 * gradients:,.0f} MiB"
    return [*lines, f"memory {memory}"]


def _describe_assumptions(run: Run) -> list[str]:
    from .tasks.task import size_without_data

    assumed = size_without_data(run).model
    vocab, labels = getattr(assumed, "vocab", 0), getattr(assumed, "labels", 0)
    parts = [f"a vocabulary of {vocab:,}"] * bool(vocab) + [f"{labels} labels"] * bool(labels)
    assumptions = f"{' and '.join(parts)} {'is' if vocab else 'are'} assumed"
    return [f"no data were read: {assumptions}; set data.train to count them"]


def recipes() -> list[tuple[str, str]]:
    """(name, description) of every packaged recipe."""
    from .recipes import header, recipe_names, stage_names

    return [(name, header(name)) for name in sorted([*recipe_names(), *stage_names()])]


def convert(
    path: str | PathLike[str],
    *,
    out: str | PathLike[str],
    to: str | None = None,
    average: int = 0,
    precision: str = "fp32",
    data: DataFiles | None = None,
    merge: bool = False,
) -> dict[str, str]:
    """Write a run in another format (huggingface, ctranslate2, peft), with averaged checkpoints, or both.

    `merge` folds LoRA weights into the base first. `data` are examples to evaluate for the model card. The result is
    checked before it appears at `out`; the returned dict reports the checks.
    """
    from .formats.convert import convert_run as write

    path, out = path_name(path, "path"), path_name(out, "out")
    folder = Path(path) if Path(path).exists() else find_model(path).path
    return write(folder, Path(out), load_on_cpu, to, average, precision, data, merge)


def prune(
    path: str | PathLike[str], *, heads: str, out: str | PathLike[str], effect: str | PathLike[str] | None = None
) -> dict[str, str]:
    """Write a run without some attention heads to `out`: "3.2,4.1", or "least:8" of the file of an effect."""
    from .formats.pruned_run import prune_run

    run, target = Path(path_name(path, "path")), Path(path_name(out, "out"))
    measured = None if effect is None else Path(path_name(effect, "effect"))
    return prune_run(run, target, load_on_cpu, heads, measured)


def compare(paths: Iterable[str | PathLike[str]], overrides: Settings | None = None, data: Any = None) -> JsonObject:
    """Metrics of several runs on the same data; for runs that write text, also a paired bootstrap against the first."""
    from .measure.comparison import compare_predictors

    if isinstance(paths, str | PathLike) or not isinstance(paths, Iterable):
        raise UserError(f"paths is a {type(paths).__name__}; expected a list of runs to compare")
    runs = [path_name(path, "a path") for path in paths]
    for name in (name for run in runs for name in split_paths(run)):
        find_model(name)  # report a wrong path before any work
    return compare_predictors(((run, load(run, overrides)) for run in runs), evaluation_files(data))


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

    source_texts, target_texts = as_pairs(sources, targets, ("source", "target"))
    aligner = open_aligner(None if run is None else path_name(run, "run"), symmetrize, iterations)
    return [sorted(links) for links in aligner(zip(source_texts, target_texts, strict=True))]


# --- loading ---------------------------------------------------------------------------------------------------------
