"""Optimizer steps from examples: grouped by a token budget, in an order that depends only on (seed, epoch)."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np

from ..config.schema import Data, PackedData, Train
from ..errors import UserError
from ..processors.tokenizers import Tokenizer
from .batch import Batch
from .collate import collate_encoded
from .examples import Examples

CACHED_EXAMPLES = 2_000_000  # data sets of at most so many examples stay in memory once encoded
POOL_SIZE = 50_000  # examples sorted together: the more, the less padding (4,096 tokens a step: 3 %; 12,800: 6 %)
TYPICAL_TOKENS = 32  # of an example, to estimate the examples of a step
AUGMENT_STREAM = 1  # augmentation has its own random stream, apart from the order of steps

Item = TypeVar("Item")
Result = TypeVar("Result")
EncodedExample: TypeAlias = tuple[np.ndarray, ...]  # token ids of both sides of a pair, or what else the task needs

CachedExample: TypeAlias = tuple[bytes | np.ndarray, ...]


@dataclass(frozen=True)
class Step:
    """The data of one optimizer step, in micro-batches."""

    micro_batches: list[Batch]
    index: int  # examples of the epoch consumed up to and including this step
    tokens: int  # of the longer side of each example
    examples: list[int]  # their indices in the data set

    @property
    def count(self) -> int:
        """The predictions that the summed loss is divided by."""
        return sum(batch.count for batch in self.micro_batches)


def alternate_sort(longer: np.ndarray, difference: np.ndarray) -> np.ndarray:
    """The order in which neighbors have similar lengths on both sides.

    Sorted by the longer side, then by the difference of the sides, ascending and descending in turn. Plain sorting
    would leave half as much padding again.
    """
    return np.lexsort((np.where(longer % 2, difference, -difference), longer))


def group_by_budget(lengths: np.ndarray, tokens: int, batch: int = 0) -> list[slice]:
    """Consecutive groups of at most `tokens` tokens, or of `batch` items; never an empty one."""
    if batch:
        return [slice(first, first + batch) for first in range(0, len(lengths), batch)]
    sums, groups, first = lengths.cumsum(), [], 0
    while first < len(lengths):
        before = sums[first - 1] if first else 0
        last = max(int(np.searchsorted(sums, before + tokens, side="right")), first + 1)
        groups.append(slice(first, last))
        first = last
    return groups


def split_evenly(lengths: np.ndarray, parts: int) -> list[slice]:
    """`parts` consecutive groups of about equally many tokens; fewer only if there are fewer items."""
    parts = min(parts, len(lengths))
    sums, bounds = lengths.cumsum(), [0]
    for part in range(1, parts):
        nearest = int(np.abs(sums - sums[-1] * part / parts).argmin()) + 1
        bounds.append(min(max(nearest, bounds[-1] + 1), len(lengths) - parts + part))
    return [slice(*ends) for ends in zip(bounds, [*bounds[1:], len(lengths)], strict=True)]


def sorted_batches(lengths: Sequence[int], tokens: int = 0, rows: int = 0) -> list[list[int]]:
    """Indices by length, longest first, in batches of at most `rows` rows and `tokens` padded tokens; 0 is no limit."""
    batches: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        last = batches[-1] if batches else []
        full = rows and len(last) == rows or tokens and last and (len(last) + 1) * lengths[last[0]] > tokens
        if full or not batches:
            batches.append([])
        batches[-1].append(i)
    return batches


def compact(array: np.ndarray) -> bytes | np.ndarray:
    """Token ids as bytes, which take 80 bytes less than an array; other arrays stay."""
    return array.tobytes() if array.dtype == np.int32 and array.ndim == 1 else array


def restore(stored: bytes | np.ndarray) -> np.ndarray:
    return np.frombuffer(stored, np.int32) if isinstance(stored, bytes) else stored


class EncodedPool(NamedTuple):
    """Consecutive examples of an epoch, encoded and divided into one group per step."""

    indices: np.ndarray
    items: list[EncodedExample]
    lengths: np.ndarray  # of the longer side
    too_long: np.ndarray  # indices of examples left out
    groups: list[np.ndarray]  # positions in the pool


class StepSampler(ABC):
    """The steps of every epoch, for any kind of example. After an epoch, `report` says what was left out."""

    limit_key = "data.max_tokens"  # the setting that bounds the length of a side

    def __init__(self, examples: Examples, data: Data, train: Train) -> None:
        examples.require_nonempty("data.train")
        self.examples, self.data, self.train = examples, data, train
        per_step = train.batch or max(train.tokens // TYPICAL_TOKENS, 1)  # examples
        self.pool_size = max(POOL_SIZE, 4 * per_step)
        self.too_long: set[int] = set()  # examples found so far
        self._cache: list[CachedExample | None] | None = None
        if len(examples) <= CACHED_EXAMPLES:
            self._cache = [None] * len(examples)

    # Defined by each task

    @abstractmethod
    def encode(self, indices: list[int]) -> Iterable[EncodedExample]:
        """These examples as token ids, the same in every epoch."""

    @abstractmethod
    def collate(self, items: list[EncodedExample]) -> Batch:
        """A batch of encoded examples."""

    def augment(self, items: list[EncodedExample], rng: np.random.Generator) -> list[EncodedExample]:
        """The items as this epoch uses them."""
        return items

    def sizes(self, item: EncodedExample) -> tuple[int, int]:
        return len(item[0]), len(item[1])

    def sort_order(self, sizes: np.ndarray) -> np.ndarray:
        """The order in which a pool is divided into steps: neighbors have similar lengths."""
        return alternate_sort(sizes.max(1), sizes[:, 0] - sizes[:, 1])

    # Steps

    def steps(self, epoch: int, index: int = 0) -> Iterator[Step]:
        """The steps of an epoch after its first `index` examples; `Step.index` is where to resume.

        Examples that are too long count as consumed by the first step of their pool.
        """
        order = self.examples.order(np.random.default_rng([self.train.seed, epoch]))
        numbers = range(index // self.pool_size, -(-len(order) // self.pool_size))

        def prepare(number: int) -> EncodedPool:
            indices = order[number * self.pool_size : (number + 1) * self.pool_size]
            return self._prepare_pool(indices, [self.train.seed, epoch, number + 1])

        with closing(prefetch(prepare, numbers, self.data.workers)) as pools:
            for number, pool in zip(numbers, pools, strict=True):
                yield from self._pool_steps(pool, number * self.pool_size, index)

    def _pool_steps(self, pool: EncodedPool, first: int, index: int) -> Iterator[Step]:
        """The steps of a pool that end after `index`; the pool begins with example `first` of the epoch."""
        self.too_long.update(pool.too_long.tolist())
        if len(self.too_long) == len(self.examples):
            raise UserError(
                f"all {len(self.examples):,} examples of data.train have a side of more than "
                f"{self.data.max_tokens} tokens; raise {self.limit_key}"
            )
        ends = first + len(pool.too_long) + np.cumsum([len(group) for group in pool.groups], dtype=int)
        if first < index and index not in ends:
            raise UserError(
                f"no step ends after {index} examples of the epoch: the data, train.tokens, train.batch or "
                "data.max_tokens are not those of the interrupted run; restore them"
            )
        for group, end in zip(pool.groups, ends.tolist(), strict=True):
            if end > index:
                yield self._make_step(pool, group, end)

    def report(self) -> list[str]:
        """Sentences about what was left out so far."""
        why = f"examples left out because a side has more than {self.data.max_tokens} tokens ({self.limit_key})"
        return self.describe_examples(self.too_long, why)

    def describe_examples(self, indices: set[int], what: str) -> list[str]:
        """A sentence about these examples; none if there are none."""
        count = f"{len(indices):,} of {len(self.examples):,}"
        return [f"{count} {what}, such as {self.examples.location(min(indices))}"] if indices else []

    def _prepare_pool(self, indices: np.ndarray, seed: list[int]) -> EncodedPool:
        rng = np.random.default_rng([*seed, AUGMENT_STREAM])
        items = self.augment(self.encode_cached(indices), rng)
        sizes = np.array([self.sizes(item) for item in items])
        longer = sizes.max(1)
        fits = longer <= self.data.max_tokens
        order = self.sort_order(sizes)
        order = order[fits[order]]
        groups = [order[group] for group in group_by_budget(longer[order], self.train.tokens, self.train.batch)]
        groups = [groups[i] for i in np.random.default_rng(seed).permutation(len(groups))]
        return EncodedPool(indices, items, longer, indices[~fits], groups)

    def encode_cached(self, indices: np.ndarray) -> list[EncodedExample]:
        """These examples as token ids, from memory if they were encoded before."""
        encoded = {i: self._cache[i] if self._cache else None for i in indices.tolist()}
        new = [i for i, item in encoded.items() if item is None]
        for i, item in zip(new, self.encode(new), strict=True):
            encoded[i] = tuple(map(compact, item))
            if self._cache:
                self._cache[i] = encoded[i]
        return [tuple(map(restore, encoded[i] or ())) for i in indices.tolist()]

    def _make_step(self, pool: EncodedPool, group: np.ndarray, index: int) -> Step:
        lengths = pool.lengths[group]
        parts = split_evenly(lengths, self.train.accumulate)
        micro_batches = []
        for number, part in enumerate(parts):
            batch = self.collate([pool.items[i] for i in group[part]])
            micro_batches.append(replace(batch, number=number, examples=tuple(pool.indices[group[part]].tolist())))
        return Step(micro_batches, index, int(lengths.sum()), pool.indices[group].tolist())


class PairSampler(StepSampler):
    """Pairs of texts, each with its END. No side is longer than `context`, the positions of the model."""

    data: PackedData

    def __init__(
        self,
        examples: Examples,
        source: Tokenizer,
        target: Tokenizer,
        data: PackedData,
        train: Train,
        context: int | None = None,
    ) -> None:
        if context is not None and context < data.max_tokens:
            data, self.limit_key = data.model_copy(update={"max_tokens": context}), "model.positions.tokens"
        super().__init__(examples, data, train)
        self.source, self.target = source, target

    def encode(self, indices: list[int]) -> Iterable[EncodedExample]:
        sides, texts = [], [self.examples[i] for i in indices]
        for tokenizer, side in ((self.source, 0), (self.target, 1)):
            rows = tokenizer.encode([text[side] for text in texts])
            sides.append([np.array([*row, tokenizer.end], np.int32) for row in rows])
        return zip(*sides, strict=True)

    def sort_order(self, sizes: np.ndarray) -> np.ndarray:
        return np.arange(len(sizes)) if self.data.packed else super().sort_order(sizes)

    def collate(self, items: list[EncodedExample]) -> Batch:
        width = self.data.max_tokens if self.data.packed else 0
        min_rows = -(-self.train.tokens // (self.train.accumulate * width)) if width and not self.train.batch else 0
        return collate_encoded([x for x, _ in items], [y for _, y in items], self.source, self.target, width, min_rows)


def prefetch(work: Callable[[Item], Result], items: Iterable[Item], workers: int) -> Generator[Result, None, None]:
    """`map` with `workers` threads that run ahead. The threads end when the iterator ends or is closed."""
    if not workers:
        yield from map(work, items)
        return
    threads = ThreadPoolExecutor(workers, thread_name_prefix="data")
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(threads.submit(work, item))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        threads.shutdown(cancel_futures=True)
