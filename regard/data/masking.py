"""Masked words (BERT, 1810.04805): which pieces of a text are to be guessed, and what stands in their place."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from ..config.schema import MaskData, Train
from ..errors import UserError
from ..processors.tokenizers import TrainedTokenizer
from .examples import Examples
from .readers import PairExamples, TextLines
from .rows import IGNORED, TokenRows, pad_rows, room, valid_mask, word_pieces
from .sampler import EncodedExample, Ids, StepSampler

HIDDEN, RANDOM = 0.8, 0.1  # of the chosen pieces: replaced by MASK, by any piece; the rest stays as it is
FOLLOWS, STRANGE = 0, 1  # the two answers of the next-sentence head, in BERT's order


def lines(sides: Sequence[Sequence[str]], data: MaskData) -> Examples:
    """The lines of these files, one side each."""
    if len(sides) != 1:
        raise UserError(
            f"text is one side, and {len(sides)} were given with a comma between; "
            "join several files by a glob or a TOML list"
        )
    return PairExamples([TextLines(sides[0], data.invalid)])


class Masker:
    """Chooses and replaces. It needs a tokenizer that has a mask."""

    def __init__(self, tokenizer: TrainedTokenizer, data: MaskData) -> None:
        if tokenizer.mask is None:
            raise UserError(
                "the tokenizer has no <mask> and masked words need one; begin without `start`, or with a run or folder "
                "of task masked"
            )
        self.tokenizer, self.data, self.mask = tokenizer, data, tokenizer.mask
        control = {tokenizer.pad, tokenizer.start, tokenizer.end, tokenizer.unk, tokenizer.mask, *tokenizer.symbols}
        self.ordinary = np.array([number for number in range(tokenizer.size) if number not in control])

    def grouped(self, texts: Sequence[str]) -> Iterable[tuple[Ids, Ids]]:
        """The pieces of each text, and for each piece the number of the group that is masked together with it."""
        if not self.data.whole_words:
            for ids in self.tokenizer.encode(texts):
                yield np.array(ids, np.int32), np.arange(len(ids), dtype=np.int32)
            return
        for pieces in word_pieces(self.tokenizer, [text.split() for text in texts]):
            sizes = [len(each) for each in pieces]
            flat = np.array([piece for each in pieces for piece in each], np.int32)
            yield flat, np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)

    def hide(self, texts: Sequence[tuple[Ids, ...]], chance: np.random.Generator) -> tuple[Ids, Ids]:
        """The pieces of these texts, laid end to end, with some replaced, and what was there (NONE elsewhere)."""
        ids, groups = (np.concatenate(side) for side in zip(*texts, strict=True))
        chosen = self._chosen(groups, np.array([len(ids) for ids, _ in texts]), chance)
        fate = chance.random(len(ids))
        shown = np.where(chosen & (fate < HIDDEN), self.mask, ids)
        other = chosen & (fate >= HIDDEN) & (fate < HIDDEN + RANDOM)
        shown[other] = chance.choice(self.ordinary, int(other.sum()))
        return shown, np.where(chosen, ids, IGNORED)

    def _chosen(self, groups: Ids, lengths: np.ndarray, chance: np.random.Generator) -> np.ndarray:
        """Of each text at least one group, in random order until the text has its share; a long word that would be too
        much is passed over. All texts take their first groups together, then their second ones, and so on."""
        numbers, wanted = np.arange(len(lengths)), np.maximum(np.rint(self.data.masked * lengths), 1)
        owner = np.repeat(numbers, lengths)
        begins = np.flatnonzero(np.diff(owner, prepend=-1) | np.diff(groups, prepend=-1))
        sizes, owner = np.diff(begins, append=len(groups)), owner[begins]
        order = np.lexsort((chance.random(len(sizes)), owner))
        turn, last = (np.searchsorted(owner, numbers, side) for side in ("left", "right"))
        chosen, taken = np.zeros(len(sizes), bool), np.zeros(len(lengths), int)
        while len(numbers := numbers[(turn[numbers] < last[numbers]) & (taken[numbers] < wanted[numbers])]):
            group = order[turn[numbers]]
            fits = (taken[numbers] == 0) | (taken[numbers] + sizes[group] <= wanted[numbers])
            chosen[group[fits]] = True
            taken[numbers[fits]] += sizes[group[fits]]
            turn[numbers] += 1
        return np.repeat(chosen, sizes)


class MaskedRow(NamedTuple):
    """A row to learn from, or to be measured on."""

    tokens: Ids
    labels: Ids  # what was masked, NONE elsewhere
    token_types: Ids
    next_sentence: Ids  # one number, or none where lines come alone


class MaskedSampler(StepSampler):
    """Lines, or pairs of them, masked anew in every epoch."""

    data: MaskData

    def __init__(self, examples: Examples, masker: Masker, data: MaskData, train: Train, context: int | None) -> None:
        super().__init__(examples, data, train)
        self.masker, self.tokenizer = masker, masker.tokenizer
        self.room = room(context, data, 3 if data.next_sentence else 2)
        self.windowed: set[int] = set()

    def encode(self, chosen: list[int]) -> Iterable[EncodedExample]:
        """Pieces and groups of the line; with data.next_sentence, also of the next one, which may be nothing."""
        found = list(self.masker.grouped([self.examples.text(i, 0) for i in chosen]))
        after = [self._next(i) for i in chosen] if self.data.next_sentence else []
        for i, (ids, groups) in zip(chosen, found, strict=True):
            if len(ids) > self.room:
                self.windowed.add(i)
            if not self.data.next_sentence:
                yield ids, groups
        if self.data.next_sentence:
            following = self.masker.grouped(after)
            yield from (own + other for own, other in zip(found, following, strict=True))

    def _next(self, index: int) -> str:
        """The line that follows in the same document, or nothing."""
        if index + 1 >= len(self.examples) or not neighbours(self.examples, index):
            return ""
        return self.examples.text(index + 1, 0)

    def augment(self, items: list[EncodedExample], chance: np.random.Generator) -> list[EncodedExample]:
        if not self.data.next_sentence:
            return self._rows([[item] for item in items], np.zeros(0, int), chance)
        strange = np.array([not len(item[2]) for item in items]) | (chance.random(len(items)) < 0.5)
        others = iter(self._encoded(chance.integers(len(self.examples), size=int(strange.sum()))))
        seconds = [next(others)[:2] if odd else item[2:] for item, odd in zip(items, strange, strict=True)]
        pairs = [[item[:2], second] for item, second in zip(items, seconds, strict=True)]
        return self._rows(pairs, np.where(strange, STRANGE, FOLLOWS), chance)

    def _rows(
        self, rows: list[list[EncodedExample]], answers: np.ndarray, chance: np.random.Generator
    ) -> list[EncodedExample]:
        """Of each row START, and its texts with END behind each."""
        texts = [text for row in rows for text in self._windows(row, chance)]
        shown, hidden = self.masker.hide(texts, chance)
        lengths = np.array([len(ids) for ids, _ in texts]).reshape(len(rows), -1)
        number = np.arange(lengths.size).reshape(lengths.shape)  # of each text: so many ENDs come before it
        places = np.arange(len(shown)) + np.repeat(number + np.arange(len(rows))[:, None] + 1, lengths.ravel())
        sizes = lengths + 1
        sizes[:, 0] += 1
        tokens, labels = np.full(sizes.sum(), self.tokenizer.end), np.full(sizes.sum(), IGNORED)
        tokens[places], labels[places] = shown, hidden
        ends = sizes.sum(1).cumsum().tolist()
        tokens[[0, *ends[:-1]]] = self.tokenizer.start
        kinds = np.repeat(number - number[:, :1], sizes.ravel())
        follows = answers.reshape(len(rows), -1)  # of lone texts nothing
        bounds = map(slice, [0, *ends[:-1]], ends)
        return [
            MaskedRow(tokens[own], labels[own], kinds[own], last) for own, last in zip(bounds, follows, strict=True)
        ]

    def _windows(self, row: list[EncodedExample], chance: np.random.Generator) -> Iterable[EncodedExample]:
        """The texts of a row; of what has no room a part."""
        for (ids, groups), most in zip(row, shared([len(ids) for ids, _ in row], self.room), strict=True):
            begin = int(chance.integers(len(ids) - most + 1)) if len(ids) > most else 0
            yield ids[begin : begin + most], groups[begin : begin + most]

    def every(self, chance: np.random.Generator) -> list[EncodedExample]:
        """All examples in order, masked once."""
        return self.augment(self._encoded(np.arange(len(self.examples))), chance)

    def sizes(self, item: EncodedExample) -> tuple[int, int]:
        return len(item[0]), len(item[0])

    def collate(self, items: list[EncodedExample]) -> TokenRows:
        tokens, labels, kinds, follows = zip(*items, strict=True)
        pair = {}
        if self.data.next_sentence:
            answers = torch.from_numpy(np.concatenate(follows).astype(np.int64))
            pair = {"token_types": pad_rows(kinds, 0), "next_sentence": answers}
        return TokenRows(pad_rows(tokens, self.tokenizer.pad), valid_mask(tokens), pad_rows(labels, IGNORED), **pair)

    def count(self, item: EncodedExample) -> int:
        return int(np.count_nonzero(item[1] != IGNORED))

    def report(self) -> list[str]:
        what = f"lines have more than {self.room} tokens, and each epoch reads a window of them"
        return self.told(self.windowed, what)


def neighbours(examples: Examples, index: int) -> bool:
    """Does the next example follow this one directly? In files a blank line, or the next file, comes between."""
    if not isinstance(examples, PairExamples):
        return True
    row, other = int(examples.rows[index]), int(examples.rows[index + 1])
    return other == row + 1 and examples.lines[0].place(row)[0] == examples.lines[0].place(other)[0]


def shared(lengths: Sequence[int], room: int) -> list[int]:
    """How much of each text there is room for: the longest gives way first."""
    rooms = list(lengths)
    while (over := sum(rooms) - room) > 0:
        longest = rooms.index(max(rooms))
        next_one = sorted(rooms)[-2] if len(rooms) > 1 else 0
        rooms[longest] -= min(over, max(rooms[longest] - next_one, 1))
    return rooms
