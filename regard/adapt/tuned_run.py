"""Runs that tune another: their model is the base's, and the little that they keep themselves."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..config.merge import one_of
from ..config.run import Run
from ..errors import UserError
from ..parts.layer import least_context
from ..pretrained import Pretrained
from ..run_folder import read_run
from . import tune
from .injection import Unsupported
from .precision import apply

WEIGHTS = "model.safetensors"


def prepare(model: Any, run: Run, origin: Pretrained, tokenizers: Mapping[str, Any]) -> list[str]:
    """Freeze a model that has the base's weights, and hang in what is trained; what is worth telling comes back."""
    refuse(model, run)
    every = sum(each.numel() for each in model.parameters())
    _hang(model, run, origin, tokenizers)
    return [tune.told(model, run.tune.kind, every)]


def restore(system: Any, folder: Path, origin: Pretrained, force: bool = False) -> Any:
    """Give a system without weights those of the base, and what the run in `folder` has learnt over it."""
    from ..training.checkpoint import load_model

    run = system.run
    same_base(system.model, folder, origin, force)
    origin.lend(system.model, system.device)
    if run.precision != "int8":  # the base may have been used so already
        apply(system.model, run.precision)
    _hang(system.model, run, origin, system.tokenizers)
    load_model(system.model, folder / WEIGHTS)
    if run.precision != "int8":  # then the base has been made so already, and what is new stays as it is
        apply(system.model, run.precision)
    system.model.eval()
    return system


def _hang(model: Any, run: Run, origin: Pretrained, tokenizers: Mapping[str, Any]) -> None:
    if run.precision == "int8":
        apply(model, "int8", kept=origin.whole)
    attach(model, run, origin.whole, _words(run, tokenizers))


def attach(model: Any, run: Run, whole: Sequence[str], words: Sequence[int] = ()) -> None:
    try:
        tune.attach(model, run.tune, whole, words)
    except Unsupported as mistake:
        raise mistake.of(run.model.family) from mistake


def _words(run: Run, tokenizers: Mapping[str, Any]) -> Sequence[int]:
    """What a prompt or a prefix begins as, if it was said."""
    if not (text := getattr(run.tune, "words", "")):
        return ()
    if run.tune.kind == "prefix" and bool(getattr(run.model, "target_vocab", False)):
        raise UserError(
            f"tune.words is {text!r}, and source and target have vocabularies of their own; leave it out: a prefix "
            "then begins as any tokens"
        )
    if not (found := next(iter(tokenizers.values())).encode([text])[0]):
        raise UserError(f"tune.words is {text!r}, which are no words; say some, or leave it out")
    return list(found)


def refuse(model: Any, run: Run) -> None:
    """What only the data of a run can tell: no room before the texts."""
    length, context = getattr(run.tune, "length", 0), least_context(model)
    if length and getattr(run.data, "packed", False):
        raise UserError(
            f"tune.kind={run.tune.kind} goes before a text, and packed rows hold several; set data.packed=false"
        )
    if length and context is not None and length >= context:
        raise UserError(f"tune.length is {length}, and the model has {context} places for it and a text; use less")
    if length and context is not None and run.data.max_tokens + length > context:
        raise UserError(
            f"data.max_tokens is {run.data.max_tokens}, and {length} places before a text (tune.length) leave "
            f"{context - length} of the model's {context}; set data.max_tokens to that or less"
        )


def same_base(model: Any, folder: Path, origin: Pretrained, force: bool) -> None:
    """Little parts over other weights than they were trained with would say anything."""
    known = read_run(folder).get("start", {})
    if known.get("weights") == (found := origin.digest()):
        return
    told = (
        f"{folder} was tuned over {known.get('folder')} (weights {str(known.get('weights'))[:8]}), and {origin.start} "
        f"has other weights ({found[:8]})"
    )
    if not force:
        raise UserError(
            f"{told}; give that base, or `BASE --tune {folder} --force` to try it: what it then says may be nonsense"
        )
    origin.shared(model, folder)  # nobody can force what has no place
    warnings.warn(f"{told}; --force uses them all the same, and what comes out may be nonsense", stacklevel=2)


def base_of(run: Run, folder: Path) -> str:
    if not Path(run.start).exists():
        raise UserError(
            f"{folder} is tuned over {run.start}, which is not there; put it there, or say where it lies now: "
            f"`regard predict BASE --tune {folder}`"
        )
    return run.start


# --- several over one base -------------------------------------------------------------------------------------------


def over(tunes: Any, read: Callable[[Path], Any]) -> Any:
    """What `read` makes of one folder; of several, by name or in a list, one system that can be any of them."""
    if isinstance(tunes, str | Path):
        return read(Path(tunes))
    named = tunes if isinstance(tunes, Mapping) else _by_name(tunes)
    if not named:
        raise UserError("there is nothing to load over the base; give the folder of a tuned run, or several by name")
    return AdapterSwitch({name: read(Path(folder)) for name, folder in named.items()})


def _by_name(folders: Sequence[str | Path]) -> dict[str, Path]:
    found = {Path(folder).resolve().name: Path(folder) for folder in folders}
    if len(found) < len(folders):
        raise UserError("two of these folders have one name; give them names: tune={'a': …, 'b': …}")
    return found


class AdapterSwitch:
    """Systems that share the tensors of one base. It is whichever `use` named last, at first the first."""

    def __init__(self, systems: Mapping[str, Any]) -> None:
        self.systems = dict(systems)
        self.name = next(iter(self.systems))
        for system in self.systems.values():
            system.model.tune.shared = len(self.systems) > 1

    def use(self, name: str) -> "AdapterSwitch":
        if name not in self.systems:
            raise UserError(f"there is no {name!r} over this base; {one_of(name, list(self.systems))}")
        self.name = name
        return self

    def __getattr__(self, name: str) -> Any:
        if "systems" not in self.__dict__:  # while it is copied
            raise AttributeError(name)
        return getattr(self.__dict__["systems"][self.__dict__["name"]], name)
