"""Tuned runs: the model is that of a base; the run folder stores only the tuned parameters."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from ..config.merge import one_of
from ..config.run import Run
from ..errors import UserError
from ..parts.layer import smallest_context
from ..pretrained import Pretrained
from ..processors.base import Processor
from ..run_folder import read_run
from . import tune
from .injection import Unsupported
from .precision import apply

WEIGHTS = "model.safetensors"


def prepare(model: nn.Module, run: Run, pretrained: Pretrained, processors: Mapping[str, Processor]) -> list[str]:
    """Freeze a model that has the weights of the base and attach what is trained; return notes for the user."""
    check_room(model, run)
    count = sum(each.numel() for each in model.parameters())
    _attach(model, run, pretrained, processors)
    return [tune.describe_tuning(model, run.tune.kind, count)]


def restore(predictor: Any, folder: Path, pretrained: Pretrained, force: bool = False) -> Any:
    """Give a predictor without weights those of the base, and the tuned ones of the run in `folder`."""
    from ..training.checkpoint import load_model

    run = predictor.run
    check_base(predictor.model, folder, pretrained, force)
    pretrained.share_weights(predictor.model, predictor.device)
    if run.precision != "int8":  # `_attach` quantizes; another tuned run may have quantized the shared base already
        apply(predictor.model, run.precision)
    _attach(predictor.model, run, pretrained, predictor.processors)
    load_model(predictor.model, folder / WEIGHTS)
    if run.precision != "int8":  # with int8 the tuned parts stay in fp32
        apply(predictor.model, run.precision)
    predictor.model.eval()
    return predictor


def _attach(model: nn.Module, run: Run, pretrained: Pretrained, processors: Mapping[str, Processor]) -> None:
    if run.precision == "int8":
        apply(model, "int8", kept=pretrained.unfrozen)
    attach(model, run, pretrained.unfrozen, _initial_tokens(run, processors))


def attach(model: nn.Module, run: Run, unfrozen: Sequence[str], words: Sequence[int] = ()) -> None:
    """Attach the trainable parts of `run.tune`; a family that does not support them is reported by name."""
    try:
        tune.attach(model, run.tune, unfrozen, words)
    except Unsupported as error:
        raise error.for_family(run.model.family) from error


def _initial_tokens(run: Run, processors: Mapping[str, Processor]) -> Sequence[int]:
    """The tokens of tune.words, which initialize a prompt or a prefix; none if it is not set."""
    if not (text := getattr(run.tune, "words", "")):
        return ()
    if run.tune.kind == "prefix" and bool(getattr(run.model, "target_vocab", False)):
        raise UserError(
            f"tune.words is {text!r}, but source and target have separate vocabularies; leave it out to initialize "
            "the prefix from random tokens"
        )
    if not (tokens := next(iter(processors.values())).encode(text).tolist()):
        raise UserError(f"tune.words is {text!r}, which has no tokens; give some words, or leave it out")
    found: list[int] = tokens
    return found


def check_room(model: nn.Module, run: Run) -> None:
    """Check that the model has positions for tune.length virtual tokens and the texts of the run."""
    length, context = getattr(run.tune, "length", 0), smallest_context(model)
    if length and getattr(run.data, "packed", False):
        raise UserError(
            f"tune.kind={run.tune.kind} goes before a text, but packed rows hold several; set data.packed=false"
        )
    if length and context is not None and length >= context:
        raise UserError(f"tune.length is {length}, but the model has {context} positions for it and a text; use less")
    if length and context is not None and run.data.max_tokens + length > context:
        raise UserError(
            f"data.max_tokens is {run.data.max_tokens}, but tune.length={length} leaves {context - length} of the "
            f"model's {context} positions; set data.max_tokens to {context - length} or less"
        )


def check_base(model: nn.Module, folder: Path, pretrained: Pretrained, force: bool) -> None:
    """Check that the base has the weights that the run was tuned over; `force` only warns if not."""
    known = read_run(folder).get("start", {})
    if known.get("weights") == (digest := pretrained.digest()):
        return
    problem = (
        f"{folder} was tuned over {known.get('folder')} (weights {str(known.get('weights'))[:8]}), but "
        f"{pretrained.start} has other weights ({digest[:8]})"
    )
    if not force:
        raise UserError(
            f"{problem}; give that base, or try `BASE --tune {folder} --force`, whose output may be nonsense"
        )
    pretrained.shared_names(model, folder)  # tensors of other shapes cannot be forced
    warnings.warn(f"{problem}; --force uses it anyway, and the output may be nonsense", stacklevel=2)


def base_folder(run: Run, folder: Path) -> str:
    """The folder of the base that the run in `folder` was tuned over."""
    if not Path(run.start).exists():
        raise UserError(
            f"{folder} is tuned over {run.start}, which does not exist; restore it, or name its new place: "
            f"`regard predict BASE --tune {folder}`"
        )
    return run.start


# --- several tuned runs over one base --------------------------------------------------------------------------------


def load_over(tunes: Any, read: Callable[[Path], Any]) -> Any:
    """The predictor that `read` makes of one folder; of several, by name or in a list, an AdapterSwitch."""
    if isinstance(tunes, str | Path):
        return read(Path(tunes))
    named = tunes if isinstance(tunes, Mapping) else _by_name(tunes)
    if not named:
        raise UserError("tune is empty; give the folder of a tuned run, or several by name")
    return AdapterSwitch({name: read(Path(folder)) for name, folder in named.items()})


def _by_name(folders: Sequence[str | Path]) -> dict[str, Path]:
    named = {Path(folder).resolve().name: Path(folder) for folder in folders}
    if len(named) < len(folders):
        raise UserError("two folders in tune have the same name; give them names: tune={'a': …, 'b': …}")
    return named


class AdapterSwitch:
    """Predictors that share the tensors of one base. It acts as the one that `use` selected, initially the first."""

    def __init__(self, predictors: Mapping[str, Any]) -> None:
        self.predictors = dict(predictors)
        self.name = next(iter(self.predictors))
        for predictor in self.predictors.values():
            predictor.model.tune.shared = len(self.predictors) > 1

    def use(self, name: str) -> "AdapterSwitch":
        """Select a predictor by name."""
        if name not in self.predictors:
            raise UserError(f"there is no tuned run {name!r} over this base; {one_of(name, list(self.predictors))}")
        self.name = name
        return self

    def __getattr__(self, name: str) -> Any:
        if "predictors" not in self.__dict__:  # while it is copied
            raise AttributeError(name)
        return getattr(self.__dict__["predictors"][self.__dict__["name"]], name)
