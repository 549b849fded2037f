"""Boxes of an image."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from torch import Tensor

from ..errors import UserError
from ..parts.inputs import Inputs, TensorKind
from .base import Array, Rng, SavedSettings, pad_arrays, to_array

BoxFormat = Literal["xyxy", "xywh"]


class Boxes(NamedTuple):
    """The boxes of one image in pixels from its top left corner, and the size of the image."""

    boxes: Sequence[Sequence[float]] | Array  # (boxes, 4)
    width: int
    height: int


@dataclass(frozen=True)
class BoxProcessor(SavedSettings):
    """Boxes as (center x, center y, width, height) in shares of the image. Their labels are another field.

    `format` is that of the raw boxes: two corners (xyxy), or the first corner and the size (xywh).
    """

    format: BoxFormat = "xyxy"
    categories: tuple[int, ...] = ()  # the ids of the labels in COCO files, in the order of the labels
    kind: ClassVar[str] = "boxes"
    file: ClassVar[str] = "boxes.json"

    def __post_init__(self) -> None:
        if self.format not in ("xyxy", "xywh"):
            raise UserError(f"the box format is {self.format!r}; expected xyxy or xywh")

    @property
    def modality(self) -> TensorKind:
        return "boxes"

    def encode(self, raw: Boxes, rng: Rng | None = None) -> Array:
        """(boxes, 4). A box is clipped to its image; one that lies outside or is empty is an error."""
        boxes, (width, height) = _four_numbers(raw), raw[1:]
        if width < 1 or height < 1:
            raise UserError(f"an image of boxes is {width} × {height}; expected its size in pixels")
        first = boxes[:, :2]
        last = boxes[:, 2:] if self.format == "xyxy" else first + boxes[:, 2:]
        limits = np.array([width, height])
        low, high = first.clip(0, limits), last.clip(0, limits)
        if wrong := np.flatnonzero(~(high > low).all(1)).tolist():
            box = boxes[wrong[0]].tolist()
            raise UserError(
                f"the box {box} is empty in an image of {width} × {height} pixels; correct it, or its format "
                f"({self.format})"
            )
        shares: Array = np.concatenate([(low + high) / 2, high - low], 1) / np.tile(limits, 2)
        return shares.astype(np.float32)

    def cost(self, encoded: Array) -> int:
        return max(len(encoded), 1)

    def collate(self, encoded: Sequence[Array]) -> Inputs:
        return Inputs("boxes", *pad_arrays(encoded))

    def decode(self, values: Array | Tensor, width: int = 1, height: int = 1) -> Boxes:
        """The boxes in pixels of an image of this size; without it, in shares of the image."""
        boxes = to_array(values).astype(np.float64).reshape(-1, 4)
        center, size, limits = boxes[:, :2], boxes[:, 2:], np.array([width, height])
        first, last = (center - size / 2) * limits, (center + size / 2) * limits
        return Boxes(np.concatenate([first, last if self.format == "xyxy" else last - first], 1), width, height)


def _four_numbers(raw: Boxes) -> Array:
    """(boxes, 4)"""
    try:
        return np.array(raw.boxes, np.float64).reshape(-1, 4)
    except (ValueError, TypeError) as error:
        raise UserError(f"the boxes {raw.boxes!r:.60} cannot be read; expected four numbers for each") from error
