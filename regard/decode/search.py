"""The loop that all ways of decoding share: read tokens, let the step rule choose the next, until it has enough."""

from collections.abc import Iterator

import torch
from torch import Tensor

from .beam import BeamSearch, Hypothesis, SearchCache, SearchSettings, SearchState
from .constrained_beam import ConstrainedBeamSearch
from .cuda_graph import LOOK, EagerStep, GraphedStep, StepModel
from .greedy import GreedySearch
from .sample import SampleSearch


def search(
    model: StepModel,
    cache: SearchCache,
    prompt: Tensor,
    limits: Tensor,
    settings: SearchSettings,
    real: Tensor | None = None,
) -> list[list[Hypothesis]]:
    """Continue prompts (rows, tokens), ragged if `real` says so, by at most `limits` (rows,) tokens, END counted.

    A preallocated cache must have room for the prompt, and its beams are given room for the longest limit here; on a
    GPU the step is then recorded once and replayed.
    """
    return next(walk.results() for walk in steps(model, cache, prompt, limits, settings, real, LOOK) if walk.finished)


@torch.no_grad()
def steps(
    model: StepModel,
    cache: SearchCache,
    prompt: Tensor,
    limits: Tensor,
    settings: SearchSettings,
    real: Tensor | None = None,
    look: int = 1,
) -> Iterator[SearchState]:
    """What `search` does, step by step: the same walk each time, one token further.

    On a GPU, where to look makes the device wait, only every `look` steps it is seen whether all rows have ended.
    """
    walk = rule(settings, cache, limits)
    kind = GraphedStep if prompt.is_cuda and cache.fixed and walk.recordable else EagerStep
    one = kind(model, walk, cache, look)
    try:
        tokens = begun(one, prompt, real)
        while tokens is not None:
            yield walk
            tokens = one.step(tokens)
        yield walk
    finally:  # only now: another search may write where this one's results stood
        one.put_back()


def begun(one: EagerStep, prompt: Tensor, real: Tensor | None) -> Tensor | None:
    """The prompt is read: the tokens to read next, (rows, width)."""
    walk, cache = one.walk, one.cache
    early = one.early and walk.early and prompt.size(1) == 1 and real is None
    if early:
        cache.skip_prompt()
    else:
        scores = last_of(one.model.step(prompt, cache, real), real)[:, None]  # (rows, 1, vocab): it is one beam
    if walk.width > 1:
        cache.branch(walk.width, walk.longest)
    return one.step(walk.spread(prompt)) if early else walk.step_and_drop(scores)


def rule(settings: SearchSettings, cache: SearchCache, limits: Tensor) -> SearchState:
    if settings.sampling is not None:
        return SampleSearch(settings, settings.sampling, cache, limits)
    if settings.required is not None:
        return ConstrainedBeamSearch(settings, settings.required, cache, limits)
    if settings.beam == settings.nbest == 1 and settings.early_stopping == "first":
        return GreedySearch(settings, cache, limits)
    return BeamSearch(settings, cache, limits)


def last_of(logits: Tensor, real: Tensor | None) -> Tensor:
    """(rows, vocab) at each row's own last real token."""
    if real is None:
        return logits[:, -1]
    return logits[torch.arange(len(logits), device=logits.device), real.long().cumsum(1).argmax(1)]
