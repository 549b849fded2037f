"""Non-autoregressive decoding. Rows never depend on each other.

The work is divided into functions of fixed shapes that never wait for the device: a GPU replays them as CUDA graphs.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from ...config.strategies import MaskPredict
from ...families.protocols import (
    CtcTranslationModel,
    FertilityModel,
    MaskPredictModel,
    ParallelModel,
    Seq2SeqModel,
    as_module,
)
from ...parts import Encoded
from ...parts.inputs import Inputs
from ...parts.parallel.fertility import copy_tokens
from ..engine.fixed_shapes import FixedCalls, Tensors, bucket
from ..search.beam import Hypothesis
from .copies import likeliest, likeliest_lengths, limit_fertilities, predict_copying


class Written(NamedTuple):
    """The tokens (rows, widest) of targets, their lengths (rows,) and log-probabilities (rows,)."""

    tokens: Tensor
    lengths: Tensor
    logprobs: Tensor

    def rows(self) -> list[tuple[list[int], float]]:
        table = zip(self.tokens.tolist(), self.lengths.tolist(), self.logprobs.tolist(), strict=True)
        return [(row[:length], logprob) for row, length, logprob in table]


def padded_source(rows: Sequence[Sequence[int]], padding: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Tokens and valid mask of sources, both (rows, bucket)."""
    values = np.full((len(rows), bucket(max(map(len, rows)), device)), padding)
    valid = np.zeros_like(values, bool)
    for number, row in enumerate(rows):
        values[number, : len(row)], valid[number, : len(row)] = row, True
    return torch.from_numpy(values).to(device), torch.from_numpy(valid).to(device)


def source_inputs(values: Tensor, valid: Tensor) -> Inputs:
    """A source for an encoder. On a CPU, a source without padding needs no mask."""
    return Inputs("tokens", values, None if valid.device.type == "cpu" and bool(valid.all()) else valid)


def best_tokens(model: ParallelModel, target: Inputs, encoded: Encoded, hidden: Tensor, needed: Tensor) -> Tensors:
    """The likeliest tokens for the input of the decoder, and their log-probabilities, both (rows, tokens).

    Tokens in `hidden` are never chosen. A CPU computes only the `needed` positions (rows, tokens), because logits take
    half of the time; the others are 0.
    """
    states = model.decode(target, encoded)
    some = states.device.type == "cpu"
    logits = model.logits(states[needed] if some else states).float()
    table = logits.log_softmax(-1)  # on a CPU twice as fast as logsumexp
    tokens = likeliest(logits.index_fill_(-1, hidden, -torch.inf))
    logprobs = table.gather(-1, tokens[..., None])[..., 0]
    return (fill_table(needed, tokens), fill_table(needed, logprobs)) if some else (tokens, logprobs)


def fill_table(places: Tensor, values: Tensor) -> Tensor:
    """The values at these places (rows, tokens), in order, and 0 elsewhere."""
    return values.new_zeros(places.shape).masked_scatter_(places, values)


# --- copies of the source --------------------------------------------------------------------------------------------


def decode_fertilities(
    model: FertilityModel,
    source: tuple[Tensor, Tensor],
    limits: Tensor,
    hidden: Tensor,
    mean: bool = False,
    keys: Tensor | None = None,
) -> Written:
    """Targets of at most `limits` (rows,) tokens for the likeliest fertilities, or for the mean ones.

    With keys (rows, samples), the targets of all samples of a row follow each other.
    """
    values, valid = source
    call = FixedCalls(as_module(model))

    def choose(values: Tensor, valid: Tensor, limits: Tensor, *keys: Tensor) -> Tensors:
        encoded = model.encode(source_inputs(values, valid))
        copying = predict_copying(model, encoded)
        if not keys:
            return encoded.states, limit_fertilities(copying.mean() if mean else copying.likeliest(), limits)
        samples = copying.several(keys[0])
        return encoded.states, limit_fertilities(samples.flatten(0, 1), limits.repeat_interleave(samples.size(1), 0))

    states, fertilities = call(("choose", mean), choose, values, valid, limits, *(() if keys is None else (keys,)))
    lengths = fertilities.sum(1)
    different, again = distinct_rows(fertilities, 1 if keys is None else keys.size(1))
    if not (longest := int(lengths.max())):
        return Written(lengths[:, None][:, :0], lengths, states.new_zeros(len(lengths)).float())
    width = bucket(longest, values.device)

    def write(
        fertilities: Tensor, rows: Tensor, values: Tensor, valid: Tensor, states: Tensor, hidden: Tensor
    ) -> Tensors:
        copies, filled = copy_tokens(values[rows], fertilities, width)
        encoded = Encoded(states, source_inputs(values, valid).valid).select(rows)
        tokens, logprobs = best_tokens(model, Inputs("tokens", copies, filled), encoded, hidden, filled)
        return tokens, logprobs.masked_fill(~filled, 0.0).sum(1)

    rows = different // (1 if keys is None else keys.size(1))
    tokens, logprobs = call(("write", width), write, fertilities[different], rows, values, valid, states, hidden)
    return Written(tokens[again], lengths, logprobs[again])


