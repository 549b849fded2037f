"""Tuned runs: the model is that of a base; the run folder stores only the tuned parameters."""

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from torch import nn

from ..adapt import tune
from ..adapt.injection import Unsupported, injection_of
from ..adapt.outliers import smallest_vocab
from ..adapt.precision import apply_precision
from ..config.data.base import DataFiles
from ..config.merge import one_of
from ..config.run import Run
from ..config.run_folder import read_run
from ..decode.engine.answer import Answer, Emit
from ..decode.engine.engine import Engine
from ..errors import UserError
from ..files import JsonObject, path_name
from ..formats.hub import SCHEME
from ..look import AttentionView, Which
from ..look.states import Layers
from ..messages.base import Request, Result
from ..parts.layer import smallest_context
from ..processors.base import Processor
from ..tasks.base import Metrics, group_indices
from ..tasks.predictor import AnyPredictor, PlainResult
from ..tasks.reading import ItemReader
from .pretrained import Pretrained

WEIGHTS = "model.safetensors"


def prepare_tuned(model: nn.Module, run: Run, pretrained: Pretrained, processors: Mapping[str, Processor]) -> list[str]:
    """Freeze a model that has the weights of the base and attach the trainable parts; return notes for the user."""
    check_room(model, run)
    count = sum(parameter.numel() for parameter in model.parameters())
    _attach(model, run, pretrained, processors)
    return [tune.describe_tuning(model, run.tune.kind, count)]


def restore_tuned(predictor: AnyPredictor, folder: Path, pretrained: Pretrained, force: bool = False) -> AnyPredictor:
    """Give a predictor without weights those of the base, and the tuned ones of the run in `folder`."""
    from ..training.checkpoint import load_model

    run = predictor.run
    check_base(predictor.model, folder, pretrained, force)
    pretrained.share_weights(predictor.model, predictor.device)
    if run.precision != "int8":  # `_attach` quantizes; another tuned run may have quantized the shared base already
        apply_precision(predictor.model, run.precision)
    _attach(predictor.model, run, pretrained, predictor.processors)
    load_model(predictor.model, folder / WEIGHTS)
    if run.precision != "int8":  # with int8 the tuned parts stay in fp32
        apply_precision(predictor.model, run.precision)
    predictor.model.eval()
    return predictor


def _attach(model: nn.Module, run: Run, pretrained: Pretrained, processors: Mapping[str, Processor]) -> None:
    if run.precision == "int8":
        apply_precision(model, "int8", unconverted=pretrained.unfrozen, vocab=smallest_vocab(run.model))
    attach_tuned(model, run, pretrained.unfrozen, _initial_tokens(run, processors))


def attach_tuned(model: nn.Module, run: Run, unfrozen: Sequence[str], words: Sequence[int] = ()) -> None:
    """Attach the trainable parts of `run.tune`; the error names a family that does not support them."""
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
    first = next(iter(processors.values()))
    if first.modality != "tokens":
        raise UserError(f"tune.words is {text!r}, but this model reads {first.modality}; leave it out")
    if not (tokens := first.encode(text).tolist()):
        raise UserError(f"tune.words is {text!r}, which has no tokens; give some words, or leave it out")
    ids: list[int] = tokens
    return ids


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
    start = read_run(folder).get("start", {})
    if start.get("weights") == (digest := pretrained.digest()):
        return
    problem = (
        f"{folder} was tuned over {start.get('folder')} (weights {str(start.get('weights'))[:8]}), but "
        f"{pretrained.start} has other weights ({digest[:8]})"
    )
    if not force:
        raise UserError(
            f"{problem}; give that base, or try `BASE --tune {folder} --force`, whose output may be nonsense"
        )
    pretrained.shared_names(model, folder)  # tensors of other shapes cannot be forced
    warnings.warn(f"{problem}; --force uses it anyway, and the output may be nonsense", stacklevel=2)


