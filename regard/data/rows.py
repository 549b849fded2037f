"""Texts that a model only reads, as rows of tokens between START and END; labelled texts and words cut into updates."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..config.schema import Data, LabelData, TagData, Train
from ..errors import UserError
from ..processors.tokenizers import Tokenizer
from .examples import Examples
from .labeled import LabelSet
from .sampler import EncodedExample, Ids, RowLayout, StepSampler

IGNORED = -1  # where no label is asked for


@dataclass(frozen=True)
class TokenRows:
    """A batch of rows. True is a real token, False padding."""

    tokens: Tensor  # (batch, tokens)
    real: Tensor
    labels: Tensor | None = None  # (batch,) of texts; (batch, tokens) of words, NONE where nothing is asked
    token_types: Tensor | None = None  # (batch, tokens) 1 in the second text of a pair
    next_sentence: Tensor | None = None  # (batch,) 0 where the second text of a pair follows the first, else 1

    def to(self, device: torch.device | str) -> "TokenRows":
        tensors = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: tensor.to(device) for name, tensor in tensors.items() if tensor is not None})


def pad_rows(rows: Sequence[Ids], empty: int) -> Tensor:
    """Rows of several lengths in one table."""
    lengths = np.array([len(row) for row in rows])
    nothing = np.zeros(len(rows), int)
    return RowLayout(lengths, np.arange(len(rows)), nothing, nothing).scatter(
        np.concatenate(rows).astype(np.int64), empty
    )


def valid_mask(rows: Sequence[Ids]) -> Tensor:
    lengths = torch.tensor([len(row) for row in rows])
    return torch.arange(int(lengths.max()))[None] < lengths[:, None]


def room(context: int | None, data: Data, control: int = 2) -> int:
    """Tokens of text in a row, START and END (as many as `control`) not counted."""
    most = min(context or data.max_tokens, data.max_tokens) - control
    if most < 1:
        raise UserError(
            f"data.max_tokens={data.max_tokens} leaves no room for a text between START and END; raise it"
            if data.max_tokens <= (context or data.max_tokens)
            else f"the model has {context} positions, which leaves no room for a text; raise model.positions.tokens "
            "(with lowrank attention, model.attention.tokens)"
        )
    return most


def between(tokenizer: Tokenizer, ids: Sequence[int]) -> Ids:
    return np.array([tokenizer.start, *ids, tokenizer.end], np.int32)


class LabeledTextSampler(StepSampler):
    """Texts with a label each. Texts that are too long are cut, and counted."""

    data: LabelData

    def __init__(
        self,
        examples: Examples,
        tokenizer: Tokenizer,
        labels: LabelSet,
        data: LabelData,
        train: Train,
        context: int | None,
    ) -> None:
        super().__init__(examples, data, train)
        self.mask: int | None = getattr(tokenizer, "mask", None)
        if data.token_masking and self.mask is None:
            raise UserError("data.token_masking puts pieces behind <mask> and the tokenizer has none; leave it out")
        self.tokenizer, self.labels, self.room = tokenizer, labels, room(context, data)
        self.cut: set[int] = set()

    def encode(self, chosen: list[int]) -> Iterable[EncodedExample]:
        texts, labels = zip(*(self.examples[i] for i in chosen), strict=True) if chosen else ((), ())
        for i, ids, label in zip(chosen, self.tokenizer.encode(texts), labels, strict=True):
            if len(ids) > self.room:
                self.cut.add(i)
            yield between(self.tokenizer, ids[: self.room]), np.array([self.labels.numbers[label]])

    def augment(self, items: list[EncodedExample], chance: np.random.Generator) -> list[EncodedExample]:
        """With data.token_masking, some pieces of each text behind <mask>; START and END stay."""
        if not self.data.token_masking:
            return items
        flat, lengths = np.concatenate([ids for ids, _ in items]), np.array([len(ids) for ids, _ in items])
        ends, hit = lengths.cumsum(), chance.random(len(flat)) < self.data.token_masking
        hit[ends - lengths] = hit[ends - 1] = False
        flat[hit] = self.mask
        return [(ids, label) for ids, (_, label) in zip(np.split(flat, ends[:-1]), items, strict=True)]

    def collate(self, items: list[EncodedExample]) -> TokenRows:
        rows = [ids for ids, _ in items]
        labels = torch.tensor([int(label[0]) for _, label in items])
        return TokenRows(pad_rows(rows, self.tokenizer.pad), valid_mask(rows), labels)

    def count(self, item: EncodedExample) -> int:
        return 1

    def report(self) -> list[str]:
        why = "data.max_tokens, and what the model has positions for"
        return self.told(self.cut, f"texts have more than {self.room} tokens and were cut there ({why})")


# --- words ---------------------------------------------------------------------------------------------------------


def word_pieces(tokenizer: Tokenizer, sentences: Sequence[Sequence[str]]) -> list[list[list[int]]]:
    """The pieces of every word, as they are in a text where spaces stand between the words; each has at least one."""
    text, first, later = tokenizer.encode(["a a", "a", " a"])
    joint = " " if text == [*first, *later] else ""  # else the tokenizer puts a space before every word by itself
    words = [word if place == 0 else joint + word for words in sentences for place, word in enumerate(words)]
    distinct = list(dict.fromkeys(words))
    known = dict(zip(distinct, tokenizer.encode(distinct), strict=True))
    pieces = iter([known[word] for word in words])
    return [[next(pieces) or [tokenizer.unk] for _ in words] for words in sentences]


class WordWindow(NamedTuple):
    """Words that are read together, and those among them whose answer counts."""

    first: int
    last: int
    begin: int
    end: int


def windows(sizes: Sequence[int], room: int, overlap: int) -> list[WordWindow]:
    """Cut words of so many pieces into windows of at most `room` pieces. Neighbours share words of at most `overlap`
    pieces, of which each window answers for the half that lies further inside it."""
    bounds = [(0, _filled(sizes, 0, room))]
    while (last := bounds[-1][1]) < len(sizes):
        first, shared = last, 0
        while first - 1 > bounds[-1][0] and shared + sizes[first - 1] <= min(overlap, room // 2):
            first -= 1
            shared += sizes[first]
        while (end := _filled(sizes, first, room)) <= last:  # a large word follows, for which there is no room yet
            first += 1
        bounds.append((first, end))
    borders = [(first + last + 1) // 2 for (_, last), (first, _) in zip(bounds, bounds[1:], strict=False)]
    inner = zip([0, *borders], [*borders, len(sizes)], strict=True)
    return [WordWindow(*whole, *counted) for whole, counted in zip(bounds, inner, strict=True)]


def _filled(sizes: Sequence[int], first: int, room: int) -> int:
    """The end of a window that begins at a word; it holds at least this one."""
    last, used = first, 0
    while last < len(sizes) and (last == first or used + sizes[last] <= room):
        used += sizes[last]
        last += 1
    return last


class SentenceRows(NamedTuple):
    """A sentence as rows of tokens. `places` has row and column of the first piece of every word."""

    rows: list[Ids]
    places: list[tuple[int, int]]


def sentence(tokenizer: Tokenizer, pieces: list[list[int]], room: int, overlap: int) -> SentenceRows:
    pieces = [each[:room] for each in pieces]
    rows: list[Ids] = []
    places = []
    for window in windows([len(each) for each in pieces], room, overlap):
        inside = pieces[window.first : window.last]
        starts = np.cumsum([1, *(len(each) for each in inside)])
        places += [(len(rows), int(starts[word - window.first])) for word in range(window.begin, window.end)]
        rows.append(between(tokenizer, [piece for each in inside for piece in each]))
    return SentenceRows(rows, places)


class TaggedSampler(StepSampler):
    """Words with a tag each, carried by their first piece. A sentence that is too long is several rows."""

    data: TagData

    def __init__(
        self,
        examples: Examples,
        tokenizer: Tokenizer,
        labels: LabelSet,
        data: TagData,
        train: Train,
        context: int | None,
    ) -> None:
        super().__init__(examples, data, train)
        self.tokenizer, self.labels, self.room = tokenizer, labels, room(context, data)
        self.split: set[int] = set()

    def encode(self, chosen: list[int]) -> Iterable[EncodedExample]:
        """All rows one after the other, their labels, and their lengths."""
        examples = [self.examples[i] for i in chosen]
        for i, pieces, (_, tags) in zip(
            chosen, word_pieces(self.tokenizer, [words for words, _ in examples]), examples, strict=True
        ):
            made = sentence(self.tokenizer, pieces, self.room, self.data.overlap)
            if len(made.rows) > 1:
                self.split.add(i)
            labels = [np.full(len(row), IGNORED) for row in made.rows]
            for (row, column), tag in zip(made.places, tags, strict=True):
                labels[row][column] = self.labels.numbers[tag]
            yield np.concatenate(made.rows), np.concatenate(labels), np.array([len(row) for row in made.rows])

    def sizes(self, item: EncodedExample) -> tuple[int, int]:
        return int(item[2].max()), int(item[2].max())

    def collate(self, items: list[EncodedExample]) -> TokenRows:
        rows, labels = (
            [row for item in items for row in np.split(item[side], item[2].cumsum()[:-1])] for side in (0, 1)
        )
        return TokenRows(pad_rows(rows, self.tokenizer.pad), valid_mask(rows), pad_rows(labels, IGNORED))

    def count(self, item: EncodedExample) -> int:
        return int(np.count_nonzero(item[1] != IGNORED))

    def report(self) -> list[str]:
        how = f"are read in windows that share {self.data.overlap} (data.overlap)"
        return self.told(self.split, f"sentences have more than {self.room} tokens and {how}")
