"""Steps of a search, eager or captured as a CUDA graph: launching hundreds of small kernels takes most of the time."""

from collections.abc import Iterator, MutableMapping
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ..search.beam import SearchCache, SearchState

GraphKey = tuple[object, ...]  # a search can use a graph with an equal key
CHECK_EVERY = 4  # steps between two checks of `run_search` for finished rows


class StepModel(Protocol):
    """A model that a search can step."""

    def step(self, tokens: Tensor, cache: Any, valid: Tensor | None = None, /) -> Tensor:
        """Read tokens (rows, tokens), append them to the cache, return logits (rows, tokens, vocab).

        A model with `returns_scores = True` returns scores, of which a search takes no softmax.
        """


class EagerStep:
    """Runs one step of a search."""

    prompt_as_step = False  # a prompt of one token is read by a regular step

    def __init__(self, model: StepModel, state: SearchState, cache: SearchCache, check_every: int = 1) -> None:
        self.model, self.state, self.cache, self.check_every = model, state, cache, check_every

    def step(self, tokens: Tensor) -> Tensor | None:
        """Read these tokens; return the tokens to read next, or None when every row has finished."""
        return self.state.step_and_drop(self.model.step(tokens, self.cache))

    def release(self) -> None:
        """Called when the search is over."""


class GraphedStep(EagerStep):
    """A step over a fixed cache, replayed as a CUDA graph from the second step of a shape on.

    A graph works on tensors at fixed addresses. A later search with the same shapes copies its tensors there.
    """

    prompt_as_step = True
    shape: torch.Size | None = None
    captured: "CapturedGraph | None" = None

    def step(self, tokens: Tensor) -> Tensor | None:
        if tokens.shape != self.shape:
            self.release()
            self.shape, self.warm = tokens.shape, False
        if self.captured is None:
            self.captured = self.find_or_capture(tokens)
        if self.captured is None:  # the first step of a new shape runs eagerly: libraries select their kernels in it
            self.warm = True
            return super().step(tokens)
        self.captured.graph.replay()
        self.state.step += 1
        if self.state.step % self.check_every and self.state.step < self.state.capacity:
            return self.captured.tokens
        return self.state.drop_finished(self.captured.tokens)

    def find_or_capture(self, tokens: Tensor) -> "CapturedGraph | None":
        """A graph from an earlier search or a new one; None before the warm-up step."""
        graphs = CAPTURED.setdefault(self.model, {})
        entries = list(collect_state({"state": self.state, "cache": self.cache}))
        key = *(state_signature(entry) for entry in entries), weight_versions(self.model)
        captured = None if torch.is_autocast_enabled("cuda") else graphs.pop(key, None)
        if captured is not None:  # removed, so that no other search uses it meanwhile
            captured.tokens.copy_(tokens)
            copy_into([entry for entry in entries if isinstance(entry.value, Tensor)], captured.tensors)
            return captured
        return self.capture(tokens, key, entries) if self.warm else None

    def capture(self, tokens: Tensor, key: GraphKey, entries: list["StateEntry"]) -> "CapturedGraph":
        """Capture a step. It computes nothing: cache and state stay unchanged, except `step`, which is restored."""
        buffer, graph, step = tokens.clone(), torch.cuda.CUDAGraph(), self.state.step
        tensors = [entry.value for entry in entries if isinstance(entry.value, Tensor)]
        main, stream = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(main)
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")  # other threads may predict
            buffer.copy_(self.state.advance(self.model.step(buffer, self.cache)))
            graph.capture_end()
        main.wait_stream(stream)
        self.state.step = step
        return CapturedGraph(key, graph, buffer, tensors)

    def release(self) -> None:
        """Return the graph for later searches. Under autocast it may refer to casted weights that no longer exist."""
        if self.captured is not None and not torch.is_autocast_enabled("cuda"):
            graphs = CAPTURED[self.model]
            graphs[self.captured.key] = self.captured
            for key in list(graphs)[:-MAX_GRAPHS]:
                graphs.pop(key, None)  # another thread may have taken it
        self.captured = None


