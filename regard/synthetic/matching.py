"""Embedded data for long texts: among noise stand two marks far apart; do they belong together?

Near its beginning a text has a mark of one of eight kinds, (A to (H, near its end another, A) to H); each is a stretch
of the same word, so that a text of any length has as much of it. Kinds are drawn so that every one of these words comes
as often in texts of either label: no count of a word tells anything, nor does any weighted sum of counts. Only who
brings the two ends together can know.
"""

import hashlib
import string
from copy import copy

import numpy as np

from ..data.examples import Examples, SideTexts
from ..errors import UserError
from .dates import HELD

KINDS = 8
OPENING, CLOSING = ([form.format(letter) for letter in string.ascii_uppercase[:KINDS]] for form in ("({}", "{})"))
NOISE = string.ascii_lowercase[:16]
WORDS = np.array([*OPENING, *CLOSING, *NOISE])
LABELS = ("different", "equal")
LEAST = 32  # words of a text: shorter ones have no far ends
SAMPLE = 200  # texts that hold every word there is


class MatchingExamples(Examples):
    """Texts of so many words, made when they are asked for; every other one has equal marks."""

    def __init__(self, part: str, words: int, examples: int, seed: int) -> None:
        if words < LEAST:
            raise UserError(f"data.max_tokens={words + 2} leaves {words} words for the marks; use at least {LEAST + 2}")
        self.name, self.words, self.examples = f"embedded {part} marks", words, examples
        self.key = [{"train": 0, "valid": 1, "test": 2}[part], seed if part == "train" else 0, words]
        self.counts = {"examples": examples}

    def __len__(self) -> int:
        return self.examples

    def item(self, index: int) -> tuple[str, str]:
        return self.text(index, 0), self.text(index, 1)

    def text(self, index: int, side: int) -> str:
        return LABELS[index % 2] if side else " ".join(WORDS[self.row(index)].tolist())

    def row(self, index: int) -> np.ndarray:
        """The words' numbers. The marks stand within the first and the last quarter, and are half as long as that."""
        chance, size = np.random.default_rng([*self.key, index]), self.words
        row = chance.integers(2 * KINDS, len(WORDS), size)
        kind, shift = chance.integers(KINDS), chance.integers(1, KINDS)
        other = kind if index % 2 else (kind + shift) % KINDS
        stretch, room = size // 8, size // 4 - size // 8 + 1
        first, last = chance.integers(room), size - size // 4 + chance.integers(room)
        row[first : first + stretch], row[last : last + stretch] = kind, KINDS + other
        return row

    def location(self, index: int) -> str:
        return f"{self.name}, example {index + 1}"

    def fingerprint(self) -> str:
        """By what they are made from, and the first of them; there are too many to look at all."""
        some = "\0".join([*map(str, [*self.key, len(self)]), *self.texts(0)])
        return hashlib.blake2b(some.encode("utf-8"), digest_size=16).hexdigest()

    def texts(self, *sides: int) -> SideTexts:
        """Of the first ones; a vocabulary needs no more."""
        few = copy(self)
        few.examples = min(len(self), SAMPLE)
        return SideTexts(few, sides)


def make_matching(words: int, examples: int, seed: int) -> dict[str, MatchingExamples]:
    """For train, valid and test; the last two are the same for every seed."""
    sizes = {"train": examples, "valid": HELD, "test": HELD}
    return {part: MatchingExamples(part, words, size, seed) for part, size in sizes.items()}
