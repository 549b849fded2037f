"""Embedded data for long texts: two marks far apart in noise; the label says whether they match.

A text has a mark of one of eight kinds near its beginning, (A to (H, and another near its end, A) to H). Each is a run
of the same word, in proportion to the length of the text. Kinds are drawn so that every word is equally frequent in
texts of either label: neither counts of words nor a weighted sum of counts predict the label. Only a model that
combines both ends can.
"""

import hashlib
import string
from copy import copy

import numpy as np

from ..data.source import FieldTexts, Source
from ..errors import UserError
from .dates import HELD_OUT

KINDS = 8
OPENING, CLOSING = ([form.format(letter) for letter in string.ascii_uppercase[:KINDS]] for form in ("({}", "{})"))
NOISE = string.ascii_lowercase[:16]
WORDS = np.array([*OPENING, *CLOSING, *NOISE])
LABELS = ("different", "equal")
MIN_WORDS = 32  # of a text: in shorter ones, the marks are not far apart
VOCABULARY_TEXTS = 200  # enough texts to contain every word


class MatchingSource(Source):
    """Texts of `words` words, generated on access; every other one has equal marks."""

    def __init__(self, split: str, words: int, examples: int, seed: int) -> None:
        if words < MIN_WORDS:
            raise UserError(
                f"data.max_tokens={words + 2} leaves {words} words for the marks; use at least {MIN_WORDS + 2}"
            )
        self.name, self.words, self.examples = f"embedded {split} marks", words, examples
        self.key = [{"train": 0, "valid": 1, "test": 2}[split], seed if split == "train" else 0, words]
        self.counts = {"examples": examples}

    def __len__(self) -> int:
        return self.examples

    def item(self, index: int) -> tuple[str, str]:
        return self.text(index, 0), self.text(index, 1)

    def text(self, index: int, field: int) -> str:
        return LABELS[index % 2] if field else " ".join(WORDS[self.row(index)].tolist())

    def row(self, index: int) -> np.ndarray:
        """Indices into WORDS. The marks are within the first and the last quarter, and half as long as that."""
        rng, size = np.random.default_rng([*self.key, index]), self.words
        row = rng.integers(2 * KINDS, len(WORDS), size)
        kind, shift = rng.integers(KINDS), rng.integers(1, KINDS)
        other = kind if index % 2 else (kind + shift) % KINDS
        length, starts = size // 8, size // 4 - size // 8 + 1
        first, last = rng.integers(starts), size - size // 4 + rng.integers(starts)
        row[first : first + length], row[last : last + length] = kind, KINDS + other
        return row

    def location(self, index: int) -> str:
        return f"{self.name}, example {index + 1}"

    def fingerprint(self) -> str:
        """A hash of the generator's settings and of the first texts; hashing all would take too long."""
        some = "\0".join([*map(str, [*self.key, len(self)]), *self.texts(0)])
        return hashlib.blake2b(some.encode("utf-8"), digest_size=16).hexdigest()

    def texts(self, *fields: int) -> FieldTexts:
        """The first texts only; a vocabulary needs no more."""
        few = copy(self)
        few.examples = min(len(self), VOCABULARY_TEXTS)
        return FieldTexts(few, fields)


def make_matching(words: int, examples: int, seed: int) -> dict[str, MatchingSource]:
    """Train, valid and test; the last two are the same for every seed."""
    sizes = {"train": examples, "valid": HELD_OUT, "test": HELD_OUT}
    return {split: MatchingSource(split, words, size, seed) for split, size in sizes.items()}
