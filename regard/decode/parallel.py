"""Decoding of models that write all tokens at once. Rows never depend on each other."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..families.protocols import FertilityModel, InfillModel, ParallelModel
from ..parts import Encoded
from ..parts.fertility import copy_tokens
from ..parts.inputs import Inputs
from .beam import Hypothesis
from .pool import TIE, first_best
from .sample import gumbel


def likeliest(scores: Tensor) -> Tensor:
    """The index of the largest score along the last dimension; ties go to the first."""
    return first_best(scores.flatten(0, -2))[1].view(scores.shape[:-1])


def repeat_rows(encoded: Encoded, times: int) -> Encoded:
    """Every row of an encoded source `times` times, one after the other."""
    valid = None if encoded.valid is None else encoded.valid.repeat_interleave(times, 0)
    return Encoded(encoded.states.repeat_interleave(times, 0), valid)


def token_logprobs(model: ParallelModel, target: Inputs, encoded: Encoded, hidden: Tensor) -> Tensor:
    """(rows, tokens, vocab) for the input of the decoder; tokens in `hidden` are never written."""
    logits = model.logits(model.decode(target, encoded)).float()
    logprobs: Tensor = logits.log_softmax(-1).index_fill(-1, hidden, -torch.inf)
    return logprobs


# --- fertilities -----------------------------------------------------------------------------------------------------


def fertility_logprobs(model: FertilityModel, encoded: Encoded) -> Tensor:
    """(rows, source, classes); padding has fertility 0."""
    logprobs = model.fertility_logits(encoded).float().log_softmax(-1)
    if encoded.valid is None:
        return logprobs
    none = torch.full_like(logprobs[:1, :1], -torch.inf)
    none[..., 0] = 0.0
    return torch.where(encoded.valid[..., None], logprobs, none)


def likeliest_fertilities(logprobs: Tensor) -> Tensor:
    """The likeliest fertility of every source token."""
    return likeliest(logprobs)


def mean_fertilities(logprobs: Tensor) -> Tensor:
    """The expected fertilities, rounded half up."""
    classes = torch.arange(logprobs.size(-1), device=logprobs.device, dtype=torch.float64)
    return ((logprobs.double().exp() * classes).sum(-1) + 0.5 + TIE).floor().long()


def sampled_fertilities(logprobs: Tensor, keys: Tensor) -> Tensor:
    """(rows, samples, source) from keys (rows, samples). The first sample has the likeliest ones."""
    rows, size, classes = logprobs.shape
    samples = keys.size(1)
    places = torch.arange(1, size + 1, device=keys.device).repeat(samples)
    noise = gumbel(keys.repeat_interleave(size, 1), places[None], classes).view(rows, samples, size, classes)
    found = (logprobs[:, None] + noise).argmax(-1)
    found[:, 0] = likeliest_fertilities(logprobs)
    return found


def limit_fertilities(fertilities: Tensor, limits: Tensor) -> Tensor:
    """Fertilities (rows, source) of which no more than `limits` (rows,) copies remain, the first ones."""
    ends = torch.minimum(fertilities.cumsum(1), limits[:, None])
    return ends.diff(dim=1, prepend=torch.zeros_like(ends[:, :1]))


def random_fertilities(logprobs: Tensor) -> Tensor:
    """(rows, source), by torch's generator."""
    return torch.multinomial(logprobs.exp().flatten(0, 1), 1).view(logprobs.shape[:2])


def write_copies(
    model: FertilityModel, source: Inputs, encoded: Encoded, fertilities: Tensor, hidden: Tensor
) -> list[tuple[list[int], float]]:
    """The tokens of every row and their log-probability, given the fertilities (rows, source)."""
    values, valid = copy_tokens(source.values, fertilities)
    if not values.size(1):
        return [([], 0.0)] * len(values)
    logprobs = token_logprobs(model, Inputs("tokens", values, valid), encoded, hidden)
    tokens = likeliest(logprobs)
    chosen = logprobs.gather(-1, tokens[..., None])[..., 0].masked_fill(~valid, 0.0)
    found = zip(tokens.tolist(), valid.sum(1).tolist(), chosen.sum(1).tolist(), strict=True)
    return [(row[:length], logprob) for row, length, logprob in found]


# --- masked tokens ---------------------------------------------------------------------------------------------------


def likeliest_lengths(logits: Tensor, limits: Tensor, beam: int) -> Tensor:
    """(rows, at most beam): the likeliest lengths from 1 to the limit of each row (rows,), best first.

    A row with fewer possible lengths repeats its first.
    """
    classes = torch.arange(logits.size(1), device=logits.device)
    possible = (classes > 0) & (classes <= limits[:, None])
    scores = logits.float().log_softmax(-1).masked_fill(~possible, -torch.inf)
    best, found = scores.sort(dim=1, descending=True, stable=True)
    return torch.where(best > -torch.inf, found, found[:, :1])[:, :beam]


def mask_predict(
    model: InfillModel, encoded: Encoded, lengths: Tensor, iterations: int, mask: int, hidden: Tensor
) -> tuple[Tensor, Tensor]:
    """Tokens of targets of these lengths (rows,), and their log-probabilities, both (rows, longest).

    All tokens are predicted together. Then, in every iteration, a linearly falling number of the least likely ones is
    masked and predicted again.
    """
    places = torch.arange(int(lengths.max()), device=lengths.device)
    valid = places < lengths[:, None]
    tokens, logprobs = torch.full_like(valid, mask, dtype=torch.long), torch.zeros_like(valid, dtype=torch.float)
    again = valid
    for iteration in range(iterations):
        if iteration:
            count = lengths * (iterations - iteration) // iterations
            rank = logprobs.masked_fill(~valid, torch.inf).argsort(dim=1, stable=True).argsort(1)
            again = (rank < count[:, None]) & valid
        if not again.any():
            break
        found = token_logprobs(model, Inputs("tokens", tokens.masked_fill(again, mask), valid), encoded, hidden)
        new = likeliest(found)
        tokens = torch.where(again, new, tokens)
        logprobs = torch.where(again, found.gather(-1, new[..., None])[..., 0], logprobs)
    return tokens, logprobs.masked_fill(~valid, 0.0)


# --- results ---------------------------------------------------------------------------------------------------------


def merge_repeats(tokens: Sequence[int]) -> list[int]:
    """The tokens without those that follow an equal one."""
    return [token for token, before in zip(tokens, [None, *tokens], strict=False) if token != before]


def hypothesis(tokens: list[int], logprob: float, length_penalty: float, merged: bool) -> Hypothesis:
    """The score counts all tokens, also those that are merged."""
    score = logprob / max(len(tokens), 1) ** length_penalty
    return Hypothesis(merge_repeats(tokens) if merged else tokens, score, logprob, True)