def distinct_rows(fertilities: Tensor, samples: int) -> tuple[Tensor, Tensor]:
    """The distinct rows, and for every row the index of its equal among them.

    A CPU decodes equal samples once. A GPU decodes all rows, which takes no longer.
    """
    rows = torch.arange(len(fertilities), device=fertilities.device)
    if samples == 1 or fertilities.device.type != "cpu":
        return rows, rows
    first: dict[tuple[int, ...], int] = {}
    distinct_numbers, places = list[int](), list[int]()
    for row, row_fertilities in enumerate(fertilities.tolist()):
        key = row // samples, *row_fertilities
        if key not in first:
            first[key] = len(distinct_numbers)
            distinct_numbers.append(row)
        places.append(first[key])
    return torch.tensor(distinct_numbers), torch.tensor(places)


# --- tokens and blanks -----------------------------------------------------------------------------------------------


def decode_ctc_path(model: CtcTranslationModel, source: tuple[Tensor, Tensor], hidden: Tensor) -> Written:
    """The likeliest CTC path: tokens and blanks for all copies of the source. END of the source is not copied."""

    def write(values: Tensor, valid: Tensor, hidden: Tensor) -> Tensors:
        encoded = model.encode(source_inputs(values, valid))
        copies, filled = upsample(values, valid, model.upsample)
        tokens, logprobs = best_tokens(model, Inputs("tokens", copies, filled), encoded, hidden, filled)
        return tokens, filled.sum(1), logprobs.masked_fill(~filled, 0.0).sum(1)

    return Written(*FixedCalls(as_module(model))("path", write, *source, hidden))


def upsample(values: Tensor, valid: Tensor, times: int) -> tuple[Tensor, Tensor]:
    """Copies of all source tokens except END, and their valid mask, both (rows, copies)."""
    inside = pad(valid[:, 1:], (0, 1))  # a valid one follows
    return values.repeat_interleave(times, 1), inside.repeat_interleave(times, 1)


def collapse_path(path: Sequence[int], blank: int) -> list[int]:
    """Collapse a CTC path: drop repetitions, then blanks."""
    return [token for token in merge_repeats(path) if token != blank]


# --- masked tokens ---------------------------------------------------------------------------------------------------


def decode_mask_predict(
    model: MaskPredictModel,
    source: tuple[Tensor, Tensor],
    limits: Tensor,
    hidden: Tensor,
    mask: int,
    strategy: MaskPredict,
) -> Written:
    """Targets of the likeliest lengths by Mask-Predict. Targets of a row are adjacent, the likeliest length first.

    Their log-probabilities include those of the lengths: tokens alone would prefer unlikely lengths.
    """
    values, valid = source
    beam, call = strategy.length_beam, FixedCalls(as_module(model))

    def choose(values: Tensor, valid: Tensor, limits: Tensor) -> Tensors:
        encoded = model.encode(source_inputs(values, valid))
        return encoded.states, *likeliest_lengths(model.length_logits(encoded), limits, beam)

    states, lengths, priors = call(("lengths", beam), choose, values, valid, limits)
    times, flat = lengths.size(1), lengths.flatten()
    width = bucket(int(flat.max()), values.device)

    def write(values: Tensor, valid: Tensor, states: Tensor, lengths: Tensor, hidden: Tensor) -> Tensors:
        rows = torch.arange(len(states), device=states.device).repeat_interleave(times)
        encoded = Encoded(states, source_inputs(values, valid).valid).select(rows)
        tokens, logprobs = mask_predict(model, encoded, lengths, mask, hidden, width, strategy.iterations)
        return tokens, logprobs.double().sum(1)

    name = "fill in", width, times, strategy.iterations, mask
    tokens, logprobs = call(name, write, values, valid, states, flat, hidden)
    return Written(tokens, flat, logprobs + priors.flatten())


