"""An ensemble of models with one vocabulary: the mean of their probabilities at every step."""

from collections.abc import Sequence
from math import log
from typing import Any

import torch
from torch import Tensor, nn

from ...parts import Inputs
from ..search.beam import OpenCache


class CacheBundle:
    """The caches of all members as one SearchCache."""

    def __init__(self, caches: Sequence[OpenCache]) -> None:
        self.caches, self.fixed = caches, all(cache.fixed for cache in caches)

    def skip_prompt(self) -> None:
        """See `SearchCache`."""
        for cache in self.caches:
            cache.skip_prompt()

    def branch(self, beams: int, steps: int) -> None:
        """See `SearchCache`."""
        for cache in self.caches:
            cache.branch(beams, steps)

    def reorder(self, origin: Tensor) -> None:
        """See `SearchCache`."""
        for cache in self.caches:
            cache.reorder(origin)

    def select(self, rows: Tensor) -> "CacheBundle":
        """See `SearchCache`."""
        for cache in self.caches:
            cache.select(rows)
        return self

    def rebound(self, tokens: int) -> None:
        """See `OpenCache`."""
        for cache in self.caches:
            cache.rebound(tokens)

    def put(self, rows: Tensor, other: "CacheBundle", origin: Tensor) -> None:
        """See `OpenCache`."""
        for cache, theirs in zip(self.caches, other.caches, strict=True):
            cache.put(rows, theirs, origin)


class Ensemble(nn.Module):
    """Models of one vocabulary."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members: Any = nn.ModuleList(members)  # Any: nn.Module does not type `start` and `step`

    def start(self, source: Inputs | None, rows: int, capacity: int | None = None) -> CacheBundle:
        """The caches of all members."""
        return CacheBundle([member.start(source, rows, capacity) for member in self.members])

    def step(self, tokens: Tensor, cache: CacheBundle, valid: Tensor | None = None) -> Tensor:
        """The mean of the members' probabilities, as logits."""
        pairs = zip(self.members, cache.caches, strict=True)
        return mean_logprobs([member.step(tokens, own, valid) for member, own in pairs])


def mean_logprobs(logits: Sequence[Tensor]) -> Tensor:
    """The logarithm of the mean of the probabilities."""
    each = torch.stack([scores.float().log_softmax(-1) for scores in logits])
    return each.logsumexp(0) - log(len(logits))
