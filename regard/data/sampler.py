"""Examples to tensors: updates by a token budget, in an order that (seed, epoch) decides, padded or packed."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..config.schema import Data, PackedData, Train
from ..errors import UserError
from ..processors.tokenizers import Tokenizer
from .examples import Examples

CACHED_TOKENS = 2_000_000  # examples; so many or fewer stay in memory once they are encoded
POOL = 50_000  # examples sorted together: the more, the less padding (at 4,096 tokens an update 3 %, with 12,800 6 %)
TYPICAL = 32  # tokens of an example, for guessing how many make an update

CHANGES = 1  # what an epoch changes in its examples is drawn apart from the order of its updates

Ids = np.ndarray  # one text, int32
Item = TypeVar("Item")
Result = TypeVar("Result")
EncodedExample: TypeAlias = tuple[
    Ids, ...
]  # an example as numbers: of a pair both sides, of others what their task needs


@dataclass(frozen=True)
class PairBatch:
    """Sources with END, and targets shifted: START y to read, y END to predict. True is a real token, False padding."""

    source: Tensor  # (batch, source_tokens)
    source_real: Tensor
    target_in: Tensor  # (batch, target_tokens)
    target_out: Tensor
    target_real: Tensor
    target_places: Tensor | None = None  # padded only: where the real target tokens stand in the flat table
    source_segments: Tensor | None = None  # packed only: the sequence each token belongs to in its row, -1 on padding
    target_segments: Tensor | None = None
    source_at: Tensor | None = None  # packed only: the place of each token in its sequence
    target_at: Tensor | None = None

    def to(self, device: torch.device | str) -> "PairBatch":
        tensors = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: tensor.to(device) for name, tensor in tensors.items() if tensor is not None})


@dataclass(frozen=True)
class Step:
    """What one step of the optimizer sees, cut into pieces. The loss is divided by `count`, the predicted tokens."""

    micro_batches: list[Any]  # Pairs, or what else a task learns from
    index: int  # examples of the epoch that are done with after this update
    tokens: int  # of the longer side of each example
    count: int
    examples: list[int]  # their numbers in the data set


def collate_pairs(
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    source: Tokenizer,
    target: Tokenizer,
    width: int = 0,
) -> PairBatch:
    """A batch of these texts: one example per row, or packed into rows of `width` tokens."""
    ended = [np.asarray([*text, source.end]) for text in sources]
    return _pair(ended, [np.asarray([*text, target.end]) for text in targets], source, target, width)


def _pair(
    sources: list[Ids], targets: list[Ids], source: Tokenizer, target: Tokenizer, width: int, least: int = 0
) -> PairBatch:
    """Packed tables are `width` wide and have `least` rows or more: where shapes stay, code is compiled once."""
    lengths = np.array([[len(x), len(y)] for x, y in zip(sources, targets, strict=True)])
    rows, starts, segments = pack(lengths, width) if width else one_per_row(len(lengths))
    read = RowLayout(lengths[:, 0], rows, starts[:, 0], segments, (least, width))
    written = RowLayout(lengths[:, 1], rows, starts[:, 1], segments, (least, width))
    ends = np.concatenate(targets)
    shifted = np.roll(ends, 1)
    shifted[written.at == 0] = target.start  # where the roll brought the END of the text before
    packed = [table for places in (read, written) for table in places.tables()] if width else []
    spots = None if width else torch.from_numpy(np.ravel_multi_index(written.where, written.shape))
    return PairBatch(
        read.scatter(np.concatenate(sources), source.pad),
        read.scatter(np.ones(len(read.at), bool), False),
        written.scatter(shifted, target.pad),
        written.scatter(ends, target.pad),
        written.scatter(np.ones(len(written.at), bool), False),
        spots,
        *packed[::2],
        *packed[1::2],
    )


class RowLayout:
    """Where the tokens of some texts, one after the other, go in a table of rows."""

    def __init__(
        self,
        lengths: np.ndarray,
        rows: np.ndarray,
        starts: np.ndarray,
        segments: np.ndarray,
        least: tuple[int, int] = (0, 0),
    ) -> None:
        self.at = np.arange(lengths.sum()) - np.repeat(lengths.cumsum() - lengths, lengths)
        self.segments = np.repeat(segments, lengths)
        self.where = np.repeat(rows, lengths), np.repeat(starts, lengths) + self.at
        self.shape = max(int(rows.max()) + 1, least[0]), max(int((starts + lengths).max()), least[1])

    def scatter(self, values: np.ndarray, empty: int) -> Tensor:
        table = np.full(self.shape, empty, bool if values.dtype == bool else np.int64)
        table[self.where] = values
        return torch.from_numpy(table)

    def tables(self) -> tuple[Tensor, Tensor]:
        """Segments, and places in them."""
        return self.scatter(self.segments, -1), self.scatter(self.at, 0)


def one_per_row(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return np.arange(count), np.zeros((count, 2), int), np.zeros(count, int)


def pack(lengths: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First fit, the longest first: the row of each example, where it starts there on each side, and its segment."""
    count = len(lengths)
    rows, starts, segments = one_per_row(count)
    used = np.zeros((count, 2), int)  # tokens in each row, per side
    held = np.zeros(count, int)  # examples in each row
    begun = 0  # rows that hold something; the next one always has room
    for i in np.argsort(-lengths.max(1), kind="stable"):
        rows[i] = row = int((used[: begun + 1] + lengths[i] <= width).all(1).argmax())
        starts[i], segments[i] = used[row], held[row]
        used[row] += lengths[i]
        held[row] += 1
        begun = max(begun, row + 1)
    return rows, starts, segments