def mask_predict(
    model: MaskPredictModel,
    encoded: Encoded,
    lengths: Tensor,
    mask: int,
    hidden: Tensor,
    width: int,
    iterations: int,
) -> Tensors:
    """Tokens of targets of these lengths (rows,), and their log-probabilities, both (rows, width).

    All tokens are predicted together. Then, in every iteration, a linearly falling number of the least likely ones is
    masked and predicted again.
    """
    valid = torch.arange(width, device=lengths.device) < lengths[:, None]
    tokens, logprobs = torch.full_like(valid, mask, dtype=torch.long), torch.zeros_like(valid, dtype=torch.float)
    again = valid
    for iteration in range(iterations):
        if iteration:
            count = lengths * (iterations - iteration) // iterations
            rank = logprobs.masked_fill(~valid, torch.inf).argsort(dim=1, stable=True).argsort(1)
            again = (rank < count[:, None]) & valid
            if lengths.device.type == "cpu" and not again.any():
                break
        masked = Inputs("tokens", tokens.masked_fill(again, mask), valid)
        new_tokens, new_logprobs = best_tokens(model, masked, encoded, hidden, again)
        tokens, logprobs = torch.where(again, new_tokens, tokens), torch.where(again, new_logprobs, logprobs)
    return tokens, logprobs.masked_fill(~valid, 0.0)


# --- scores of a teacher ---------------------------------------------------------------------------------------------


def target_logprobs(
    model: Seq2SeqModel, source: tuple[Tensor, Tensor], numbers: Sequence[int], targets: Sequence[Sequence[int]]
) -> Tensor:
    """Σ log p of targets, by an autoregressive model; `numbers` are the rows of their sources.

    A target has its tokens from START to END. All go to the device in one table.
    """
    device, widest = source[0].device, max(map(len, targets))
    width, count = bucket(widest - 1, device), bucket(len(targets), device)
    table = np.zeros((count, 2 + width + 1), np.int64)  # the number of the source, predicted tokens, tokens
    for row, number, target in zip(table, numbers, targets, strict=False):  # more rows are padding
        row[0], row[1], row[2 : 2 + len(target)] = number, len(target) - 1, target

    def score(table: Tensor, values: Tensor, filled: Tensor) -> Tensors:
        rows, lengths, inputs, labels = table[:, 0], table[:, 1:2], table[:, 2:-1], table[:, 3:]
        valid = torch.arange(width, device=table.device) < lengths
        encoded = model.encode(source_inputs(values, filled))
        states = model.decode(Inputs("tokens", inputs), encoded.select(rows))  # padding comes last
        some = states.device.type == "cpu"  # padding gets no logits there
        logits = model.logits(states[valid] if some else states).float()
        chosen = (labels[valid] if some else labels)[..., None]
        logprobs = logits.log_softmax(-1).gather(-1, chosen)[..., 0]
        return ((fill_table(valid, logprobs) if some else logprobs.masked_fill(~valid, 0.0)).sum(1),)

    (scores,) = FixedCalls(as_module(model))("score", score, torch.from_numpy(table).to(device), *source)
    return scores[: len(targets)]


# --- results ---------------------------------------------------------------------------------------------------------


def merge_repeats(tokens: Sequence[int]) -> list[int]:
    """The tokens without those that follow an equal one."""
    return [token for token, before in zip(tokens, [None, *tokens], strict=False) if token != before]


def make_hypothesis(tokens: list[int], logprob: float, length_penalty: float, merged: bool) -> Hypothesis:
    """A hypothesis, whose score counts all tokens, including merged ones."""
    score = logprob / max(len(tokens), 1) ** length_penalty
    return Hypothesis(merge_repeats(tokens) if merged else tokens, score, logprob, True)
