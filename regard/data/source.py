"""The interface of raw examples (`Source`), examples in memory, and views: several sources as one, some examples."""

import bisect
import hashlib
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
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

    def origin(self, index: int) -> "tuple[Source, int]":
        """The source that holds an example, and its index there; views of other sources hold none."""
        return self, index

    def divide(self, choose: "Callable[[Source], Source]") -> "Source":
        """What `choose` makes of this source, or of each of its tasks."""
        return choose(self)

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

    def notes(self, indices: Sequence[int] | np.ndarray) -> list[str]:
        """Sentences about what these examples contain, such as silence."""
        return []


def permutation(count: int, rng: np.random.Generator) -> np.ndarray:
    """`rng.permutation(count)` in four bytes per item, where they suffice."""
    order = np.arange(count, dtype=np.int32 if count < 2**31 else np.int64)
    rng.shuffle(order)
    return order


@dataclass(frozen=True)
class FieldValues(LazySequence[object]):
    """The values of one field of a source, such as images or texts."""

    examples: Source
    field: int

    def __len__(self) -> int:
        return len(self.examples)

    def item(self, index: int) -> object:
        return self.examples.field(index, self.field)


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
        values = (self.text(i, field) for i, fields in enumerate(self.examples) for field in range(len(fields)))
        parts = "\0".join(value if isinstance(value, str) else array_digest(value) for value in values)
        return hashlib.blake2b(parts.encode("utf-8"), digest_size=16).hexdigest()


def array_digest(media: Any) -> str:
    """Identifies an image, samples or another array in memory."""
    media = media.detach().float().cpu().numpy() if hasattr(media, "detach") else media
    size = getattr(media, "size", 0)
    shape = f"{getattr(media, 'mode', '')}{getattr(media, 'dtype', '')}{getattr(media, 'shape', size)}"
    content = media if isinstance(media, bytes) else media.tobytes()
    return hashlib.blake2b(shape.encode() + content, digest_size=16).hexdigest()


# --- views -----------------------------------------------------------------------------------------------------------


class View(Source):
    """Examples of other sources."""

    @abstractmethod
    def locate(self, index: int) -> tuple[Source, int]:
        """The source of an example, and the index of the example there."""

    def item(self, index: int) -> Example:
        source, place = self.locate(index)
        return source.item(place)

    def field(self, index: int, field: int) -> Any:
        source, place = self.locate(index)
        return source.field(place, field)

    def text(self, index: int, field: int) -> str:
        source, place = self.locate(index)
        return source.text(place, field)

    def seconds(self, index: int) -> float:
        source, place = self.locate(index)
        return source.seconds(place)

    def location(self, index: int) -> str:
        source, place = self.locate(index)
        return source.location(place)

    def adjacent(self, index: int) -> bool:
        (source, place), following = self.locate(index), self.locate(index + 1)
        return following == (source, place + 1) and source.adjacent(place)

    def origin(self, index: int) -> tuple[Source, int]:
        source, place = self.locate(index)
        return source.origin(place)


class Subset(View):
    """Some examples of a source."""

    def __init__(self, examples: Source, indices: np.ndarray, name: str) -> None:
        self.examples, self.indices, self.name = examples, indices, name
        self.counts = examples.counts | {"examples": len(indices)}

    def __len__(self) -> int:
        return len(self.indices)

    def locate(self, index: int) -> tuple[Source, int]:
        return self.examples, int(self.indices[index])

    def fingerprint(self) -> str:
        chosen = hashlib.blake2b(self.indices.astype(np.int64).tobytes(), digest_size=16).hexdigest()
        return hashlib.blake2b(f"{self.examples.fingerprint()} {chosen}".encode(), digest_size=16).hexdigest()

    def report(self) -> list[str]:
        return self.examples.report()

    def notes(self, indices: Sequence[int] | np.ndarray) -> list[str]:
        return self.examples.notes(self.indices[np.asarray(indices, int)])


class Concat(View):
    """The examples of several sources, one after the other."""

    def __init__(self, parts: Sequence[Source], name: str) -> None:
        self.parts, self.name = parts, name
        self.bounds = np.cumsum([0, *map(len, parts)]).tolist()
        self.counts = {"examples": self.bounds[-1]}

    def __len__(self) -> int:
        return int(self.bounds[-1])

    def part_of(self, index: int) -> int:
        """The number of the part that has an example."""
        return bisect.bisect_right(self.bounds, index) - 1

    def locate(self, index: int) -> tuple[Source, int]:
        number = self.part_of(index)
        return self.parts[number], index - self.bounds[number]

    def fingerprint(self) -> str:
        parts = " ".join(part.fingerprint() for part in self.parts)
        return hashlib.blake2b(parts.encode(), digest_size=16).hexdigest()

    def report(self) -> list[str]:
        return [f"{part.name}: {fact}" for part in self.parts for fact in part.report()]

    def notes(self, indices: Sequence[int] | np.ndarray) -> list[str]:
        chosen = np.asarray(indices, int)
        places = [chosen[(chosen >= start) & (chosen < end)] - start for start, end in pairwise(self.bounds)]
        parts = zip(self.parts, places, strict=True)
        return [f"{part.name}: {note}" for part, own in parts for note in part.notes(own)]


def concatenate(parts: Sequence[Source]) -> Source:
    """The examples of several places as one source."""
    return parts[0] if len(parts) == 1 else Concat(parts, f"{parts[0].name} (and {len(parts) - 1} more)")
