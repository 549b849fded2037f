"""The axes of attention weights: what the queries and the keys are, in order."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Pixels: TypeAlias = npt.NDArray[np.uint8]  # (height, width, 3)


@dataclass(frozen=True)
class TextSegment:
    """Tokens of a text, or single positions such as the class token."""

    labels: tuple[str, ...]
    kind = "tokens"


@dataclass(frozen=True, eq=False)
class PatchSegment:
    """The patches of an image, or the places of a feature map, row by row."""

    rows: int
    columns: int
    image: Pixels  # what the model reads, before normalization
    kind = "patches"

    @property
    def labels(self) -> tuple[str, ...]:
        """The row and column of every patch, from 1."""
        return tuple(f"row {i + 1}, column {j + 1}" for i in range(self.rows) for j in range(self.columns))


@dataclass(frozen=True, eq=False)
class FrameSegment:
    """Positions of an encoder over sound: position i is at `first` + i · `step` seconds."""

    count: int
    step: float
    first: float
    spectrogram: npt.NDArray[np.float32]  # (frames, bins), of the same sound
    kind = "frames"

    @property
    def labels(self) -> tuple[str, ...]:
        """The time of every position, in seconds."""
        return tuple(f"{self.first + i * self.step:.2f}" for i in range(self.count))


@dataclass(frozen=True, eq=False)
class QuerySegment:
    """Object queries: what each finds in an image."""

    labels: tuple[str, ...]
    scores: tuple[float, ...]
    boxes: tuple[tuple[float, float, float, float], ...]  # left, top, right, bottom as shares of the image
    image: Pixels
    kind = "queries"


AxisSegment: TypeAlias = TextSegment | PatchSegment | FrameSegment | QuerySegment


@dataclass(frozen=True, eq=False)
class ViewAxis:
    """Queries or keys of one sequence. A model that mixes modalities has several segments."""

    name: str  # such as source, target, image
    segments: tuple[AxisSegment, ...]
    ended: bool = False  # the last position is END

    @classmethod
    def of_tokens(cls, name: str, labels: Iterable[str], ended: bool = False) -> "ViewAxis":
        """An axis of one segment of text."""
        return cls(name, (TextSegment(tuple(labels)),), ended)

    @cached_property
    def labels(self) -> list[str]:
        return [label for segment in self.segments for label in segment.labels]

    def __len__(self) -> int:
        return len(self.labels)
