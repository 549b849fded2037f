"""The loop of all decoding strategies: read tokens and let the strategy choose the next ones until it is done."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from ..search.beam import BeamSearch, Hypothesis, SearchCache, SearchSettings, SearchState
from ..search.constrained_beam import ConstrainedBeamSearch
from ..search.greedy import GreedySearch
from ..search.sample import SampleSearch
from .cuda_graph import CHECK_EVERY, EagerStep, GraphedStep, StepModel


def run_search(
    model: StepModel,
    cache: SearchCache,
    prompt: Tensor,
    limits: Tensor,
    settings: SearchSettings,
    valid: Tensor | None = None,
) -> list[list[Hypothesis]]:
    """Continue prompts (rows, tokens) by at most `limits` (rows,) tokens, including END.

    `valid` (rows, tokens) marks the tokens of prompts that differ in length. A preallocated cache must have room for
    the prompt; the search adds room for its beams up to the longest limit. On a GPU the step is then captured once and
    replayed.
    """
    states = search_steps(model, cache, prompt, limits, settings, valid, CHECK_EVERY)
    return next(state.results() for state in states if state.finished)


@torch.no_grad()
def search_steps(
    model: StepModel,
    cache: SearchCache,
    prompt: Tensor,
    limits: Tensor,
    settings: SearchSettings,
    valid: Tensor | None = None,
    check_every: int = 1,
) -> Iterator[SearchState]:
    """`run_search` step by step: yields the same state each time, one token further.

    On a GPU it checks only every `check_every` steps whether all rows have finished: a check makes the host wait.
    """
    if getattr(model, "returns_scores", False):
        settings = replace(settings, softmax=False)
    state = build_search(settings, cache, limits)
    stepper_class = GraphedStep if prompt.is_cuda and cache.fixed and state.graph_safe else EagerStep
    stepper = stepper_class(model, state, cache, check_every)
    try:
        tokens = read_prompt(stepper, prompt, valid)
        while tokens is not None:
            yield state
            tokens = stepper.step(tokens)
        yield state
    finally:  # only now: another search may overwrite the tensors that held these results
        stepper.release()


def read_prompt(stepper: EagerStep, prompt: Tensor, valid: Tensor | None) -> Tensor | None:
    """Read the prompt and return the tokens to read next, (rows, width)."""
    state, cache = stepper.state, stepper.cache
    as_step = stepper.prompt_as_step and state.prompt_as_step and prompt.size(1) == 1 and valid is None
    if as_step:
        cache.skip_prompt()
    else:
        scores = last_logits(stepper.model.step(prompt, cache, valid), valid)[:, None]  # (rows, 1, vocab): one beam
    if state.width > 1:
        cache.branch(state.width, state.most)
    return stepper.step(state.replicate_prompt(prompt)) if as_step else state.step_and_drop(scores)


def build_search(settings: SearchSettings, cache: SearchCache, limits: Tensor, capacity: int = 0) -> SearchState:
    """The state of a search; with `capacity` its rows may have that many tokens, so that others can join."""
    if settings.sampling is not None:
        return SampleSearch(settings, settings.sampling, cache, limits, capacity)
    if settings.required is not None:
        return ConstrainedBeamSearch(settings, settings.required, cache, limits, capacity)
    if settings.beam == settings.nbest == 1 and settings.early_stopping == "first":
        return GreedySearch(settings, cache, limits, capacity)
    return BeamSearch(settings, cache, limits, capacity)


def last_logits(logits: Tensor, valid: Tensor | None) -> Tensor:
    """(rows, vocab) at the last valid token of each row."""
    if valid is None:
        return logits[:, -1]
    return logits[torch.arange(len(logits), device=logits.device), valid.long().cumsum(1).argmax(1)]
