"""Several models as one: the mean of their probabilities at every step. Search knows nothing of it."""

from collections.abc import Sequence
from math import log
from typing import Any

import torch
from torch import Tensor, nn

from .beam import SearchCache


class CacheBundle:
    """The caches of the members, moved together."""

    def __init__(self, caches: Sequence[Any]) -> None:
        self.caches, self.fixed = caches, all(cache.fixed for cache in caches)

    @property
    def lengths(self) -> Tensor:
        lengths: Tensor = self.caches[0].lengths
        return lengths

    def skip_prompt(self) -> None:
        for cache in self.caches:
            cache.skip_prompt()

    def branch(self, beams: int, steps: int) -> None:
        for cache in self.caches:
            cache.branch(beams, steps)

    def reorder(self, origin: Tensor) -> None:
        for cache in self.caches:
            cache.reorder(origin)

    def select(self, rows: Tensor) -> "SearchCache":
        for cache in self.caches:
            cache.select(rows)
        return self

    def reset(self, rows: Tensor) -> None:
        for cache in self.caches:
            cache.reset(rows)


class Ensemble(nn.Module):
    """Models of one vocabulary. `start` takes what theirs take."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members: Any = nn.ModuleList(members)

    def start(self, *inputs: Any, **named: Any) -> CacheBundle:
        return CacheBundle([member.start(*inputs, **named) for member in self.members])

    def step(self, tokens: Tensor, cache: CacheBundle, real: Tensor | None = None) -> Tensor:
        both = zip(self.members, cache.caches, strict=True)
        return mean([member.step(tokens, own, real) for member, own in both])


def mean(logits: Sequence[Tensor]) -> Tensor:
    """The logarithm of the mean of the probabilities."""
    each = torch.stack([scores.float().log_softmax(-1) for scores in logits])
    return each.logsumexp(0) - log(len(logits))
