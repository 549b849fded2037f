"""The loop that all ways of decoding share: read tokens, let the step rule choose the next, until it has enough."""

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from .beams import Beams, Hypothesis, Past, Settings, Walk
from .constraints import Constrained
from .sample import Samples


class Decodable(Protocol):
    """`start(…)` differs by family (a source, frames, or only rows); a search is handed the cache it returned."""

    def step(self, tokens: Tensor, cache: Any, real: Tensor | None = None) -> Tensor:
        """Read tokens (rows, tokens), remember them, return logits (rows, tokens, vocab)."""


def search(
    model: Decodable, cache: Past, prompt: Tensor, limits: Tensor, settings: Settings, real: Tensor | None = None
) -> list[list[Hypothesis]]:
    """Continue prompts (rows, tokens), ragged if `real` says so, by at most `limits` (rows,) tokens, END counted.

    A preallocated cache must have room for the prompt, and its beams are given room for the longest limit here.
    """
    *_, walk = steps(model, cache, prompt, limits, settings, real)
    return walk.results()


@torch.no_grad()
def steps(
    model: Decodable, cache: Past, prompt: Tensor, limits: Tensor, settings: Settings, real: Tensor | None = None
) -> Iterator[Walk]:
    """What `search` does, step by step: the same walk each time, one token further."""
    walk = rule(settings, cache, limits)
    scores = last_of(model.step(prompt, cache, real), real)[:, None]  # (rows, 1, vocab): the prompt is one beam
    if walk.width > 1:
        cache.branch(walk.width, int(limits.max()))
    while (tokens := walk.advance(scores)) is not None:  # (rows, width)
        yield walk
        scores = model.step(tokens, cache)
    yield walk


def rule(settings: Settings, cache: Past, limits: Tensor) -> Walk:
    if settings.draw is not None:
        return Samples(settings, settings.draw, cache, limits)
    if settings.must is not None:
        return Constrained(settings, settings.must, cache, limits)
    return Beams(settings, cache, limits)


def last_of(logits: Tensor, real: Tensor | None) -> Tensor:
    """(rows, vocab) at each row's own last real token."""
    if real is None:
        return logits[:, -1]
    return logits[torch.arange(len(logits), device=logits.device), real.long().cumsum(1).argmax(1)]