def alternate_sort(longer: np.ndarray, difference: np.ndarray) -> np.ndarray:
    """The order in which neighbours are most alike on both sides: by the longer one, then by which one and how much,
    upwards and downwards in turn. Plain sorting would leave half as much padding again."""
    return np.lexsort((np.where(longer % 2, difference, -difference), longer))


def group_by_budget(lengths: np.ndarray, tokens: int, batch: int = 0) -> list[slice]:
    """Runs of at most `tokens`, or of `batch` items; never an empty one."""
    if batch:
        return [slice(first, first + batch) for first in range(0, len(lengths), batch)]
    sums, runs, first = lengths.cumsum(), [], 0
    while first < len(lengths):
        before = sums[first - 1] if first else 0
        last = max(int(np.searchsorted(sums, before + tokens, side="right")), first + 1)
        runs.append(slice(first, last))
        first = last
    return runs


def split_evenly(lengths: np.ndarray, pieces: int) -> list[slice]:
    """So many runs of about the same number of tokens; fewer only where there are fewer items."""
    pieces = min(pieces, len(lengths))
    sums, bounds = lengths.cumsum(), [0]
    for piece in range(1, pieces):
        nearest = int(np.abs(sums - sums[-1] * piece / pieces).argmin()) + 1
        bounds.append(min(max(nearest, bounds[-1] + 1), len(lengths) - pieces + piece))
    return [slice(*ends) for ends in zip(bounds, [*bounds[1:], len(lengths)], strict=True)]


def sorted_batches(lengths: Sequence[int], tokens: int = 0, rows: int = 0) -> list[list[int]]:
    """Indices by length, the longest first, in batches of at most `rows` and, padded, `tokens`; 0 is no limit."""
    batches: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        last = batches[-1] if batches else []
        full = rows and len(last) == rows or tokens and last and (len(last) + 1) * lengths[last[0]] > tokens
        if full or not batches:
            batches.append([])
        batches[-1].append(i)
    return batches


class EncodedPool(NamedTuple):
    """Some consecutive examples of an epoch, encoded and cut into groups, one for each update."""

    chosen: np.ndarray
    items: list[EncodedExample]
    lengths: np.ndarray  # of the longer side
    long: np.ndarray  # those left out
    groups: list[np.ndarray]  # positions in the pool