class BatchStep:
    """One step of a model over all rows of a cache. On a GPU the cache is fixed, and the step is replayed as a CUDA
    graph from the third on.
    """

    def __init__(self, model: StepModel, cache: SearchCache, rows: int, device: torch.device) -> None:
        self.model, self.cache, self.warm = model, cache, False
        self.tokens = torch.zeros(rows, 1, dtype=torch.long, device=device)  # to read
        self.valid = torch.zeros(rows, 1, dtype=torch.bool, device=device)  # False in rows without a request
        self.graph: torch.cuda.CUDAGraph | None = None
        self.addresses: GraphKey = ()

    def __call__(self) -> Tensor:
        """The logits of the next tokens, (rows, vocab)."""
        if not self.tokens.is_cuda or torch.is_autocast_enabled("cuda"):
            return self._read()
        if self.graph is None:
            if not self.warm:  # libraries select their kernels in the first step
                self.warm = True
                return self._read()
            self._capture()
        assert self.graph is not None
        self.graph.replay()
        return self.logits

    def select(self, rows: Tensor) -> "BatchStep":
        """The step of these rows, after the cache has dropped the others."""
        fewer = BatchStep(self.model, self.cache, len(rows), self.tokens.device)
        fewer.tokens, fewer.valid = self.tokens[rows], self.valid[rows]
        return fewer

    def grown(self, rows: int) -> "BatchStep":
        """The step of more rows, after the cache has grown."""
        larger = BatchStep(self.model, self.cache, rows, self.tokens.device)
        larger.tokens[: len(self.tokens)], larger.valid[: len(self.valid)] = self.tokens, self.valid
        return larger

    def refresh(self) -> None:
        """Called when rows have joined. Drops the graph if a tensor has moved or a weight has changed."""
        if self.graph is not None and self.addresses != self._addresses():
            self.graph, self.warm = None, False

    def _addresses(self) -> GraphKey:
        entries = collect_state({"cache": self.cache})
        tensors = tuple(entry.value.data_ptr() for entry in entries if isinstance(entry.value, Tensor))
        return tensors, weight_versions(self.model)

    def _read(self) -> Tensor:
        return self.model.step(self.tokens, self.cache, self.valid)[:, 0]

    def _capture(self) -> None:
        """Capture a step. It computes nothing: the cache stays unchanged."""
        graph, main, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(main)
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")  # other threads may predict
            self.logits = self._read()
            graph.capture_end()
        main.wait_stream(stream)
        self.graph, self.addresses = graph, self._addresses()


class CapturedGraph(NamedTuple):
    """A captured CUDA graph with its inputs and outputs."""

    key: GraphKey
    graph: torch.cuda.CUDAGraph
    tokens: Tensor  # input of a step, then its output: the tokens to read next
    tensors: list[Tensor]  # all other tensors that it reads and writes


CAPTURED: MutableMapping[StepModel, dict[GraphKey, CapturedGraph]] = WeakKeyDictionary()
TRANSIENT = "target_slots", "at_prompt", "dropped"  # attributes that a step never reads before it has set them itself
MAX_GRAPHS = 4  # per model; each holds the memory of a cache


class StateEntry(NamedTuple):
    """A value that is reachable as owner[name]."""

    owner: Any
    name: str | int
    path: str
    value: Any


def collect_state(owner: Any, path: str = "", visited: set[int] | None = None) -> Iterator[StateEntry]:
    """Every tensor and plain value that is reachable from `owner`; each object is visited once."""
    visited = set() if visited is None else visited
    for name, value in list(owner.items() if isinstance(owner, dict) else enumerate(owner)):
        here = f"{path}.{name}"
        if name in TRANSIENT or isinstance(value, Tensor) and 0 in value.stride():
            continue  # every step makes its expanded views anew
        if value is None or isinstance(value, Tensor | int | float | str | torch.Size):
            yield StateEntry(owner, name, here, value)
        elif id(value) not in visited:
            visited.add(id(value))
            inside = value if isinstance(value, dict | list | tuple) else getattr(value, "__dict__", {})
            yield StateEntry(owner, name, f"{here} {type(value).__name__}", None)
            yield from collect_state(inside, here, visited)


def state_signature(entry: StateEntry) -> tuple[object, ...]:
    """The part of an entry that must be equal in two searches. `step` may differ: the device counts it separately."""
    value = entry.value
    if isinstance(value, Tensor):
        return entry.path, value.shape, value.dtype, value.stride()
    return entry.path, None if entry.path == ".state.step" else value


def weight_versions(model: object) -> tuple[tuple[int, int], ...]:
    """Address and version of every weight: the graph may use copies in another layout.

    Every search needs them: this walk takes half of the time of `parameters()`.
    """
    versions, modules = list[tuple[int, int]](), [model] if isinstance(model, torch.nn.Module) else []
    for module in modules:  # the list grows during the loop
        versions += [
            (weight.data_ptr(), weight._version) for weight in module._parameters.values() if weight is not None
        ]
        modules += [child for child in module._modules.values() if child is not None]
    return tuple(versions)


def copy_into(entries: list[StateEntry], tensors: list[Tensor]) -> None:
    """Copy the values into the tensors of a graph, and replace the values by these tensors."""
    torch._foreach_copy_(tensors, [entry.value for entry in entries])
    for entry, tensor in zip(entries, tensors, strict=True):
        entry.owner[entry.name] = tensor
