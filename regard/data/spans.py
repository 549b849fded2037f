"""Span corruption (T5, 1910.10683): spans of a text are replaced by sentinels, and the target says what was there."""

from collections.abc import Iterable

import numpy as np

from ..config.schema import SpanData, Train
from ..errors import UserError
from ..processors.tokenizers import TrainedTokenizer
from .examples import Examples
from .sampler import EncodedExample, Ids, PairSampler

SHORTEST = 4  # tokens of a target


class SpanCorruptor:
    """Takes spans out. It needs a tokenizer that has sentinels."""

    def __init__(self, tokenizer: TrainedTokenizer, data: SpanData) -> None:
        if len(tokenizer.sentinels) < 2:
            raise UserError(
                f"the tokenizer has {len(tokenizer.sentinels)} sentinels (<extra_id_0>, <extra_id_1> …), and two or "
                "more are needed; begin without `start`, or with a T5 that has them"
            )
        self.tokenizer, self.data = tokenizer, data

    def corrupt(self, ids: Ids, chance: np.random.Generator) -> tuple[Ids, Ids]:
        """What is read and what is to be said, both without END: the first sentinel stands where the first span was and
        before what it held, and so on; one more sentinel closes the target."""
        if not len(ids):
            return ids, np.array(self.tokenizer.sentinels[:1], np.int32)
        out = min(max(round(self.data.masked * len(ids)), 1), len(ids))
        left, marks = len(ids) - out, self.tokenizer.sentinels
        spans = min(max(round(out / self.data.span), 1), out, left + 1, len(marks) - 1)
        taken = parted(out - spans, spans, chance) + 1  # a span has at least one piece
        kept = parted(left - (spans - 1), spans + 1, chance)
        kept[1:-1] += 1  # and between two spans there is at least one
        bounds = np.cumsum(np.stack([kept[:-1], taken], 1).ravel())
        parts = np.split(ids, bounds)
        source = [piece for i in range(spans) for piece in (*parts[2 * i], marks[i])] + list(parts[-1])
        target = [piece for i in range(spans) for piece in (marks[i], *parts[2 * i + 1])] + [marks[spans]]
        return np.array(source, np.int32), np.array(target, np.int32)


def parted(total: int, parts: int, chance: np.random.Generator) -> np.ndarray:
    """So many numbers of at least 0 with this sum, each such list as likely as any other."""
    bars = np.sort(chance.choice(total + parts - 1, parts - 1, replace=False))
    return np.diff(np.concatenate([[-1], bars, [total + parts - 1]])) - 1


class SpanSampler(PairSampler):
    """Lines, corrupted anew in every epoch."""

    def __init__(
        self, examples: Examples, corruptor: SpanCorruptor, data: SpanData, train: Train, context: int | None = None
    ) -> None:
        if data.max_tokens < SHORTEST:
            raise UserError(
                f"data.max_tokens={data.max_tokens} leaves no room for a target, which is a sentinel, a piece, another "
                f"sentinel and END; use at least {SHORTEST}"
            )
        super().__init__(examples, corruptor.tokenizer, corruptor.tokenizer, data, train, context)
        self.corruptor, self.room = corruptor, self.data.max_tokens - 1  # END
        self.windowed: set[int] = set()

    def encode(self, chosen: list[int]) -> Iterable[EncodedExample]:
        for i, ids in zip(chosen, self.source.encode([self.examples.text(i, 0) for i in chosen]), strict=True):
            if len(ids) > self.room:
                self.windowed.add(i)
            yield np.array(ids, np.int32), np.zeros(0, np.int32)

    def augment(self, items: list[EncodedExample], chance: np.random.Generator) -> list[EncodedExample]:
        return [self._corrupted(ids, chance) for ids, _ in items]

    def _corrupted(self, ids: Ids, chance: np.random.Generator) -> EncodedExample:
        begin = int(chance.integers(max(len(ids) - self.room, 0) + 1))
        sides = self.corruptor.corrupt(ids[begin : begin + self.room], chance)
        return tuple(np.append(side, self.source.end) for side in sides)

    def every(self, chance: np.random.Generator) -> tuple[list[list[int]], list[list[int]]]:
        """All examples in order, corrupted once: sources and targets without END."""
        items = self.augment(self._encoded(np.arange(len(self.examples))), chance)
        return [x[:-1].tolist() for x, _ in items], [y[:-1].tolist() for _, y in items]

    def report(self) -> list[str]:
        what = f"lines have more than {self.room} tokens, and each epoch reads a window of them"
        return self.told(self.windowed, what)