class StepSampler(ABC):
    """The updates of every epoch, whatever the examples are. Read `report` after an epoch for what was left out."""

    limit = "data.max_tokens"  # the setting that says how long a side may be

    def __init__(self, examples: Examples, data: Data, train: Train) -> None:
        examples.require_nonempty("data.train")
        self.examples, self.data, self.train = examples, data, train
        usual = train.batch or max(train.tokens // TYPICAL, 1)  # examples of an update
        self.pool = max(POOL, 4 * usual)
        self.long: set[int] = set()  # examples found too long so far
        self._kept: list[tuple[bytes, ...] | None] | None = None
        if len(examples) <= CACHED_TOKENS:
            self._kept = [None] * len(examples)

    # What a task says of its examples

    @abstractmethod
    def encode(self, chosen: list[int]) -> Iterable[EncodedExample]:
        """Each of these examples as numbers, the same in every epoch."""

    @abstractmethod
    def collate(self, items: list[EncodedExample]) -> Any:
        """A batch of these."""

    @abstractmethod
    def count(self, item: EncodedExample) -> int:
        """What is predicted of it."""

    def augment(self, items: list[EncodedExample], chance: np.random.Generator) -> list[EncodedExample]:
        """The items as this epoch sees them."""
        return items

    def sizes(self, item: EncodedExample) -> tuple[int, int]:
        return len(item[0]), len(item[1])

    def sort_order(self, sizes: np.ndarray) -> np.ndarray:
        """The order in which a pool is cut into updates: neighbours are to be alike."""
        return alternate_sort(sizes.max(1), sizes[:, 0] - sizes[:, 1])

    # The updates

    def steps(self, epoch: int, index: int = 0) -> Iterator[Step]:
        """The updates of an epoch after its first `index` examples; `Update.index` is where to go on.
        Examples that are too long count as done with the first update of their pool."""
        order = self.examples.order(np.random.default_rng([self.train.seed, epoch]))
        numbers = range(index // self.pool, -(-len(order) // self.pool))

        def prepared(number: int) -> EncodedPool:
            chosen = order[number * self.pool : (number + 1) * self.pool]
            return self._prepared(chosen, [self.train.seed, epoch, number + 1])

        with closing(prefetch(prepared, numbers, self.data.workers)) as pools:
            for number, pool in zip(numbers, pools, strict=True):
                yield from self._rest(pool, number * self.pool, index)

    def _rest(self, pool: EncodedPool, first: int, index: int) -> Iterator[Step]:
        """The updates of a pool, whose first example is the epoch's `first`, that end after `index`."""
        self.long.update(pool.long.tolist())
        if len(self.long) == len(self.examples):
            raise UserError(
                f"all {len(self.examples):,} examples of data.train have a side of more than "
                f"{self.data.max_tokens} tokens; raise {self.limit}"
            )
        ends = first + len(pool.long) + np.cumsum([len(group) for group in pool.groups], dtype=int)
        if first < index and index not in ends:
            raise UserError(
                f"no update ends after {index} examples of the epoch: the data, train.tokens, train.batch or "
                "data.max_tokens are not those of the run that stopped there; set them as they were"
            )
        for group, end in zip(pool.groups, ends.tolist(), strict=True):
            if end > index:
                yield self._update(pool, group, end)

    def report(self) -> list[str]:
        """What was left out so far, in plain sentences."""
        why = f"examples left out because a side has more than {self.data.max_tokens} tokens ({self.limit})"
        return self.told(self.long, why)

    def told(self, some: set[int], what: str) -> list[str]:
        """A sentence about these examples; none where there are none."""
        count = f"{len(some):,} of {len(self.examples):,}"
        return [f"{count} {what}, such as {self.examples.location(min(some))}"] if some else []

    def _prepared(self, chosen: np.ndarray, seed: list[int]) -> EncodedPool:
        chance = np.random.default_rng([*seed, CHANGES])
        items = self.augment(self._encoded(chosen), chance)
        sizes = np.array([self.sizes(item) for item in items])
        longer = sizes.max(1)
        fits = longer <= self.data.max_tokens
        placed = self.sort_order(sizes)
        placed = placed[fits[placed]]
        groups = [placed[run] for run in group_by_budget(longer[placed], self.train.tokens, self.train.batch)]
        groups = [groups[i] for i in np.random.default_rng(seed).permutation(len(groups))]
        return EncodedPool(chosen, items, longer, chosen[~fits], groups)

    def _encoded(self, chosen: np.ndarray) -> list[EncodedExample]:
        kept = {i: self._kept[i] if self._kept else None for i in chosen.tolist()}
        new = [i for i, item in kept.items() if item is None]
        for i, item in zip(new, self.encode(new), strict=True):
            kept[i] = tuple(side.astype(np.int32).tobytes() for side in item)
            if self._kept:
                self._kept[i] = kept[i]
        return [tuple(np.frombuffer(side, np.int32) for side in kept[i] or ()) for i in chosen.tolist()]

    def _update(self, pool: EncodedPool, group: np.ndarray, index: int) -> Step:
        lengths = pool.lengths[group]
        runs = split_evenly(lengths, self.train.accumulate)
        pieces = [self.collate([pool.items[i] for i in group[run]]) for run in runs]
        count = sum(self.count(pool.items[i]) for i in group)
        return Step(pieces, index, int(lengths.sum()), count, pool.chosen[group].tolist())


class PairSampler(StepSampler):
    """Pairs of texts, each with its END; none is longer than `context`, for which the model has places."""

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
            data, self.limit = data.model_copy(update={"max_tokens": context}), "model.positions.tokens"
        super().__init__(examples, data, train)
        self.source, self.target = source, target

    def encode(self, chosen: list[int]) -> Iterable[EncodedExample]:
        sides, texts = [], [self.examples[i] for i in chosen]
        for tokenizer, side in ((self.source, 0), (self.target, 1)):
            rows = tokenizer.encode([text[side] for text in texts])
            sides.append([np.array([*row, tokenizer.end]) for row in rows])
        return zip(*sides, strict=True)

    def sort_order(self, sizes: np.ndarray) -> np.ndarray:
        return np.arange(len(sizes)) if self.data.packed else super().sort_order(sizes)

    def collate(self, items: list[EncodedExample]) -> PairBatch:
        width = self.data.max_tokens if self.data.packed else 0
        least = -(-self.train.tokens // (self.train.accumulate * width)) if width and not self.train.batch else 0
        return _pair([x for x, _ in items], [y for _, y in items], self.source, self.target, width, least)

    def count(self, item: EncodedExample) -> int:
        return len(item[1])


def prefetch(work: Callable[[Item], Result], items: Iterable[Item], workers: int) -> Generator[Result, None, None]:
    """`map`, with so many threads working ahead. They end with the iterator, however that ends."""
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
