"""The interface of a data set (`Source`), and data sets held in memory."""

import hashlib
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, overload

import numpy as np

from ..errors import UserError

Item = TypeVar("Item", covariant=True)


class LazySequence(Sequence[Item]):
    """A sequence that computes its items on access; `item` gets an index within bounds."""

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


class Source(LazySequence[tuple[Any, ...]]):
    """A data set. An example is a tuple of sides: texts, or lists of words.

    `counts` has the number of examples, and of lines that were skipped or repaired.
    """

    counts: dict[str, int]
    name: str

    @abstractmethod
    def location(self, index: int) -> str:
        """Where an example comes from, for messages: file and line."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A hash of the content; it does not depend on file names."""

    def side(self, index: int, side: int) -> Any:
        """One side of an example. Sources whose other sides are slow to read override it."""
        return self[index][side]

    def text(self, index: int, side: int) -> str:
        text: str = self.side(index, side)
        return text

    def seconds(self, index: int) -> float:
        """The length of the recording of an example, without decoding it; 0 if it has none."""
        return 0.0

    def order(self, rng: np.random.Generator) -> np.ndarray:
        """The example indices of one epoch."""
        return permutation(len(self), rng)

    def adjacent(self, index: int) -> bool:
        """True if the next example directly follows this one: in files, no blank line or end of file is between."""
        return True

    def texts(self, *sides: int) -> "SideTexts":
        """The texts of these sides, one side after the other."""
        return SideTexts(self, sides)

    def require_nonempty(self, key: str) -> None:
        if not len(self):
            reason = "; ".join(self.report()) or "it has no line"
            raise UserError(f"{key}: {self.name} holds no example ({reason}); give at least one complete example")

    def report(self) -> list[str]:
        """Sentences about what was skipped or repaired; empty if nothing was."""
        sentences = {
            "empty": "examples left out because a side is empty",
            "invalid": "examples left out because a line is not valid (data.invalid=skip)",
            "crlf": "lines ended in CRLF; the CR was removed",
            "bom": "files began with a byte-order mark; it was removed",
        }
        return [f"{self.counts[key]:,} {text}" for key, text in sentences.items() if self.counts.get(key)]


def permutation(count: int, rng: np.random.Generator) -> np.ndarray:
    """`rng.permutation(count)` in four bytes per item, where they suffice."""
    order = np.arange(count, dtype=np.int32 if count < 2**31 else np.int64)
    rng.shuffle(order)
    return order


@dataclass(frozen=True)
class SideTexts(LazySequence[str]):
    """The texts of some sides of a data set, one side after the other."""

    examples: Source
    sides: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.examples) * len(self.sides)

    def item(self, index: int) -> str:
        side, example = divmod(index, len(self.examples))
        return self.examples.text(example, self.sides[side])


class InMemorySource(Source):
    """Examples held in memory."""

    def __init__(self, name: str, examples: Sequence[tuple[Any, ...]]) -> None:
        self.name, self.examples = name, examples
        self.counts = {"examples": len(examples)}

    def __len__(self) -> int:
        return len(self.examples)

    def item(self, index: int) -> tuple[Any, ...]:
        return self.examples[index]

    def location(self, index: int) -> str:
        return f"{self.name}, example {index + 1}"

    def fingerprint(self) -> str:
        parts = "\0".join(self.text(i, side) for i, sides in enumerate(self.examples) for side in range(len(sides)))
        return hashlib.blake2b(parts.encode("utf-8"), digest_size=16).hexdigest()
