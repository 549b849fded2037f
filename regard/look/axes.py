"""The axes of attention weights: what the queries and the keys are, in order."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

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
        return cls(name, (TextSegment(tuple(labels)),), ended)

    @cached_property
    def labels(self) -> list[str]:
        return [label for segment in self.segments for label in segment.labels]

    def __len__(self) -> int:
        return len(self.labels)


def image_pixels(values: Any, mean: Sequence[float], std: Sequence[float]) -> Pixels:
    """The image (channels, height, width) that a processor normalized, as pixels."""
    array = np.asarray(values, dtype=np.float32)
    shape = (-1, 1, 1)
    array = array * np.reshape(np.asarray(std, np.float32), shape) + np.reshape(np.asarray(mean, np.float32), shape)
    pixels = np.clip(np.rint(array * 255), 0, 255).astype(np.uint8).transpose(1, 2, 0)
    return np.ascontiguousarray(np.repeat(pixels, 3, 2) if pixels.shape[2] == 1 else pixels[..., :3])
