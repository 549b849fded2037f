"""Rows of tokens between START and END: labeled texts and tagged words."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ...config.data.base import Data
from ...config.data.texts import LabelData, TagData
from ...config.train import Train
from ...errors import UserError
from ...parts.inputs import Inputs
from ...processors.base import Processor
from ...processors.labels import LabelSet
from ...processors.text.processor import encode_words
from ...processors.text.tokenizers import Tokenizer
from ..batch import Batch
from ..dataset import Dataset, EncodedExample
from ..rng import ExampleRng
from ..source import Source
from .collate import IGNORED, Ids, pad_labels, pad_tokens


def max_text_tokens(context: int | None, data: Data, control: int = 2) -> int:
    """The text tokens that fit a row besides `control` START and END tokens."""
    most = min(context or data.max_tokens, data.max_tokens) - control
    if most < 1:
        raise UserError(
            f"data.max_tokens={data.max_tokens} leaves no room for text between START and END; raise it"
            if data.max_tokens <= (context or data.max_tokens)
            else f"the model has {context} positions, which leaves no room for text; raise model.positions.tokens "
            "(with lowrank attention, model.attention.tokens)"
        )
    return most


def add_start_end(tokenizer: Tokenizer, ids: Sequence[int]) -> Ids:
    """The tokens of a text between START and END."""
    return np.array([tokenizer.start, *ids, tokenizer.end], np.int32)


def add_start_ends(tokenizer: Tokenizer, ids: Sequence[int], pair: Sequence[int]) -> Ids:
    """A pair of texts in one row, each with END after it."""
    return np.array([tokenizer.start, *ids, tokenizer.end, *pair, tokenizer.end], np.int32)


def pad_texts(rows: Sequence[Ids], tokenizer: Tokenizer, token_types: int) -> Inputs:
    """Rows of texts and of pairs as one field. The tokens after the first END of a pair have the token type 1.

    A model with fewer than two `token_types` has only the END between the texts to distinguish them.
    """
    pairs = token_types > 1 and any(np.count_nonzero(row == tokenizer.end) > 1 for row in rows)
    types = [((row == tokenizer.end).cumsum() - (row == tokenizer.end)).clip(0, 1) for row in rows] if pairs else None
    return pad_tokens(rows, tokenizer.pad, types)


class LabeledTextDataset(Dataset):
    """Texts, or pairs of texts, with one target each. Texts that are too long are truncated, and counted.

    Steps are not sorted by length: where labels correlate with length, sorted steps see few labels and learn worse.
    """

    data: LabelData
    sorted = False

    def __init__(
        self,
        examples: Source,
        tokenizer: Tokenizer,
        target: Processor,
        data: LabelData,
        train: Train,
        context: int | None,
        token_types: int = 2,
    ) -> None:
        super().__init__(examples, data, train)
        self.mask: int | None = getattr(tokenizer, "mask", None)
        if data.token_masking and self.mask is None:
            raise UserError(
                f"data.token_masking={data.token_masking:g} needs a tokenizer with <mask>, which this one has not; "
                "set data.token_masking=0"
            )
        self.tokenizer, self.target, self.token_types = tokenizer, target, token_types
        self.max_tokens = max_text_tokens(context, data, 3 if data.pairs == "yes" else 2)

    def encode(self, indices: list[int]) -> Iterable[EncodedExample]:
        examples = [self.examples[i] for i in indices]
        rows = encode_rows(self.tokenizer, [(example[0], *example[2:]) for example in examples], self.max_tokens)
        for i, (row, cut), example in zip(indices, rows, examples, strict=True):
            if cut:
                self.shortened.add(i)
            yield row, self.target.encode(example[1])

    def augment(self, items: list[EncodedExample], rng: ExampleRng) -> list[EncodedExample]:
        """With data.token_masking, replace random tokens by <mask>; START and END stay."""
        if not self.data.token_masking:
            return items
        flat, lengths = np.concatenate([ids for ids, _ in items]), np.array([len(ids) for ids, _ in items])
        ends, masked = lengths.cumsum(), rng.uniform(lengths) < self.data.token_masking
        masked[ends - lengths] = False
        flat[masked & (flat != self.tokenizer.end)] = self.mask
        return [(ids, label) for ids, (_, label) in zip(np.split(flat, ends[:-1]), items, strict=True)]

    def collate(self, items: Sequence[EncodedExample]) -> Batch:
        text = pad_texts([ids for ids, _ in items], self.tokenizer, self.token_types)
        return Batch({"text": text, "label": self.target.collate([target for _, target in items])}, len(items))

    def sizes(self, item: EncodedExample) -> tuple[int, int]:
        return len(item[0]), 1

    def describe_shortened(self) -> str:
        why = "data.max_tokens, and the positions of the model"
        which = "pairs of texts have" if self.data.pairs == "yes" else "texts have"
        return f"{which} more than {self.max_tokens} tokens and were cut there ({why})"


def encode_rows(tokenizer: Tokenizer, items: Sequence[Sequence[str]], room: int) -> Iterator[tuple[Ids, bool]]:
    """The row of each text or pair, and whether it was truncated to `room` tokens; in a pair, the longer text first."""
    flat = iter(tokenizer.encode([text for item in items for text in item]))
    for item in items:
        texts = [next(flat) for _ in item]
        sizes = fit_lengths([len(ids) for ids in texts], room)
        cut = [ids[:size] for ids, size in zip(texts, sizes, strict=True)]
        row = add_start_end(tokenizer, cut[0]) if len(cut) == 1 else add_start_ends(tokenizer, *cut)
        yield row, sum(sizes) < sum(map(len, texts))


def fit_lengths(lengths: Sequence[int], max_tokens: int) -> list[int]:
    """Reduce the lengths until their sum is at most `max_tokens`, the longest first."""
    fitted = list(lengths)
    while (over := sum(fitted) - max_tokens) > 0:
        longest = fitted.index(max(fitted))
        second = sorted(fitted)[-2] if len(fitted) > 1 else 0
        fitted[longest] -= min(over, max(fitted[longest] - second, 1))
    return fitted


# --- words -----------------------------------------------------------------------------------------------------------


class WordWindow(NamedTuple):
    """Words first to last share a row. Words scored_first to scored_last are predicted in it."""

    first: int
    last: int
    scored_first: int
    scored_last: int


def word_windows(sizes: Sequence[int], max_tokens: int, overlap: int) -> list[WordWindow]:
    """Divide words of these sizes into windows of at most `max_tokens` tokens.

    Neighboring windows share words of at most `overlap` tokens. Each shared word is predicted in the window where it
    is further from the border.
    """
    bounds = [(0, _window_end(sizes, 0, max_tokens))]
    while (last := bounds[-1][1]) < len(sizes):
        first, shared = last, 0
        while first - 1 > bounds[-1][0] and shared + sizes[first - 1] <= min(overlap, max_tokens // 2):
            first -= 1
            shared += sizes[first]
        while (end := _window_end(sizes, first, max_tokens)) <= last:  # the next word is long and does not fit yet
            first += 1
        bounds.append((first, end))
    borders = [(first + last + 1) // 2 for (_, last), (first, _) in zip(bounds, bounds[1:], strict=False)]
    scored = zip([0, *borders], [*borders, len(sizes)], strict=True)
    return [WordWindow(*whole, *inner) for whole, inner in zip(bounds, scored, strict=True)]


def _window_end(sizes: Sequence[int], first: int, max_tokens: int) -> int:
    """The end of a window that begins at word `first`; it holds at least this word."""
    last, used = first, 0
    while last < len(sizes) and (last == first or used + sizes[last] <= max_tokens):
        used += sizes[last]
        last += 1
    return last


class SentenceRows(NamedTuple):
    """A sentence as rows of tokens. `word_positions` has row and column of the first token of every word."""

    rows: list[Ids]
    word_positions: list[tuple[int, int]]


def encode_sentence(tokenizer: Tokenizer, words: list[list[int]], max_tokens: int, overlap: int) -> SentenceRows:
    """The rows of a sentence, and the row and column where each word begins."""
    words = [tokens[:max_tokens] for tokens in words]
    rows: list[Ids] = []
    word_positions = []
    for window in word_windows([len(tokens) for tokens in words], max_tokens, overlap):
        inside = words[window.first : window.last]
        starts = np.cumsum([1, *(len(tokens) for tokens in inside)])
        scored = range(window.scored_first, window.scored_last)
        word_positions += [(len(rows), int(starts[word - window.first])) for word in scored]
        rows.append(add_start_end(tokenizer, [token for tokens in inside for token in tokens]))
    return SentenceRows(rows, word_positions)


class TaggedDataset(Dataset):
    """Words with one tag each, predicted at their first token. A sentence that is too long becomes several rows."""

    data: TagData

    def __init__(
        self,
        examples: Source,
        tokenizer: Tokenizer,
        labels: LabelSet,
        data: TagData,
        train: Train,
        context: int | None,
    ) -> None:
        super().__init__(examples, data, train)
        self.tokenizer, self.labels, self.max_tokens = tokenizer, labels, max_text_tokens(context, data)

    def encode(self, indices: list[int]) -> Iterable[EncodedExample]:
        """All rows concatenated, their labels, and their lengths."""
        examples = [self.examples[i] for i in indices]
        encoded = encode_words(self.tokenizer, [words for words, _ in examples])
        for i, words, (_, tags) in zip(indices, encoded, examples, strict=True):
            sentence = encode_sentence(self.tokenizer, words, self.max_tokens, self.data.overlap)
            if len(sentence.rows) > 1:
                self.shortened.add(i)
            labels = [np.full(len(row), IGNORED, np.int32) for row in sentence.rows]
            for (row, column), tag in zip(sentence.word_positions, tags, strict=True):
                labels[row][column] = self.labels.ids[tag]
            lengths = np.array([len(row) for row in sentence.rows], np.int32)
            yield np.concatenate(sentence.rows), np.concatenate(labels), lengths

    def sizes(self, item: EncodedExample) -> tuple[int, int]:
        return int(item[2].max()), int(item[2].max())

    def rows(self, item: EncodedExample) -> int:
        return len(item[2])

    def row(self, item: EncodedExample, number: int) -> EncodedExample:
        tokens, labels, lengths = item
        begin = int(lengths[:number].sum())
        span = slice(begin, begin + int(lengths[number]))
        return tokens[span], labels[span], lengths[number : number + 1]

    def collate(self, items: Sequence[EncodedExample]) -> Batch:
        rows, tags = (
            [row for item in items for row in np.split(item[field], item[2].cumsum()[:-1])] for field in (0, 1)
        )
        inputs = {"text": pad_tokens(rows, self.tokenizer.pad), "tags": pad_labels(tags)}
        return Batch(inputs, sum(int(np.count_nonzero(item[1] != IGNORED)) for item in items))

    def describe_shortened(self) -> str:
        how = f"are read in windows that overlap by {self.data.overlap} tokens (data.overlap)"
        return f"sentences have more than {self.max_tokens} tokens and {how}"
