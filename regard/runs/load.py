"""Load models as predictors: runs, tuned runs over a base, ensembles, Hugging Face folders, GGUF files."""

from collections.abc import Mapping
from functools import cache
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING

from ..config import run_folder
from ..config.merge import Section, Settings, flatten, split_commas
from ..config.run import Run, change_settings, load_config
from ..data.sources.data_files import with_data
from ..errors import UserError
from ..files import path_name
from ..formats.hub import local_folder
from ..formats.model_source import find_model
from .pretrained import Pretrained

if TYPE_CHECKING:
    from ..tasks.predictor import AnyPredictor
    from .tuned import Tunes


def load(
    path: str | PathLike[str],
    overrides: Settings | None = None,
    *,
    tune: "Tunes | None" = None,
    force: bool = False,
    mute: str | None = None,
    **sections: Section,
) -> "AnyPredictor":
    """Load a model as a predictor: a run folder, a Hugging Face folder, a GGUF file, or `org/name` of the hub.

    `a,b` loads an ensemble.

    `tune` is the folder of a run that was tuned over this base, or several by name: the result is then an
    AdapterSwitch, whose `[name]` is one of them. `mute` names attention heads whose outputs become zeros: "3.2,4.1".
    """
    if mute is not None:
        return load(path, merge_settings(overrides, sections), tune=tune, force=force).muted(mute)
    if force and tune is None:
        raise UserError("--force applies only to --tune; give --tune, or leave --force out")
    path, changes = path_name(path, "path"), merge_settings(overrides, sections)
    if tune is not None:
        return _load_tuned(path, tune, changes, force)
    if len(names := split_paths(path)) > 1:
        return _load_ensemble(names, changes)
    source = find_model(names[0])
    if source.format == "run":
        return load_run(change_settings(read_config(source.path), changes), source.path)
    from ..device import use_threads

    predictor = source.load(changes)
    use_threads(predictor.run.threads)
    return _apply_precision(predictor)


def load_on_cpu(path: str | PathLike[str]) -> "AnyPredictor":
    """A model in fp32 on the CPU, to inspect it, convert it or start from it; the number of threads stays."""
    from ..device import kept_threads

    with kept_threads():
        return load(path, {"precision": "fp32", "device": "cpu"})


def merge_settings(overrides: Settings | None, sections: Settings) -> Settings:
    """Settings by dotted key; overrides win over sections. Data in memory get a name, paths become text."""
    if not isinstance(overrides or {}, Mapping):
        raise UserError(f"overrides is a {type(overrides).__name__}; expected a dict of settings by dotted key")
    merged = {**dict(flatten(with_data(sections))), **dict(flatten(with_data(overrides or {})))}
    return {key: fspath(value) if isinstance(value, PathLike) else value for key, value in merged.items()}


def open_pretrained(folder: str) -> Pretrained:
    """The model that `start` names, in fp32 on the CPU."""
    return Pretrained(folder, load_on_cpu)


def split_paths(path: str) -> list[str]:
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


def load_run(run: Run, path: Path, pretrained: Pretrained | None = None) -> "AnyPredictor":
    """The predictor of a run folder. `pretrained` is the base of a tuned run, if it is in memory already."""
    from ..device import resolve_device, use_threads
    from ..tasks.task import restore
    from ..training.checkpoint import load_model
    from . import tuned

    use_threads(run.threads)
    predictor = restore(run, path, resolve_device(run.device))
    predictor.folder_of_run = path
    if run.tune.kind != "none":
        return tuned.restore_tuned(predictor, path, pretrained or open_pretrained(tuned.base_folder(run, path)))
    load_model(predictor.model, path / "model.safetensors")
    return _apply_precision(predictor)


def _load_tuned(base: str, tunes: "Tunes", changes: Settings, force: bool) -> "AnyPredictor":
    """Load tuned runs over one base; the weights of the base are in memory once."""
    from ..device import resolve_device, use_threads
    from ..formats.peft.names import is_peft_folder
    from ..formats.peft.read import load_adapter
    from ..tasks.task import restore
    from . import tuned

    if len(split_paths(base)) > 1:
        raise UserError(f"--tune needs one base, and {base} are several; give one of them")
    pretrained = cache(lambda: open_pretrained(base))

    def read(name: Path) -> "AnyPredictor":
        folder = local_folder(name)
        if is_peft_folder(folder):
            return load_adapter(load(base, changes), folder, base)
        if not run_folder.is_run(folder):
            raise UserError(f"{name} is not a tuned run: it has no run.json; give the folder of a tuned run")
        run = change_settings(read_config(folder), changes)
        if run.tune.kind == "none":
            raise UserError(f"{name} is not tuned but a whole model; load it without a base")
        use_threads(run.threads)
        predictor = restore(run, folder, resolve_device(run.device))
        predictor.folder_of_run = folder
        return tuned.restore_tuned(predictor, folder, pretrained(), force)

    return tuned.load_over(tunes, read)


def _apply_precision(predictor: "AnyPredictor") -> "AnyPredictor":
    from ..adapt.outliers import smallest_vocab
    from ..adapt.precision import apply_precision

    apply_precision(predictor.model, predictor.run.precision, vocab=smallest_vocab(predictor.run.model))
    return predictor


def read_config(path: Path) -> Run:
    """The settings of a run folder."""
    about = run_folder.read_run(path)
    if "module" in about:
        raise UserError(
            f"{path} was trained by regard.fit and has no recipe; load its weights into the module: "
            f"safetensors.torch.load_model(module, {str(path / 'model.safetensors')!r})"
        )
    return load_config(about["config"], str(path / run_folder.FILE))
