"""Batches of images with boxes."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...config.data.images import DetectData
from ...config.train import Train
from ...processors.boxes import Boxes
from ...processors.fields import Fields
from ...processors.image.processor import ImageProcessor
from ..batch import Batch
from ..dataset import EncodedExample, Measured
from ..source import Source
from ..sources.boxes import load_image
from .fields import FieldDataset

CELL = 16  # pixels of the side of a cell; the budget of a step counts cells
TENTHS = 10  # counts are integers, so class weights are counted in tenths


class BoxDataset(FieldDataset):
    """The fields are image, boxes and label.

    `count` is the sum of the class weights, in tenths: 10 for each object and 1 for each query without an object.
    `counts["boxes"]` is the number of objects.
    """

    def __init__(self, examples: Source, fields: Fields, data: DetectData, train: Train, queries: int) -> None:
        super().__init__(examples, fields, data, train, augmented=True)
        self.queries = queries

    def _encode(self, index: int, rng: np.random.Generator | None = None) -> EncodedExample:
        raw, objects = self.examples[index]
        image, trained = load_image(raw), objects.trained
        example = {"image": image, "boxes": Boxes(trained.boxes, *image.size), "label": trained.labels}
        return tuple(self.fields.encode(example, rng).values())

    def measure(self, indices: np.ndarray, keep: bool = False) -> Measured:
        """Reads no image: the annotations have the sizes."""
        image = self.fields.processors["image"]
        assert isinstance(image, ImageProcessor)
        sizes = []
        for index in indices.tolist():
            objects = self.examples[index][1]
            height, width = image.target_size(objects.width, objects.height)
            sizes.append([-(-height // CELL) * -(-width // CELL)] * 2)
        table = np.array(sizes).reshape(-1, 2)
        return Measured(indices, table, np.zeros(len(table), bool), np.ones(len(table), int))

    def collate(self, items: Sequence[EncodedExample]) -> Batch:
        numbers = [len(self._by_field(item)["label"]) for item in items]
        matched = sum(min(number, self.queries) for number in numbers)
        weights = TENTHS * matched + len(items) * self.queries - matched
        return replace(super().collate(items), count=weights, counts={"boxes": sum(numbers)})
