"""Images with boxes and their labels, which change together."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...config.data.images import DetectData
from ...config.train import Train
from ...parts.inputs import Inputs
from ...processors.base import Rng
from ...processors.boxes import Boxes, BoxProcessor
from ...processors.image.box_window import BoxWindow
from ...processors.image.processor import ImageProcessor
from ...processors.image.read import RawImage
from ...processors.labels import LabelProcessor
from ..batch import Batch
from ..dataset import EncodedExample
from ..source import Source
from ..sources.boxes import ExampleImage, Objects, load_image
from .fields import Columns, ExampleField, ImageField, Indices, KnownSizes
from .source_target import SourceTargetDataset

CELL = 16  # pixels of the side of a cell; the budget of a step counts cells
TENTHS = 10  # counts are integers, so class weights are counted in tenths


class BoxedImageField(ImageField):
    """Images with boxes. Their sizes are those of the annotations, so measuring reads no image."""

    def __init__(self, image: ImageProcessor, max_cells: int) -> None:
        super().__init__("image", image, in_bytes=False, augmented=True)
        self.limit = max_cells

    def encode(self, raws: Sequence[ExampleImage]) -> list[EncodedExample]:
        return super().encode([load_image(raw, self.image.background) for raw in raws])

    def known_sizes(self, examples: Source, indices: Indices, sources: Sequence[int] = ()) -> KnownSizes:
        annotations = [examples[index][1] for index in indices]
        sides = [self.image.target_size(objects.width, objects.height) for objects in annotations]
        return KnownSizes([-(-height // CELL) * -(-width // CELL) for height, width in sides])


class ObjectsField(ExampleField[Objects]):
    """Objects that are not crowds, as the inputs `boxes` and `label`."""

    arrays, counted = 2, False

    def __init__(self, boxes: BoxProcessor, label: LabelProcessor) -> None:
        self.boxes, self.label = boxes, label

    def encode(self, raws: Sequence[Objects]) -> list[EncodedExample]:
        trained = [objects.trained for objects in raws]
        return [
            (self.boxes.encode(Boxes(objects.boxes, objects.width, objects.height)), self.label.encode(objects.labels))
            for objects in trained
        ]

    def known_sizes(self, examples: Source, indices: Indices, sources: Sequence[int] = ()) -> KnownSizes:
        return KnownSizes([0] * len(indices))

    def collate(self, columns: Columns) -> Mapping[str, Inputs]:
        boxes, labels = columns
        return {"boxes": self.boxes.collate(boxes), "label": self.label.collate(labels)}


class BoxDataset(SourceTargetDataset):
    """Every epoch reads another window of an image, with the boxes in it.

    `count` is the sum of the class weights, in tenths: 10 for each object and 1 for each query without an object.
    `counts["boxes"]` is the number of objects.
    """

    def __init__(
        self, examples: Source, window: BoxWindow, target: ObjectsField, data: DetectData, train: Train, queries: int
    ) -> None:
        super().__init__(examples, BoxedImageField(window.image, data.max_tokens), target, data, train)
        self.window, self.queries = window, queries

    def change(self, example: tuple[ExampleImage, Objects], rng: Rng) -> tuple[RawImage, Objects]:
        raw, objects = example[0], example[1].trained
        whole = load_image(raw, self.window.image.background)
        image, boxes, labels = self.window(whole, objects.boxes, objects.labels, rng)
        still = np.zeros(len(labels))
        return image, objects._replace(boxes=boxes, labels=labels, crowd=still > 0, areas=still)

    def collate(self, items: Sequence[EncodedExample]) -> Batch:
        numbers = [len(labels) for _, _, labels in items]
        matched = sum(min(number, self.queries) for number in numbers)
        weights = TENTHS * matched + len(items) * self.queries - matched
        return replace(super().collate(items), count=weights, counts={"boxes": sum(numbers)})
