"""Steps of a search, recorded as a CUDA graph: to launch their hundreds of small kernels costs more than they do."""

from collections.abc import Iterator, MutableMapping
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from .beam import SearchCache, SearchState

LOOK = 4  # steps between two looks of `search` at whether all have ended


class StepModel(Protocol):
    """`start(…)` differs by family (a source, frames, or only rows); a search is handed the cache it returned."""

    def step(self, tokens: Tensor, cache: Any, real: Tensor | None = None) -> Tensor:
        """Read tokens (rows, tokens), remember them, return logits (rows, tokens, vocab)."""


class EagerStep:
    """A step of a search."""

    early = False  # is a prompt of one token read like any other?

    def __init__(self, model: StepModel, walk: SearchState, cache: SearchCache, look: int = 1) -> None:
        self.model, self.walk, self.cache, self.look = model, walk, cache, look

    def step(self, tokens: Tensor) -> Tensor | None:
        """Read these; the tokens to read next, or None when every row has ended."""
        return self.walk.step_and_drop(self.model.step(tokens, self.cache))

    def put_back(self) -> None:
        """The search is over."""


class GraphedStep(EagerStep):
    """The same over a fixed cache, replayed from the second step of a shape on.

    A recording works on tensors at certain addresses. A later search of the same shapes brings its own tensors there.
    """

    early = True
    shape: torch.Size | None = None
    recording: "CapturedGraph | None" = None

    def step(self, tokens: Tensor) -> Tensor | None:
        if tokens.shape != self.shape:
            self.put_back()
            self.shape, self.warm = tokens.shape, False
        if self.recording is None:
            self.recording = self.found(tokens)
        if self.recording is None:  # the first step of a new shape is as it is: libraries make their choices in it
            self.warm = True
            return super().step(tokens)
        self.recording.graph.replay()
        self.walk.step += 1
        if self.walk.step % self.look and self.walk.step < self.walk.longest:
            return self.recording.tokens
        return self.walk.drop_finished(self.recording.tokens)

    def found(self, tokens: Tensor) -> "CapturedGraph | None":
        """A recording to go on with, from an earlier search or made now."""
        known, places = (
            CAPTURED.setdefault(self.model, {}),
            list(collect_state({"walk": self.walk, "cache": self.cache})),
        )
        kind = *(outline(place) for place in places), addresses(self.model)
        if not torch.is_autocast_enabled("cuda") and kind in known:
            recording = known.pop(kind)  # nobody else may use it meanwhile
            recording.tokens.copy_(tokens)
            copy_into([place for place in places if isinstance(place.value, Tensor)], recording.held)
            return recording
        return self.record(tokens, kind, places) if self.warm else None

    def record(self, tokens: Tensor, kind: Any, places: list["StateEntry"]) -> "CapturedGraph":
        """Nothing is computed yet: neither the cache nor the walk moves, but for the step that Python counts."""
        fed, graph, step = tokens.clone(), torch.cuda.CUDAGraph(), self.walk.step
        held = [place.value for place in places if isinstance(place.value, Tensor)]
        here, aside = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            graph.capture_begin()
            fed.copy_(self.walk.advance(self.model.step(fed, self.cache)))
            graph.capture_end()
        here.wait_stream(aside)
        self.walk.step = step
        return CapturedGraph(kind, graph, fed, held)

    def put_back(self) -> None:
        """Let later searches use the recording. Under autocast it may hold weights that are gone by then."""
        if self.recording is not None and not torch.is_autocast_enabled("cuda"):
            known = CAPTURED[self.model]
            known[self.recording.kind] = self.recording
            for kind in list(known)[:-KEPT]:
                del known[kind]
        self.recording = None


class CapturedGraph(NamedTuple):
    kind: Any
    graph: torch.cuda.CUDAGraph
    tokens: Tensor  # read by a step, and then those to read next
    held: list[Tensor]  # what else it reads and writes


CAPTURED: MutableMapping[Any, dict[Any, CapturedGraph]] = WeakKeyDictionary()
ANEW = "target_slots", "at_prompt", "put"  # what no step reads that it has not said itself
KEPT = 4  # recordings of a model, each with the memory of a cache


class StateEntry(NamedTuple):
    """Where a value hangs: owner[name]."""

    owner: Any
    name: Any
    path: str
    value: Any


def collect_state(owner: Any, path: str = "", seen: set[int] | None = None) -> Iterator[StateEntry]:
    """Every tensor and plain value that hangs on some objects, each object once."""
    seen = set() if seen is None else seen
    for name, value in list(owner.items() if isinstance(owner, dict) else enumerate(owner)):
        here = f"{path}.{name}"
        if name in ANEW or isinstance(value, Tensor) and 0 in value.stride():
            continue  # an expanded view is made anew in every step
        if value is None or isinstance(value, Tensor | int | float | str | torch.Size):
            yield StateEntry(owner, name, here, value)
        elif id(value) not in seen:
            seen.add(id(value))
            inside = value if isinstance(value, dict | list | tuple) else getattr(value, "__dict__", {})
            yield StateEntry(owner, name, f"{here} {type(value).__name__}", None)
            yield from collect_state(inside, here, seen)


def outline(place: StateEntry) -> tuple[Any, ...]:
    """What must agree between two searches. How often Python has stepped is counted on the device as well."""
    value = place.value
    if isinstance(value, Tensor):
        return place.path, value.shape, value.dtype, value.stride()
    return place.path, None if place.path == ".walk.step" else value


def addresses(model: Any) -> tuple[tuple[int, int], ...]:
    """Where the weights are, and which: copies of them may have been laid out for use."""
    every = model.parameters() if isinstance(model, torch.nn.Module) else ()
    return tuple((each.data_ptr(), each._version) for each in every)


def copy_into(places: list[StateEntry], held: list[Tensor]) -> None:
    """Copy the values to the tensors of a recording, and hang those up in their stead."""
    torch._foreach_copy_(held, [place.value for place in places])
    for place, tensor in zip(places, held, strict=True):
        place.owner[place.name] = tensor
