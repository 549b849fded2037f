"""Decoding of models that write all tokens at once. Rows never depend on each other."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..families.protocols import FertilityModel, InfillModel, ParallelModel
from ..parts import Encoded
from ..parts.fertility import copy_tokens
from ..parts.inputs import Inputs
from .beam import Hypothesis
from .copies import likeliest


def repeat_rows(encoded: Encoded, times: int) -> Encoded:
    """Every row of an encoded source `times` times, one after the other."""
    valid = None if encoded.valid is None else encoded.valid.repeat_interleave(times, 0)
    return Encoded(encoded.states.repeat_interleave(times, 0), valid)


def token_logprobs(model: ParallelModel, target: Inputs, encoded: Encoded, hidden: Tensor) -> Tensor:
    """(rows, tokens, vocab) for the input of the decoder; tokens in `hidden` are never written."""
    logits = model.logits(model.decode(target, encoded)).float()
    logprobs: Tensor = logits.log_softmax(-1).index_fill(-1, hidden, -torch.inf)
    return logprobs


# --- copies of the source --------------------------------------------------------------------------------------------


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
