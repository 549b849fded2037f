"""The examples of a task as arrays, and batches of them. The loader plans steps and runs processes and workers."""

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

CACHED_EXAMPLES = 2_000_000  # data sets of at most this many examples stay in memory once encoded
KEPT_BYTES = 1 << 31  # bytes of encoded examples that stay in memory: images and sounds are large

EncodedExample: TypeAlias = tuple[np.ndarray, ...]  # source and target ids of a pair, or other arrays of the task
StoredExample: TypeAlias = tuple[bytes | np.ndarray, ...]


class Measured(NamedTuple):
    """The sizes of some examples, for the sampler."""

    examples: np.ndarray
    sizes: np.ndarray  # (examples, 2) of source and target of the largest row, in the unit of the budget
    shortened: np.ndarray  # (examples,) bool: truncated, or read in windows
    rows: np.ndarray  # (examples,) number of rows of each


class Dataset(ABC):
    """Encodes, augments and collates examples. A batch depends only on its examples, the seed and the epoch."""

    limit_key = "data.max_tokens"  # the setting that bounds the size of a source or target
    curriculum = False  # the first epoch goes from small examples to large ones
    sorted = True  # examples of similar sizes share a step; False for packed rows

    def __init__(self, examples: Source, data: Data, train: Train) -> None:
        examples.require_nonempty("data.train")
        self.examples, self.data, self.train = examples, data, train
        self.limit = data.max_tokens  # examples with a larger source or target are left out
        self.shortened: set[int] = set()  # shortened examples among those encoded here
        self._cache: list[StoredExample | None] | None = None
        self._pool: dict[int, StoredExample] = {}  # encoded for measuring and not used yet
        self._kept_bytes = 0  # of the examples in memory

    # Defined by each task

    @abstractmethod
    def encode(self, indices: list[int]) -> Iterable[EncodedExample]:
        """These examples as arrays, the same in every epoch. Token ids are int32."""

    @abstractmethod
    def collate(self, items: Sequence[EncodedExample]) -> Batch:
        """A batch of encoded and augmented examples."""

    def augment(self, items: list[EncodedExample], rng: ExampleRng) -> list[EncodedExample]:
        """The items as one epoch uses them; `rng` has a random stream for each."""
        return items

    def sizes(self, item: EncodedExample) -> tuple[int, int]:
        """The sizes of source and target before augmentation, which the budget of a step counts."""
        return len(item[0]), len(item[1])

    def partners(self, epoch: int, examples: np.ndarray) -> np.ndarray:
        """Other examples that an epoch joins to these. The sampler measures them as well."""
        return examples[:0]

    def epoch_sizes(self, epoch: int, examples: np.ndarray, sizes: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """The sizes of examples as an epoch uses them. `sizes` returns the measured sizes of any examples."""
        return sizes(examples)

    def rows(self, item: EncodedExample) -> int:
        """The number of rows of an example. Different steps may read different rows."""
        return 1

    def row(self, item: EncodedExample, number: int) -> EncodedExample:
        """One row of an example that has several."""
        raise NotImplementedError

    def describe_too_long(self) -> str:
        """The limit that too long examples exceed, to follow "they have "."""
        return f"a side of more than {self.limit} tokens"

    def describe_shortened(self) -> str:
        """How examples are shortened, to follow "3 of 10 "."""
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
        """Encode examples to know their sizes. With `keep` they stay in memory until a batch uses them."""
        chosen, sizes = indices.tolist(), dict[int, tuple[int, int, int]]()
        if self._cache is None:
            self._pool, self._kept_bytes = {}, 0
        for i in chosen:
            if self._cache is not None and (stored := self._cache[i]) is not None:
                sizes[i] = (*self.sizes(item := restore_arrays(stored)), self.rows(item))
        new = [i for i in dict.fromkeys(chosen) if i not in sizes]
        for i, item in zip(new, self.encode(new) if new else (), strict=True):
            sizes[i] = (*self.sizes(item), self.rows(item))
            if keep:
                self._keep(i, store_arrays(item))
        shortened = np.array([i in self.shortened for i in chosen], bool)
        table = np.array([sizes[i] for i in chosen]).reshape(-1, 3)
        return Measured(indices, table[:, :2], shortened, table[:, 2])

    # Encoded examples in memory

    def cache_encoded(self) -> None:
        """Keep every example in memory once it is encoded, if the data set is small."""
        if len(self.examples) <= CACHED_EXAMPLES and self._cache is None:
            self._cache = [None] * len(self.examples)

    def encoded(self, indices: np.ndarray) -> list[EncodedExample]:
        """These examples as arrays, from the cache if possible."""
        chosen, cache = indices.tolist(), self._cache
        take = self._take if cache is None else cache.__getitem__
        stored_items = {i: take(i) for i in dict.fromkeys(chosen)}
        new = [i for i, item in stored_items.items() if item is None]
        for i, item in zip(new, self.encode(new) if new else (), strict=True):
            stored_items[i] = stored_item = store_arrays(item)
            if cache is not None:
                self._keep(i, stored_item)
        return [restore_arrays(stored_items[i] or ()) for i in chosen]

    def _keep(self, index: int, item: StoredExample) -> None:
        """Keep an encoded example in memory while it fits."""
        self._kept_bytes += sum(len(array) if isinstance(array, bytes) else array.nbytes for array in item)
        if self._kept_bytes > KEPT_BYTES:
            return
        if self._cache is None:
            self._pool[index] = item
        else:
            self._cache[index] = item

    def _take(self, index: int) -> StoredExample | None:
        return self._pool.pop(index, None)


def store_arrays(item: EncodedExample) -> StoredExample:
    """Token ids as bytes, which take 80 bytes less than an array; other arrays stay arrays."""
    return tuple(array.tobytes() if array.dtype == np.int32 and array.ndim == 1 else array for array in item)


def restore_arrays(item: StoredExample) -> EncodedExample:
    """The arrays of an example that is stored as bytes."""
    return tuple(np.frombuffer(array, np.int32) if isinstance(array, bytes) else array for array in item)
