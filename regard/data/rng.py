"""Random numbers of examples: a pure function of (seed, epoch, example), computed for many examples at once."""

from typing import Self

import numpy as np

AUGMENT_STREAM = 1  # augmentation has its own random stream, apart from the order of steps
GOLDEN = np.array(0x9E3779B97F4A7C15, np.uint64)
FIRST, SECOND = np.array(0xBF58476D1CE4E5B9, np.uint64), np.array(0x94D049BB133111EB, np.uint64)


class ExampleRng:
    """One counter-based random stream per example (or text): number `i` of a stream does not need those before it.

    A numpy generator for every example would take longer than masking it.
    """

    def __init__(self, keys: np.ndarray) -> None:
        self.keys = keys  # (examples,) uint64

    @classmethod
    def of(cls, seed: int, epoch: int, examples: np.ndarray) -> Self:
        base = np.random.SeedSequence([seed, epoch, AUGMENT_STREAM]).generate_state(1, np.uint64)
        return cls(_mix(base + np.asarray(examples).astype(np.uint64) * GOLDEN))

    def __len__(self) -> int:
        return len(self.keys)

    def branch(self, number: int) -> "ExampleRng":
        """Other streams of the same examples."""
        return ExampleRng(_mix(self.keys + np.uint64(number + 1) * SECOND))

    def split(self, parts: int) -> "ExampleRng":
        """`parts` streams for each example, one after the other."""
        return ExampleRng(np.stack([self.branch(part).keys for part in range(parts)], 1).ravel())

    def uniform(self, lengths: np.ndarray | None = None) -> np.ndarray:
        """Numbers in [0, 1): `lengths[i]` numbers of stream i, concatenated; without `lengths`, one per stream."""
        if lengths is None:
            return _unit(_mix(self.keys + GOLDEN))
        places = np.arange(1, lengths.sum() + 1) - np.repeat(lengths.cumsum() - lengths, lengths)
        return _unit(_mix(np.repeat(self.keys, lengths) + places.astype(np.uint64) * GOLDEN))

    def below(self, limits: np.ndarray | int) -> np.ndarray:
        """An integer in [0, limit) from each stream."""
        return (self.uniform() * limits).astype(np.int64)

    def generators(self) -> list[np.random.Generator]:
        """A generator per stream, for augmentation that is not vectorized (9 µs each)."""
        return [np.random.default_rng(key) for key in self.keys.tolist()]


def _mix(values: np.ndarray) -> np.ndarray:
    """SplitMix64's finalizer (Steele et al., 2014); overflow wraps."""
    values = (values ^ (values >> np.uint64(30))) * FIRST
    values = (values ^ (values >> np.uint64(27))) * SECOND
    mixed: np.ndarray = values ^ (values >> np.uint64(31))
    return mixed


def _unit(values: np.ndarray) -> np.ndarray:
    unit: np.ndarray = (values >> np.uint64(11)) * 2.0**-53
    return unit
