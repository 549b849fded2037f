"""The fields of an example: a processor each, and augmentation that concerns several of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..parts.inputs import Inputs
from .base import Array, Processor, Rng
from .boxes import BoxProcessor
from .image.processor import ImageProcessor

Example: TypeAlias = Mapping[str, Any]  # raw values by field
Augment: TypeAlias = Callable[[Example, Rng], Example]


@dataclass(frozen=True)
class Fields:
    """The processors of an example by field.

    `augment` changes several raw fields together, such as an image with its boxes, before encoding. A processor
    augments its own field. Both draw from `rng` only: training passes one per (seed, epoch, example).
    """

    processors: Mapping[str, Processor]
    augment: Augment | None = None

    def encode(self, example: Example, rng: Rng | None = None) -> dict[str, Array]:
        """The arrays of each field; without `rng` nothing is augmented."""
        if rng is not None and self.augment is not None:
            example = self.augment(example, rng)
        return {name: processor.encode(example[name], rng) for name, processor in self.processors.items()}

    def cost(self, encoded: Mapping[str, Array]) -> int:
        """The cost of the most expensive field."""
        return max(processor.cost(encoded[name]) for name, processor in self.processors.items())

    def collate(self, encoded: Sequence[Mapping[str, Array]]) -> dict[str, Inputs]:
        return {name: processor.collate([row[name] for row in encoded]) for name, processor in self.processors.items()}


@dataclass(frozen=True)
class FlipBoxes:
    """Mirrors an image and its boxes together, half of the time."""

    image: ImageProcessor
    boxes: BoxProcessor
    names: tuple[str, str] = ("image", "boxes")

    def __call__(self, example: Example, rng: Rng) -> Example:
        if rng.random() >= 0.5:
            return example
        image, boxes = self.names
        flipped = {image: self.image.mirror(example[image]), boxes: self.boxes.flip(example[boxes])}
        return {**example, **flipped}
