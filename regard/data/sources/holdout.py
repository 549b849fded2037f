"""Divides examples into those to train on and those held out for validation (data.holdout)."""

import hashlib

import numpy as np

from ...errors import UserError
from ..source import Source
from .mixture import Mixture


class Subset(Source):
    """Some examples of a data set."""

    def __init__(self, examples: Source, indices: np.ndarray, name: str) -> None:
        self.examples, self.indices, self.name = examples, indices, name
        self.counts = examples.counts | {"examples": len(indices)}

    def __len__(self) -> int:
        return len(self.indices)

    def item(self, index: int) -> tuple[object, ...]:
        return self.examples.item(int(self.indices[index]))

    def field(self, index: int, field: int) -> object:
        return self.examples.field(int(self.indices[index]), field)

    def text(self, index: int, field: int) -> str:
        return self.examples.text(int(self.indices[index]), field)

    def seconds(self, index: int) -> float:
        return self.examples.seconds(int(self.indices[index]))

    def location(self, index: int) -> str:
        return self.examples.location(int(self.indices[index]))

    def adjacent(self, index: int) -> bool:
        here, following = int(self.indices[index]), int(self.indices[index + 1])
        return following == here + 1 and self.examples.adjacent(here)

    def fingerprint(self) -> str:
        chosen = hashlib.blake2b(self.indices.astype(np.int64).tobytes(), digest_size=16).hexdigest()
        return hashlib.blake2b(f"{self.examples.fingerprint()} {chosen}".encode(), digest_size=16).hexdigest()

    def report(self) -> list[str]:
        return self.examples.report()


def hold_out(examples: Source, share: float, split: str, tail: bool = False) -> Source:
    """The examples of split train or valid, where `share` of all are held out for validation.

    Held-out examples are random, the same in every run; with `tail` they are the last ones, as in running text. In a
    mixture, every task holds out this share.
    """
    if isinstance(examples, Mixture):
        parts = [hold_out(member, share, split, tail) for member in examples.datasets]
        weights = () if examples.weights is None else tuple(examples.weights)
        return Mixture(list(zip(examples.prefixes, parts, strict=True)), weights)
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
