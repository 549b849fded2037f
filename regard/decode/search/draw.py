"""Draw tokens: temperature, top_k, top_p and min_p of every row, and random numbers that depend on key, step and token.

A token is drawn as the winner of a race: the largest p / E, where E is exponential noise of that token (Gumbel-max,
1611.01144). So the choice among fewer tokens needs no new random numbers, and the vocabulary need not be sorted.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...config.strategies import Sample
from .pool import TIE_MARGIN, blocked_topk


@dataclass(frozen=True)
class SamplingSettings:
    """How to sample each input row. Limits shape the distribution; the score of a sample remains the model's own."""

    keys: Tensor  # (rows, samples) int64: the seeds of each sample's random numbers
    temperature: Tensor  # (rows,), as the following ones
    top_k: Tensor  # 0: all
    top_p: Tensor  # infinite: all
    min_p: Tensor
    most: int = 0  # the largest top_k
    every_row: bool = False  # every row has a top_k
    mass: bool = False  # some row has a top_p or min_p

    @classmethod
    def of(cls, keys: Tensor, strategies: Sequence[Sample]) -> "SamplingSettings":
        """The settings of rows with these strategies."""
        counts = [strategy.top_k for strategy in strategies]
        shares = [strategy.top_p if strategy.top_p < 1 else math.inf for strategy in strategies]  # sums are rounded
        columns = [s.temperature for s in strategies], counts, shares, [s.min_p for s in strategies]
        temperature, top_k, top_p, min_p = (torch.tensor(column, device=keys.device) for column in columns)
        mass = any(strategy.top_p < 1 or strategy.min_p for strategy in strategies)
        return cls(keys, temperature, top_k, top_p, min_p, max(counts), all(counts), mass)

    def select(self, rows: Tensor) -> "SamplingSettings":
        """The settings of these rows, for every sample: (rows · samples, 1)."""
        samples = self.keys.size(1)
        columns = self.temperature, self.top_k, self.top_p, self.min_p
        temperature, top_k, top_p, min_p = (x[rows].repeat_interleave(samples)[:, None] for x in columns)
        keys = self.keys[rows].reshape(-1, 1)
        return replace(self, keys=keys, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)


def draw_tokens(scores: Tensor, settings: SamplingSettings, rows: Tensor, step: Tensor) -> Tensor:
    """(rows, samples): a token of every sample from log-probabilities (rows, samples, vocab), up to a constant."""
    limits, flat = settings.select(rows), scores.flatten(0, 1)
    odds, tokens = limit_count(odds_of(flat, limits), limits)
    if limits.mass and odds.is_cuda:  # a captured step cannot try again
        odds = limit_mass(odds, limits)
    seeds = step.repeat_interleave(scores.size(1))[:, None]
    race = odds / exponential(
        limits.keys, seeds, torch.arange(odds.size(1), device=odds.device) if tokens is None else tokens
    )
    choice = race.argmax(1, keepdim=True)
    if limits.mass and not odds.is_cuda:
        choice = retry_outside(odds, race, choice, limits)
    token = choice if tokens is None else tokens.gather(1, choice)
    return token.view(scores.shape[:2])


def odds_of(flat: Tensor, limits: SamplingSettings) -> Tensor:
    """(rows, vocab): p^(1 / temperature) relative to the likeliest token."""
    best = flat.amax(1, keepdim=True).clamp(min=torch.finfo(flat.dtype).min)  # finite, if every token is forbidden
    return (flat - best).div_(limits.temperature).exp_()


def limit_count(odds: Tensor, limits: SamplingSettings) -> tuple[Tensor, Tensor | None]:
    """Keep the `top_k` likeliest tokens of each row and those as likely as the last of them.

    Returns the odds of candidates and their tokens (rows, candidates); None: all tokens are candidates.
    """
    if not limits.most:
        return odds, None
    count = min(limits.most + TIE_MARGIN, odds.size(1))
    best, tokens = blocked_topk(odds, count)
    least = best.gather(1, limits.top_k.clamp(1, count) - 1).masked_fill(limits.top_k == 0, 0.0)
    ties = odds.is_cuda or bool((best[:, -1:] >= least).any())  # there may be more than the margin
    if limits.every_row and not ties:
        return best.masked_fill(best < least, 0.0), tokens
    return odds.masked_fill(odds < least, 0.0), None


def limit_mass(odds: Tensor, limits: SamplingSettings) -> Tensor:
    """Keep the likeliest tokens that reach `top_p` of the probability (1904.09751), and equally likely ones.

    Of these, keep tokens with at least `min_p` of the likeliest one's probability (2407.01082).
    """
    ordered = odds.sort(dim=1, descending=True).values
    outside = ordered.cumsum(1) - ordered >= limits.top_p * ordered.sum(1, keepdim=True)
    least = ordered.masked_fill(outside, torch.inf).amin(1, keepdim=True)
    return odds.masked_fill((odds < least) | (odds < limits.min_p), 0.0)


def retry_outside(odds: Tensor, race: Tensor, choice: Tensor, limits: SamplingSettings) -> Tensor:
    """The choice among the tokens that `limit_mass` keeps, without a sort.

    A choice is outside if likelier tokens reach `top_p` already. Then less likely ones are too, and the race goes on
    without them.
    """
    wanted = limits.top_p * odds.sum(1, keepdim=True)
    rows, result, least = torch.arange(len(odds)), choice.clone(), limits.min_p
    while len(rows):
        chosen = odds.gather(1, choice)
        above = ((odds > chosen) * odds).sum(1, keepdim=True)
        outside = ((above > 0) & (above >= wanted) | (chosen > 0) & (chosen < least))[:, 0]  # 0: all are forbidden
        result[rows] = choice
        rows, odds, race = rows[outside], odds[outside], race[outside]
        wanted, least = wanted[outside], least[outside]
        race = race.masked_fill_(odds <= chosen[outside], 0.0)
        choice = race.argmax(1, keepdim=True)
    return result


# --- counter-based random numbers: each depends only on its key, step and token ---------------------------------------


def exponential(keys: Tensor, step: Tensor, tokens: Tensor) -> Tensor:
    """(…, tokens): exponential noise of `tokens` for keys and steps (…, 1)."""
    numbers = mix_bits(keys + step * STRIDE) + (tokens + 1) * STRIDE  # int64 products wrap around
    noise = torch.empty(numbers.shape, device=numbers.device)
    flat, rows = numbers.view(-1, numbers.size(-1)), noise.view(-1, numbers.size(-1))
    some = len(flat) if flat.is_cuda else max(CACHED // flat.size(1), 1)
    for begin in range(0, len(flat), some):
        part = mix_bits(flat[begin : begin + some])
        part = (part >> 41 & 2**23 - 1).float().add_(0.5)  # 23 bits and a half fit a float32: never 0, never 1
        torch.neg(part.mul_(2.0**-23).log_(), out=rows[begin : begin + some])
    return noise


def mix_bits(x: Tensor) -> Tensor:
    """Every bit of the result depends on every bit of x (int64, SplitMix64). Masks clear the ones of a signed shift."""
    x = (x ^ (x >> 30 & 2**34 - 1)).mul_(FIRST)
    x ^= x >> 27 & 2**37 - 1
    x *= SECOND
    x ^= x >> 31 & 2**33 - 1
    return x


STRIDE, FIRST, SECOND = (n - 2**64 for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
CACHED = 1 << 16  # numbers at a time, which stay in the cache of a core
