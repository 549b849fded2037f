"""Data sets, from files to batches. Here: what every set of examples answers, wherever its texts come from."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, overload

import numpy as np

from ..errors import UserError

Item = TypeVar("Item", covariant=True)


class LazySequence(Sequence[Item]):
    """A sequence that makes its items when they are asked for; `at` gets an index within bounds."""

    @abstractmethod
    def item(self, index: int) -> Item: ...

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | Sequence[Item]:
        if isinstance(index, slice):
            return [self.item(i) for i in range(*index.indices(len(self)))]
        return self.item(range(len(self))[index])


class Examples(LazySequence[tuple[Any, ...]]):
    """Examples, each a tuple of sides: texts, or lists of words. `counts` says what was found and what was left out."""

    counts: dict[str, int]
    name: str

    @abstractmethod
    def location(self, index: int) -> str:
        """The place of an example, for people."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Stands for the content: equal data have it equal, wherever they lie."""

    def text(self, index: int, side: int) -> str:
        text: str = self[index][side]
        return text

    def order(self, chance: np.random.Generator) -> np.ndarray:
        """The examples of an epoch."""
        return chance.permutation(len(self))

    def texts(self, *sides: int) -> "SideTexts":
        """The texts of these sides, one side after the other."""
        return SideTexts(self, sides)

    def require_nonempty(self, key: str) -> None:
        if not len(self):
            told = "; ".join(self.report()) or "it has no line"
            raise UserError(f"{key}: {self.name} holds no example ({told}); give at least one that is whole")

    def report(self) -> list[str]:
        """What was left out or mended, in plain sentences; nothing if all was well."""
        sentences = {
            "empty": "examples left out because a side is empty",
            "invalid": "examples left out because a line is not valid (data.invalid=skip)",
            "crlf": "lines ended in CRLF; the CR was taken off",
            "bom": "files began with a byte-order mark; it was taken off",
        }
        return [f"{self.counts[key]:,} {text}" for key, text in sentences.items() if self.counts.get(key)]


@dataclass(frozen=True)
class SideTexts(LazySequence[str]):
    examples: Examples
    sides: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.examples) * len(self.sides)

    def item(self, index: int) -> str:
        side, example = divmod(index, len(self.examples))
        return self.examples.text(example, self.sides[side])