def describe_base(run: Run, pretrained: Pretrained, folder: Path) -> JsonObject:
    """The entry of run.json about the start of the run in `folder`: the hash of its weights, and its paths."""
    start: JsonObject = {"folder": run.start, "weights": pretrained.digest()}
    if pretrained.source.commit:
        start["commit"] = pretrained.source.commit
    elif Path(run.start).exists():
        start["absolute"] = str(Path(run.start).resolve())
        with suppress(ValueError):  # on another drive of Windows
            start["relative"] = os.path.relpath(start["absolute"], folder.resolve())
    return start


def base_folder(run: Run, folder: Path) -> str:
    """The folder that the run in `folder` was started from: by its relative path, its absolute path, or as given.

    So both may move together, the run may move alone, and the current directory does not matter. A start that a user
    has corrected in the config of run.json is used as it is. A model of the hub is named with its commit.
    """
    start = read_run(folder).get("start", {})
    start = start if start.get("folder") == run.start else {}
    if "commit" in start:
        return f"{SCHEME}{run.start.removeprefix(SCHEME).partition('@')[0]}@{start['commit']}"
    places = [str(folder.resolve() / start["relative"])] if "relative" in start else []
    places += [start["absolute"]] if "absolute" in start else []
    for place in places:
        if Path(place).exists():
            return run.start if Path(run.start).exists() and os.path.samefile(run.start, place) else place
    if Path(run.start).exists():
        return run.start
    missing = f"{start.get('absolute', run.start)}, which does not exist; restore it"
    if run.tune.kind == "none":
        raise UserError(f"{folder} was started from {missing}")
    raise UserError(f"{folder} is tuned over {missing}, or name its new place: `regard predict BASE --tune {folder}`")


# --- several tuned runs over one base --------------------------------------------------------------------------------


AnyPath: TypeAlias = str | os.PathLike[str]
Tunes: TypeAlias = AnyPath | Mapping[str, AnyPath] | Iterable[AnyPath]
"""The folder of a tuned run, or several: by name, or in a list, where the last part of the path is the name."""


def load_over(tunes: Tunes, read: Callable[[Path], AnyPredictor]) -> AnyPredictor:
    """The predictor that `read` returns for one folder; for several folders, an AdapterSwitch."""
    if isinstance(tunes, str | os.PathLike) or not isinstance(tunes, Iterable):
        return read(Path(path_name(tunes, "tune")))
    named = tunes if isinstance(tunes, Mapping) else _by_name(list(tunes))
    if not named:
        raise UserError("tune is empty; give the folder of a tuned run, or several by name")
    return AdapterSwitch({name: read(Path(path_name(folder, "a path of tune"))) for name, folder in named.items()})


def _by_name(folders: Sequence[AnyPath]) -> dict[str, Path]:
    paths = [Path(path_name(folder, "a path of tune")) for folder in folders]
    named = {path.resolve().name: path for path in paths}
    if len(named) < len(folders):
        raise UserError("two folders in tune have the same name; give them names: tune={'a': …, 'b': …}")
    return named


