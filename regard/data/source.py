"""The interface of raw examples (`Source`), and examples held in memory."""

import hashlib
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, overload

import numpy as np

from ..errors import UserError

Item = TypeVar("Item", covariant=True)
Example: TypeAlias = tuple[Any, ...]  # its fields, such as a source and a target


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


class Source(LazySequence[Example]):
    """Raw examples. An example is a tuple of fields, such as a source text and a target text.

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

    def field(self, index: int, field: int) -> Any:
        """One field of an example. Sources whose other fields are slow to read override this method."""
        return self[index][field]

    def text(self, index: int, field: int) -> str:
        text: str = self.field(index, field)
        return text

    def seconds(self, index: int) -> float:
        """The length of an example's recording, known without decoding; 0 without a recording."""
        return 0.0

    def order(self, rng: np.random.Generator) -> np.ndarray:
        """The example indices of one epoch."""
        return permutation(len(self), rng)

    def adjacent(self, index: int) -> bool:
        """True if the next example directly follows this one: in files, no blank line or end of file is between."""
        return True

    def texts(self, *fields: int) -> "FieldTexts":
        """The texts of these fields: all texts of the first field, then all of the next."""
        return FieldTexts(self, fields)

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
class FieldTexts(LazySequence[str]):
    """The texts of some fields of a source: all texts of the first field, then all of the next."""

    examples: Source
    fields: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.examples) * len(self.fields)

    def item(self, index: int) -> str:
        field, example = divmod(index, len(self.examples))
        return self.examples.text(example, self.fields[field])


class InMemorySource(Source):
    """Examples held in memory."""

    def __init__(self, name: str, examples: Sequence[Example]) -> None:
        self.name, self.examples = name, examples
        self.counts = {"examples": len(examples)}

    def __len__(self) -> int:
        return len(self.examples)

    def item(self, index: int) -> Example:
        return self.examples[index]

    def location(self, index: int) -> str:
        return f"{self.name}, example {index + 1}"

    def fingerprint(self) -> str:
        parts = "\0".join(self.text(i, field) for i, fields in enumerate(self.examples) for field in range(len(fields)))
        return hashlib.blake2b(parts.encode("utf-8"), digest_size=16).hexdigest()
