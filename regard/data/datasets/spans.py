"""Span corruption (T5, 1910.10683): sentinels replace spans of a text, and the target restores them."""

from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from ...config.data.texts import SpanData
from ...config.train import Train
from ...errors import UserError
from ...processors.text.tokenizers import TrainedTokenizer
from ..dataset import EncodedExample
from ..rng import ExampleRng
from ..source import Source
from .collate import Ids
from .pairs import PairDataset

MIN_TARGET_TOKENS = 4  # sentinel, token, sentinel, END


class SpanCorruptor:
    """Replaces spans by sentinels. The tokenizer must have sentinels."""

    def __init__(self, tokenizer: TrainedTokenizer, data: SpanData) -> None:
        if len(tokenizer.sentinels) < 2:
            raise UserError(
                f"the tokenizer has {len(tokenizer.sentinels)} sentinels (<extra_id_0>, <extra_id_1> …), expected two "
                "or more; train without `start`, or from a T5 that has them"
            )
        self.tokenizer, self.data = tokenizer, data
        self._marks = [np.array([number], np.int32) for number in tokenizer.sentinels]

    def corrupt(self, ids: Ids, rng: np.random.Generator) -> tuple[Ids, Ids]:
        """Source and target, both without END.

        Sentinel i replaces span i in the source, and precedes its tokens in the target. One more sentinel closes the
        target.
        """
        if not len(ids):
            return ids, self._marks[0]
        removed, spans = self._counts(len(ids))
        remaining = len(ids) - removed
        span_lengths = random_composition(removed - spans, spans, rng) + 1  # a span has at least one token
        gap_lengths = random_composition(remaining - (spans - 1), spans + 1, rng)
        gap_lengths[1:-1] += 1  # at least one token separates two spans
        bounds = np.cumsum(np.stack([gap_lengths[:-1], span_lengths], 1).ravel()).tolist()
        parts = [ids[begin:end] for begin, end in pairwise([0, *bounds, len(ids)])]  # gap, span, gap, span … gap
        marks = self._marks[: spans + 1]
        source = [part for pair in zip(parts[::2], marks, strict=True) for part in pair][:-1]
        target = [part for pair in zip(marks, parts[1::2], strict=False) for part in pair]
        return np.concatenate(source), np.concatenate([*target, marks[-1]])

    def sizes(self, tokens: int) -> tuple[int, int]:
        """The lengths of source and target, both without END; they do not depend on the random numbers."""
        if not tokens:
            return 0, 1
        removed, spans = self._counts(tokens)
        return tokens - removed + spans, removed + spans + 1

    def _counts(self, tokens: int) -> tuple[int, int]:
        """The number of removed tokens, and of spans."""
        removed = min(max(round(self.data.masked * tokens), 1), tokens)
        most = min(removed, tokens - removed + 1, len(self.tokenizer.sentinels) - 1)
        return removed, min(max(round(removed / self.data.span), 1), most)


def random_composition(total: int, parts: int, rng: np.random.Generator) -> np.ndarray:
    """`parts` numbers of at least 0 that sum to `total`, drawn uniformly from all such lists."""
    bars = np.sort(rng.choice(total + parts - 1, parts - 1, replace=False))
    return np.diff(np.concatenate([[-1], bars, [total + parts - 1]])) - 1


class SpanDataset(PairDataset):
    """Lines of text, with other spans corrupted in every epoch."""

    def __init__(
        self, examples: Source, corruptor: SpanCorruptor, data: SpanData, train: Train, context: int | None = None
    ) -> None:
        if data.max_tokens < MIN_TARGET_TOKENS:
            raise UserError(
                f"data.max_tokens={data.max_tokens} leaves no room for a target, which is a sentinel, a token, another "
                f"sentinel and END; use at least {MIN_TARGET_TOKENS}"
            )
        super().__init__(examples, corruptor.tokenizer, corruptor.tokenizer, data, train, context)
        self.corruptor, self.max_text_tokens = corruptor, self.data.max_tokens - 1  # END
        self._end = np.array([self.source.tokenizer.end], np.int32)

    def encode(self, indices: list[int]) -> Iterable[EncodedExample]:
        for i, ids in zip(
            indices, self.source.tokenizer.encode([self.examples.text(i, 0) for i in indices]), strict=True
        ):
            if len(ids) > self.max_text_tokens:
                self.shortened.add(i)
            yield (np.array(ids, np.int32),)

    def sizes(self, item: EncodedExample) -> tuple[int, int]:
        source, target = self.corruptor.sizes(min(len(item[0]), self.max_text_tokens))
        return source + 1, target + 1

    def augment(self, items: list[EncodedExample], rng: ExampleRng) -> list[EncodedExample]:
        return [self._corrupt_window(ids, generator) for (ids,), generator in zip(items, rng.generators(), strict=True)]

    def _corrupt_window(self, ids: Ids, rng: np.random.Generator) -> EncodedExample:
        begin = int(rng.integers(max(len(ids) - self.max_text_tokens, 0) + 1))
        pair = self.corruptor.corrupt(ids[begin : begin + self.max_text_tokens], rng)
        return tuple(np.concatenate([ids, self._end]) for ids in pair)

    def encode_all(self, seed: int) -> tuple[list[list[int]], list[list[int]]]:
        """All examples in order, corrupted once: sources and targets without END."""
        indices = np.arange(len(self.examples))
        items = self.augment(self.encoded(indices), ExampleRng.of(seed, 0, indices))
        return [x[:-1].tolist() for x, _ in items], [y[:-1].tolist() for _, y in items]

    def describe_shortened(self) -> str:
        return f"lines have more than {self.max_text_tokens} tokens, and each epoch reads a window of them"