class AdapterSwitch(AnyPredictor):
    """Predictors that share the tensors of one base, by the names of their adapters.

    `switch["a"]` is one of them; a request selects one by `adapter`, and so may `predict`. Otherwise the switch acts as
    the one that `use` selected, initially the first. All threads share this selection, so threads should name theirs.
    """

    def __init__(self, predictors: Mapping[str, AnyPredictor]) -> None:
        self.predictors = dict(predictors)
        self.name = next(iter(self.predictors))
        for predictor in self.predictors.values():
            if (injection := injection_of(predictor.module)) is not None:
                injection.shared = len(self.predictors) > 1
        self.use(self.name)

    def __getitem__(self, name: str) -> AnyPredictor:
        if name not in self.predictors:
            raise unknown_adapter(name, self.predictors)
        return self.predictors[name]

    def use(self, name: str) -> "AdapterSwitch":
        """Select a predictor by name."""
        if name not in self.predictors:
            raise unknown_adapter(name, self.predictors)
        self.name = name
        return self

    @property
    def selected(self) -> AnyPredictor:
        return self.predictors[self.name]

    def requests(self, items: Iterable[Any], details: bool = False, **decode: object) -> list[Request]:
        """`adapter` may stand beside the names of decode.*."""
        name = str(decode.pop("adapter", None) or self.name)
        return [replace(request, adapter=name) for request in self[name].requests(items, details, **decode)]

    @property
    def engine(self) -> Engine:
        """The engine of the selected predictor."""
        return self.selected.engine

    async def answer(self, request: Request, emit: Emit | None = None) -> Result:
        """The selected predictor answers."""
        result: Result = await self.selected.answer(request, emit)
        return result

    def predict_requests(self, requests: Sequence[Request], batch: int | None = None) -> list[Result]:
        default = self.name
        results: dict[int, Result] = {}
        for indices in group_indices(requests, lambda request: request.adapter or default):
            group = [replace(requests[i], adapter=None) for i in indices]
            predictor = self[requests[indices[0]].adapter or default]
            results |= zip(indices, predictor.predict_requests(group, batch), strict=True)
        return [results[i] for i in range(len(requests))]

    def predict_each(self, requests: Sequence[Request], batch: int | None = None) -> list[Result | BaseException]:
        """Each request goes to the engine of its adapter."""
        results: dict[int, Result | BaseException] = {}
        default = self.name
        for indices in group_indices(requests, lambda request: request.adapter or default):
            name = requests[indices[0]].adapter or default
            if name not in self.predictors:
                results |= {i: unknown_adapter(name, self.predictors) for i in indices}
                continue
            group = [replace(requests[i], adapter=None) for i in indices]
            results |= zip(indices, self[name].predict_each(group, batch), strict=True)
        return [results[i] for i in range(len(requests))]

    def submit(self, request: Request, seconds: float | None = None) -> Answer[Result]:
        """Start a request in the engine of its adapter."""
        return self[request.adapter or self.name].submit(replace(request, adapter=None), seconds)

    def plain_result(self, request: Request, result: Result) -> PlainResult:
        return self[request.adapter or self.name].plain_result(request, result)

    def score(self, texts: Any, targets: Any = None, details: bool = False) -> PlainResult:
        return self.selected.score(texts, targets, details)

    def look(self, text: str, target: str | None = None, layer: Which = None) -> AttentionView:
        return self.selected.look(text, target, layer)

    def muted(self, heads: str) -> "AdapterSwitch":
        """A switch whose predictors have these heads muted."""
        switch = AdapterSwitch({name: predictor.muted(heads) for name, predictor in self.predictors.items()})
        return switch.use(self.name)

    def norm_weighted(self) -> "AdapterSwitch":
        """A switch whose predictors show norm-weighted attention."""
        switch = AdapterSwitch({name: predictor.norm_weighted() for name, predictor in self.predictors.items()})
        return switch.use(self.name)

    def states(self, x: Any, layers: Layers = None) -> Any:
        """The hidden states of the selected predictor."""
        return self.selected.states(x, layers)

    def save(self, folder: AnyPath) -> Path:
        """Save the selected predictor."""
        return self.selected.save(folder)

    def evaluate_with_outputs(self, files: DataFiles | None = None) -> tuple[Metrics, list[str] | None, object]:
        return self.selected.evaluate_with_outputs(files)

    def is_item(self, x: object) -> bool:
        return self.selected.is_item(x)

    @property
    def item_reader(self) -> ItemReader:
        return self.selected.item_reader

    def format_line(self, name: str, request: Request, result: Result) -> str:
        return self[request.adapter or self.name].format_line(name, request, result)

    @property
    def processors(self) -> dict[str, Processor]:
        return self.selected.processors

    def __getattr__(self, name: str) -> Any:
        """The other attributes, such as `run`, `model` and `embed`, are those of the selected predictor."""
        if "predictors" not in self.__dict__:  # while it is copied
            raise AttributeError(name)
        return getattr(self.__dict__["predictors"][self.__dict__["name"]], name)


def unknown_adapter(name: str, known: Iterable[str]) -> UserError:
    """The error for an adapter that is not loaded."""
    return UserError(f"there is no tuned run {name!r} over this base; {one_of(name, list(known))}")
