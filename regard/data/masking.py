"""Masked words (BERT, 1810.04805): which pieces of a text are to be guessed, and what stands in their place."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from ..errors import Mistake
from ..sections import MaskData, Train
from . import Examples
from .batches import Ids, Numbers, Updates
from .readers import Lines, Pairs
from .rows import NONE, Rows, laid, real, room, word_pieces
from .tokenizers import Text

HIDDEN, RANDOM = 0.8, 0.1  # of the chosen pieces: replaced by MASK, by any piece; the rest stays as it is
FOLLOWS, STRANGE = 0, 1  # the two answers of the next-sentence head, in BERT's order


def lines(sides: Sequence[Sequence[str]], data: MaskData) -> Examples:
    """The lines of these files, one side each."""
    if len(sides) != 1:
        raise Mistake(
            f"text is one side, and {len(sides)} were given with a comma between; "
            "join several files by a glob or a TOML list"
        )
    return Pairs([Lines(sides[0], data.invalid)])


class Masker:
    """Chooses and replaces. It needs a tokenizer that has a mask."""

    def __init__(self, tokenizer: Text, data: MaskData) -> None:
        if tokenizer.mask is None:
            raise Mistake(
                "the tokenizer has no <mask> and masked words need one; begin without `start`, or with a run or folder "
                "of task masked"
            )
        self.tokenizer, self.data, self.mask = tokenizer, data, tokenizer.mask
        control = {tokenizer.pad, tokenizer.start, tokenizer.end, tokenizer.unk, tokenizer.mask, *tokenizer.symbols}
        self.ordinary = np.array([number for number in range(tokenizer.size) if number not in control])

    def grouped(self, texts: Sequence[str]) -> Iterable[tuple[Ids, Ids]]:
        """The pieces of each text, and for each piece the number of the group that is masked together with it."""
        if not self.data.whole:
            for ids in self.tokenizer.encode(texts):
                yield np.array(ids, np.int32), np.arange(len(ids), dtype=np.int32)
            return
        for pieces in word_pieces(self.tokenizer, [text.split() for text in texts]):
            sizes = [len(each) for each in pieces]
            flat = np.array([piece for each in pieces for piece in each], np.int32)
            yield flat, np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)

    def hide(self, ids: Ids, groups: Ids, chance: np.random.Generator) -> tuple[Ids, Ids]:
        """The pieces with some replaced, and what was there (NONE elsewhere): at least one is chosen."""
        chosen = self._chosen(groups, max(round(self.data.masked * len(ids)), 1), chance)
        fate = chance.random(len(ids))
        shown = np.where(chosen & (fate < HIDDEN), self.mask, ids)
        other = chosen & (fate >= HIDDEN) & (fate < HIDDEN + RANDOM)
        shown[other] = chance.choice(self.ordinary, int(other.sum()))
        return shown, np.where(chosen, ids, NONE)

    def _chosen(self, groups: Ids, wanted: int, chance: np.random.Generator) -> np.ndarray:
        chosen = np.zeros(len(groups), bool)
        if not self.data.whole:
            chosen[chance.permutation(len(groups))[:wanted]] = True
            return chosen
        for group in chance.permutation(np.unique(groups)):
            own = groups == group
            if not chosen.any() or chosen.sum() + own.sum() <= wanted:  # else a long word, that would be too much
                chosen |= own
            if chosen.sum() >= wanted:
                break
        return chosen


class Line(NamedTuple):
    """A row to learn from, or to be measured on."""

    tokens: Ids
    labels: Ids  # what was masked, NONE elsewhere
    kinds: Ids
    follows: Ids  # one number, or none where lines come alone


class MaskUpdates(Updates):
    """Lines, or pairs of them, masked anew in every epoch."""

    data: MaskData

    def __init__(self, examples: Examples, masker: Masker, data: MaskData, train: Train, context: int | None) -> None:
        super().__init__(examples, data, train)
        self.masker, self.tokenizer = masker, masker.tokenizer
        self.room = room(context, data, 3 if data.follow else 2)
        self.windowed: set[int] = set()

    def encode(self, chosen: list[int]) -> Iterable[Numbers]:
        """Pieces and groups of the line; with data.follow, also of the next one, which may be nothing."""
        found = list(self.masker.grouped([self.examples.text(i, 0) for i in chosen]))
        after = [self._next(i) for i in chosen] if self.data.follow else []
        for i, (ids, groups) in zip(chosen, found, strict=True):
            if len(ids) > self.room:
                self.windowed.add(i)
            if not self.data.follow:
                yield ids, groups
        if self.data.follow:
            following = self.masker.grouped(after)
            yield from (own + other for own, other in zip(found, following, strict=True))

    def _next(self, index: int) -> str:
        """The line that follows in the same document, or nothing."""
        if index + 1 >= len(self.examples) or not neighbours(self.examples, index):
            return ""
        return self.examples.text(index + 1, 0)

    def changed(self, item: Numbers, chance: np.random.Generator) -> Numbers:
        if not self.data.follow:
            return self._row([(item[0], item[1])], NONE, chance)
        first, second = (item[0], item[1]), (item[2], item[3])
        answer = FOLLOWS
        if not len(second[0]) or chance.random() < 0.5:
            other = self._encoded(chance.integers(len(self.examples), size=1))[0]
            second, answer = (other[0], other[1]), STRANGE
        return self._row([first, second], answer, chance)

    def _row(self, texts: list[tuple[Ids, Ids]], answer: int, chance: np.random.Generator) -> Numbers:
        """START, the texts with END behind each; of what has no room a window is taken."""
        rooms = shared([len(ids) for ids, _ in texts], self.room)
        tokens, labels = [np.array([self.tokenizer.start])], [np.array([NONE])]
        kinds = [np.array([0])]
        for kind, ((ids, groups), most) in enumerate(zip(texts, rooms, strict=True)):
            begin = int(chance.integers(max(len(ids) - most, 0) + 1))
            shown, hidden = self.masker.hide(ids[begin : begin + most], groups[begin : begin + most], chance)
            tokens += [shown, np.array([self.tokenizer.end])]
            labels += [hidden, np.array([NONE])]
            kinds.append(np.full(len(shown) + 1, kind))
        follows = np.array([answer] if answer != NONE else [], int)
        return Line(np.concatenate(tokens), np.concatenate(labels), np.concatenate(kinds), follows)

    def every(self, chance: np.random.Generator) -> list[Numbers]:
        """All examples in order, masked once."""
        return [self.changed(item, chance) for item in self._encoded(np.arange(len(self.examples)))]

    def sizes(self, item: Numbers) -> tuple[int, int]:
        return len(item[0]), len(item[0])

    def piece(self, items: list[Numbers]) -> Rows:
        tokens, labels, kinds, follows = zip(*items, strict=True)
        pair = {}
        if self.data.follow:
            answers = torch.from_numpy(np.concatenate(follows).astype(np.int64))
            pair = {"kinds": laid(kinds, 0), "follows": answers}
        return Rows(laid(tokens, self.tokenizer.pad), real(tokens), laid(labels, NONE), **pair)

    def count(self, item: Numbers) -> int:
        return int((item[1] != NONE).sum())

    def report(self) -> list[str]:
        what = f"lines have more than {self.room} tokens, and each epoch reads a window of them"
        return self.told(self.windowed, what)


def neighbours(examples: Examples, index: int) -> bool:
    """Does the next example follow this one directly? In files a blank line, or the next file, comes between."""
    if not isinstance(examples, Pairs):
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
