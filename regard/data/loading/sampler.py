"""A global plan of optimizer steps: which examples share a micro-batch, from (seed, epoch, costs, budget) alone.

No tensor and no process is involved: every process plans the same steps and loads its share.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np

from ...errors import UserError
from ..dataset import Dataset, Measured
from ..source import Source

PLAN = 2  # version of the planning algorithm; another version divides an epoch into other steps
POOL_SIZE = 50_000  # examples sorted together: the more, the less padding (4,096 tokens a step: 3 %; 12,800: 6 %)
TYPICAL_TOKENS = 32  # tokens of a typical example, to estimate the examples of a step


class MicroBatch(NamedTuple):
    """The examples of a micro-batch."""

    examples: np.ndarray
    number: int  # in its step, over all processes; it seeds dropout
    counted: bool = True  # False: a process that has no micro-batch left repeats one with weight zero
    rows: np.ndarray | None = None  # the row of each example, if some examples have several


@dataclass(frozen=True)
class Step:
    """One optimizer step, over all processes."""

    epoch: int
    index: int  # examples of the epoch consumed up to and including this step
    tokens: int  # its cost: the sum over the examples of the larger of source and target size
    micro_batches: tuple[np.ndarray, ...]  # the indices of their examples
    rows: tuple[np.ndarray, ...] = ()  # the row of each example, if some examples have several

    @property
    def examples(self) -> list[int]:
        """The indices of all examples."""
        indices: list[int] = np.concatenate(self.micro_batches).tolist()
        return indices

    def shard(self, rank: int = 0, world: int = 1) -> list[MicroBatch]:
        """The share of one process: micro-batch i goes to process i % world.

        All processes get the same number, because they synchronize after each micro-batch. A process with none left
        repeats its first one (or that of process 0), uncounted.
        """
        real = len(self.micro_batches)
        idle = rank if rank < real else 0
        numbers = range(rank, -(-real // world) * world, world)
        places = [(n, n if n < real else idle) for n in numbers]
        rows = self.rows or (None,) * real
        return [MicroBatch(self.micro_batches[place], n, n < real, rows[place]) for n, place in places]


class Pool(NamedTuple):
    """Consecutive examples of an epoch, which are planned together."""

    epoch: int
    begin: int  # examples of the epoch before it
    examples: np.ndarray


class StepSampler(ABC):
    """The steps of every epoch, pool by pool."""

    @abstractmethod
    def pools(self, epoch: int, index: int = 0) -> Iterator[Pool]:
        """The pools of an epoch, beginning with the pool that contains example `index`."""

    @abstractmethod
    def plan(self, pool: Pool, index: int = 0) -> Iterable[Step]:
        """The steps of a pool that end after `index` examples of the epoch. Needs the costs of its examples."""

    def planned_steps(self, epochs: int) -> float:
        """The number of steps of the first `epochs` epochs; needs the costs of the first pool."""
        return float(epochs * sum(1 for pool in islice(self.pools(0), 1) for _ in self.plan(pool)))

    def unmeasured(self, pool: Pool) -> np.ndarray:
        """The examples of a pool whose costs are not known yet."""
        return np.zeros(0, np.int64)

    def add_costs(self, measured: Measured) -> None:
        """Store the costs of examples; each is measured once."""
        raise NotImplementedError

    def report(self) -> list[str]:
        """Sentences about what was left out so far."""
        return []


class CostTable:
    """The known source and target sizes of examples, in four or eight bytes per example."""

    def __init__(self, count: int, limit: int) -> None:
        self.limit = limit
        self.sizes = np.zeros((count, 2), np.min_scalar_type(limit + 1))  # larger ones are left out anyway
        self.shortened = np.zeros(count, bool)
        self.rows: np.ndarray | None = None  # of every example, if some have several
        self.too_long = 0

    def add(self, measured: Measured) -> None:
        examples, places = np.unique(measured.examples, return_index=True)
        sizes = measured.sizes[places].clip(1, self.limit + 1)
        self.too_long += int(((sizes.max(1) > self.limit) & (self.sizes[examples, 0] == 0)).sum())
        self.sizes[examples] = sizes
        self.shortened[examples] = measured.shortened[places]
        if self.rows is None and measured.rows.max(initial=1) > 1:
            self.rows = np.ones(len(self.sizes), np.int32)
        if self.rows is not None:
            self.rows[examples] = measured.rows[places]

    def unknown(self, examples: np.ndarray) -> np.ndarray:
        unknown: np.ndarray = examples[self.sizes[examples, 0] == 0]
        return unknown

    def of(self, examples: np.ndarray) -> np.ndarray:
        sizes: np.ndarray = self.sizes[examples].astype(np.int64)
        return sizes


class BudgetSampler(StepSampler):
    """Steps of at most train.tokens, or of train.batch examples, of similar sizes.

    The order depends only on (seed, epoch). After an epoch, `report` says what was left out.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.examples, self.train, self.limit_key = dataset.examples, dataset.train, dataset.limit_key
        self.costs = CostTable(len(dataset.examples), dataset.limit)
        self.sorted, self.dataset = dataset.sorted, dataset
        per_step = self.train.batch or max(self.train.tokens // TYPICAL_TOKENS, 1)  # examples
        self.pool_size = max(POOL_SIZE, 4 * per_step)

    def pools(self, epoch: int, index: int = 0) -> Iterator[Pool]:
        order = self.examples.order(np.random.default_rng([self.train.seed, epoch]))
        for begin in range(index // self.pool_size * self.pool_size, len(order), self.pool_size):
            yield Pool(epoch, begin, order[begin : begin + self.pool_size])

    def planned_steps(self, epochs: int) -> float:
        """Exact for one pool, where order does not matter. Further pools are assumed to resemble the first."""
        return super().planned_steps(epochs) * max(len(self.examples) / self.pool_size, 1.0)

    def unmeasured(self, pool: Pool) -> np.ndarray:
        partners = self.dataset.partners(pool.epoch, pool.examples)
        return self.costs.unknown(np.concatenate([pool.examples, partners]) if len(partners) else pool.examples)

    def add_costs(self, measured: Measured) -> None:
        self.costs.add(measured)
        if self.costs.too_long == len(self.examples):
            raise UserError(
                f"all {len(self.examples):,} examples of data.train have {self.dataset.describe_too_long()}; "
                f"raise {self.limit_key}"
            )

    def plan(self, pool: Pool, index: int = 0) -> Sequence[Step]:
        """Examples that are too long count as consumed by the first step of their pool.

        The rows of an example are planned one by one. Where examples have several rows, the index of a step is the
        share of rows read so far, as a number of examples. Only the last step of a pool has the index of its end.
        """
        sizes = self.dataset.epoch_sizes(pool.epoch, pool.examples, self.costs.of)
        longer = sizes.max(1)
        curriculum = self.dataset.curriculum and not pool.epoch
        order = np.arange(len(longer))
        if self.sorted:
            shorter = sizes.min(1)
            order = np.lexsort((shorter, longer)) if curriculum else alternate_sort(longer, sizes[:, 0] - sizes[:, 1])
        order = order[longer[order] <= self.costs.limit]
        used, units, rows = len(order), order, None
        if self.costs.rows is not None:
            counts = self.costs.rows[pool.examples[order]]
            units, rows = np.repeat(order, counts), ranges(counts)
        groups = group_by_budget(longer[units], self.train.tokens, self.train.batch)
        rng = np.random.default_rng([self.train.seed, pool.epoch, pool.begin // self.pool_size + 1])
        if not curriculum:
            groups = [groups[i] for i in rng.permutation(len(groups))]
        read = np.cumsum([group.stop - group.start for group in groups], dtype=int)
        ends = pool.begin + len(pool.examples) - used + used * read // max(len(units), 1)
        begin = first_step(ends, pool, index)
        planned = zip(groups[begin:], ends[begin:].tolist(), strict=True)
        return [
            self._step(pool, units[group], longer[units[group]], end, None if rows is None else rows[group])
            for group, end in planned
        ]

    def _step(
        self, pool: Pool, group: np.ndarray, lengths: np.ndarray, end: int, rows: np.ndarray | None = None
    ) -> Step:
        parts = split_evenly(lengths, self.train.accumulate)
        part_rows = () if rows is None else tuple(rows[part] for part in parts)
        return Step(pool.epoch, end, int(lengths.sum()), tuple(pool.examples[group[part]] for part in parts), part_rows)

    @property
    def too_long(self) -> np.ndarray:
        """The examples left out so far."""
        return np.flatnonzero(self.costs.sizes.max(1) > self.costs.limit)

    def report(self) -> list[str]:
        why = f"examples left out because they have {self.dataset.describe_too_long()} ({self.limit_key})"
        sentences = describe_examples(self.examples, self.too_long, why) if self.costs.too_long else []
        if len(shortened := np.flatnonzero(self.costs.shortened)):
            sentences += describe_examples(self.examples, shortened, self.dataset.describe_shortened())
        return sentences


def first_step(ends: np.ndarray, pool: Pool, index: int) -> int:
    """The number of the first step of a pool after `index` examples of the epoch; steps end at `ends`."""
    begin = int(np.searchsorted(ends, index)) + 1 if pool.begin < index else 0
    if begin and index not in ends:
        raise UserError(
            f"no step ends after {index} examples of the epoch: the data, train.tokens, train.batch or "
            "data.max_tokens are not those of the interrupted run; restore them"
        )
    return begin


def describe_examples(examples: Source, indices: np.ndarray, what: str) -> list[str]:
    """A sentence about some of the examples."""
    return [f"{len(indices):,} of {len(examples):,} {what}, such as {examples.location(int(indices[0]))}"]


# --- cutting ---------------------------------------------------------------------------------------------------------


def alternate_sort(longer: np.ndarray, difference: np.ndarray) -> np.ndarray:
    """An order in which neighbors have similar source lengths and similar target lengths.

    It sorts by the larger of both lengths, then by their difference, ascending and descending in turn. Plain sorting
    would leave 1.5 times as much padding.
    """
    return np.lexsort((np.where(longer % 2, difference, -difference), longer))


def ranges(counts: np.ndarray) -> np.ndarray:
    """0 … count - 1 for each count, concatenated."""
    numbers: np.ndarray = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
    return numbers


def group_by_budget(lengths: np.ndarray, tokens: int, batch: int = 0) -> list[slice]:
    """Consecutive groups of at most `tokens` tokens, or of `batch` items; never an empty one."""
    if batch:
        return [slice(first, min(first + batch, len(lengths))) for first in range(0, len(lengths), batch)]
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
