"""Divides examples into those to train on and those held out for validation (data.holdout)."""

import numpy as np

from ...errors import UserError
from ..source import Source, Subset


def hold_out(examples: Source, share: float, split: str, tail: bool = False) -> Source:
    """The examples of split train or valid, where `share` of all are held out for validation.

    Held-out examples are random, the same in every run; with `tail` they are the last ones, as in running text. In a
    mixture, every task holds out this share.
    """
    return examples.divide(lambda part: _held_out(part, share, split, tail))


def _held_out(examples: Source, share: float, split: str, tail: bool) -> Source:
    total, count = len(examples), max(round(share * len(examples)), 1)
    if count >= total:
        raise UserError(
            f"data.holdout={share:g} of {total} examples ({examples.name}) leaves none to train on; lower it, give "
            "more data, or name validation data (data.valid)"
        )
    held = np.zeros(total, bool)
    held[np.arange(total - count, total) if tail else np.random.default_rng(total).permutation(total)[:count]] = True
    chosen = np.flatnonzero(held if split == "valid" else ~held)
    which = f"{'the last' if tail else 'a random'} {100 * share:.4g} % of {examples.name}"
    return Subset(examples, chosen, which if split == "valid" else f"all but {which}")
