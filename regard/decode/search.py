"""The loop that all ways of decoding share: read tokens, let the step rule choose the next, until it has enough."""

from collections.abc import Iterator

import torch
from torch import Tensor

from .beam import Beams, Hypothesis, Past, Settings, Walk
from .constrained_beam import Constrained
from .cuda_graph import LOOK, Decodable, Plain, Recorded
from .greedy import Greedy
from .sample import Samples


def search(
    model: Decodable, cache: Past, prompt: Tensor, limits: Tensor, settings: Settings, real: Tensor | None = None
) -> list[list[Hypothesis]]:
    """Continue prompts (rows, tokens), ragged if `real` says so, by at most `limits` (rows,) tokens, END counted.

    A preallocated cache must have room for the prompt, and its beams are given room for the longest limit here; on a
    GPU the step is then recorded once and replayed.
    """
    return next(walk.results() for walk in steps(model, cache, prompt, limits, settings, real, LOOK) if walk.finished)


@torch.no_grad()
def steps(
    model: Decodable,
    cache: Past,
    prompt: Tensor,
    limits: Tensor,
    settings: Settings,
    real: Tensor | None = None,
    look: int = 1,
) -> Iterator[Walk]:
    """What `search` does, step by step: the same walk each time, one token further.

    On a GPU, where to look makes the device wait, only every `look` steps it is seen whether all rows have ended.
    """
    walk = rule(settings, cache, limits)
    kind = Recorded if prompt.is_cuda and cache.fixed and walk.recordable else Plain
    one = kind(model, walk, cache, look)
    try:
        tokens = begun(one, prompt, real)
        while tokens is not None:
            yield walk
            tokens = one.step(tokens)
        yield walk
    finally:  # only now: another search may write where this one's results stood
        one.put_back()


def begun(one: Plain, prompt: Tensor, real: Tensor | None) -> Tensor | None:
    """The prompt is read: the tokens to read next, (rows, width)."""
    walk, cache = one.walk, one.cache
    early = one.early and walk.early and prompt.size(1) == 1 and real is None
    if early:
        cache.ready()
    else:
        scores = last_of(one.model.step(prompt, cache, real), real)[:, None]  # (rows, 1, vocab): it is one beam
    if walk.width > 1:
        cache.branch(walk.width, walk.longest)
    return one.step(walk.spread(prompt)) if early else walk.advance(scores)


def rule(settings: Settings, cache: Past, limits: Tensor) -> Walk:
    if settings.draw is not None:
        return Samples(settings, settings.draw, cache, limits)
    if settings.must is not None:
        return Constrained(settings, settings.must, cache, limits)
    if settings.beam == settings.nbest == 1 and settings.stop == "first":
        return Greedy(settings, cache, limits)
    return Beams(settings, cache, limits)


def last_of(logits: Tensor, real: Tensor | None) -> Tensor:
    """(rows, vocab) at each row's own last real token."""
    if real is None:
        return logits[:, -1]
    return logits[torch.arange(len(logits), device=logits.device), real.long().cumsum(1).argmax(1)]
