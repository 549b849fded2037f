"""The examples of a task as arrays, and batches of them. Steps, processes and workers are the loader's."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import numpy as np

from ..config.data.base import Data
from ..config.train import Train
from .batch import Batch
from .rng import ExampleRng
from .source import Source

CACHED_EXAMPLES = 2_000_000  # data sets of at most so many examples stay in memory once encoded

EncodedExample: TypeAlias = tuple[np.ndarray, ...]  # token ids of both sides of a pair, or what else the task needs
StoredExample: TypeAlias = tuple[bytes | np.ndarray, ...]


class Measured(NamedTuple):
    """What the sampler must know about some examples."""

    examples: np.ndarray
    sizes: np.ndarray  # (examples, 2) of both sides, in the unit of the budget; of the largest row
    shortened: np.ndarray  # (examples,) bool: cut, or read in windows
    rows: np.ndarray  # (examples,) that each becomes


class Dataset(ABC):
    """Encodes, augments and collates examples. A batch depends only on its examples, the seed and the epoch."""

    limit_key = "data.max_tokens"  # the setting that bounds the size of a side
    curriculum = False  # the first epoch goes from small examples to large ones
    sorted = True  # examples of similar sizes share a step; packed rows take any

    def __init__(self, examples: Source, data: Data, train: Train) -> None:
        examples.require_nonempty("data.train")
        self.examples, self.data, self.train = examples, data, train
        self.limit = data.max_tokens  # examples with a larger side are left out
        self.shortened: set[int] = set()  # of those encoded here
        self._cache: list[StoredExample | None] | None = None
        self._pool: dict[int, StoredExample] = {}  # encoded to be measured, and not used yet

    # Defined by each task

    @abstractmethod
    def encode(self, indices: list[int]) -> Iterable[EncodedExample]:
        """These examples as arrays, the same in every epoch. Token ids are int32."""

    @abstractmethod
    def collate(self, items: Sequence[EncodedExample]) -> Batch:
        """A batch of encoded and augmented examples."""

    def augment(self, items: list[EncodedExample], draws: ExampleRng) -> list[EncodedExample]:
        """The items as one epoch uses them; `draws` has a random stream for each."""
        return items

    def sizes(self, item: EncodedExample) -> tuple[int, int]:
        """The size of both sides before augmentation: what the budget of a step counts."""
        return len(item[0]), len(item[1])

    def partners(self, epoch: int, examples: np.ndarray) -> np.ndarray:
        """Other examples that an epoch joins to these; their sizes must be known, too."""
        return examples[:0]

    def epoch_sizes(self, epoch: int, examples: np.ndarray, sizes: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """The sizes of examples as an epoch uses them, from `sizes`, those of any examples."""
        return sizes(examples)

    def rows(self, item: EncodedExample) -> int:
        """The rows that an example becomes. The steps may have some of them each."""
        return 1

    def row(self, item: EncodedExample, number: int) -> EncodedExample:
        """One row of an example that becomes several."""
        raise NotImplementedError

    def describe_too_long(self) -> str:
        """What makes examples too long, after "they have "."""
        return f"a side of more than {self.limit} tokens"

    def describe_shortened(self) -> str:
        """What happens to examples that are shortened, after "3 of 10 "."""
        return f"examples have more than {self.limit} tokens and were shortened ({self.limit_key})"

    # Batches

    def batch(self, indices: np.ndarray, epoch: int, rows: np.ndarray | None = None) -> Batch:
        """A batch of these examples, as training uses them in this epoch; with `rows`, of one row of each."""
        items = self.encoded(indices)
        if rows is not None:
            items = [self.row(item, number) for item, number in zip(items, rows.tolist(), strict=True)]
        if type(self).augment is not Dataset.augment:
            items = self.augment(items, ExampleRng.of(self.train.seed, epoch, indices))
        return replace(self.collate(items), examples=tuple(indices.tolist()))

    def measure(self, indices: np.ndarray, keep: bool = False) -> Measured:
        """Encode examples together for their sizes. With `keep` they stay in memory until a batch uses them."""
        chosen, sizes = indices.tolist(), dict[int, tuple[int, int, int]]()
        self._pool = {}
        for i in chosen:
            if self._cache is not None and (stored := self._cache[i]) is not None:
                sizes[i] = (*self.sizes(item := restore(stored)), self.rows(item))
        new = [i for i in dict.fromkeys(chosen) if i not in sizes]
        for i, item in zip(new, self.encode(new) if new else (), strict=True):
            sizes[i] = (*self.sizes(item), self.rows(item))
            if keep:
                self._keep(i, store(item))
        shortened = np.array([i in self.shortened for i in chosen], bool)
        table = np.array([sizes[i] for i in chosen]).reshape(-1, 3)
        return Measured(indices, table[:, :2], shortened, table[:, 2])

    # Encoded examples in memory

    def cache_encoded(self) -> None:
        """From now on keep every encoded example of a small data set."""
        if len(self.examples) <= CACHED_EXAMPLES and self._cache is None:
            self._cache = [None] * len(self.examples)

    def encoded(self, indices: np.ndarray) -> list[EncodedExample]:
        """These examples as arrays, from memory if they are there."""
        chosen, cache = indices.tolist(), self._cache
        take = self._take if cache is None else cache.__getitem__
        found = {i: take(i) for i in dict.fromkeys(chosen)}
        new = [i for i, item in found.items() if item is None]
        for i, item in zip(new, self.encode(new) if new else (), strict=True):
            found[i] = stored = store(item)
            if cache is not None:
                self._keep(i, stored)
        return [restore(found[i] or ()) for i in chosen]

    def _keep(self, index: int, item: StoredExample) -> None:
        if self._cache is None:
            self._pool[index] = item
        else:
            self._cache[index] = item

    def _take(self, index: int) -> StoredExample | None:
        return self._pool.pop(index, None)


def store(item: EncodedExample) -> StoredExample:
    """Token ids as bytes, which take 80 bytes less than an array; other arrays stay."""
    return tuple(side.tobytes() if side.dtype == np.int32 and side.ndim == 1 else side for side in item)


def restore(item: StoredExample) -> EncodedExample:
    """The arrays of an example that is stored as bytes."""
    return tuple(np.frombuffer(side, np.int32) if isinstance(side, bytes) else side for side in item)
