"""One decode step, recorded as a CUDA graph: launching its hundreds of small kernels costs more than running them."""

from typing import Any, Protocol

import torch
from torch import Tensor

WARM = 2  # steps of one shape that run as they are: the prompt, and one in which libraries make their choices


class Decodable(Protocol):
    """`start(…)` differs by family (a source, frames, or only rows); a search is handed the cache it returned."""

    def step(self, tokens: Tensor, cache: Any, real: Tensor | None = None) -> Tensor:
        """Read tokens (rows, tokens), remember them, return logits (rows, tokens, vocab)."""


class Recorded:
    """A model for one search over a fixed cache. Logits are good until the next step."""

    def __init__(self, model: Decodable) -> None:
        self.model = model
        self.begin(None)

    def begin(self, shape: torch.Size | None) -> None:
        self.shape, self.seen = shape, 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def step(self, tokens: Tensor, cache: Any, real: Tensor | None = None) -> Tensor:
        if real is not None or tokens.shape != self.shape:
            self.begin(tokens.shape)
        self.seen += 1
        if self.seen <= WARM:
            return self.model.step(tokens, cache, real)
        if self.graph is None:
            self.record(tokens, cache)
        assert self.graph is not None
        self.tokens.copy_(tokens)
        self.graph.replay()
        return self.logits

    def record(self, tokens: Tensor, cache: Any) -> None:
        """Nothing is computed yet, and the cache stays as it is."""
        self.tokens, self.graph = tokens.clone(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.logits = self.model.step(self.tokens, cache)
