"""Mixup (1710.09412) and CutMix (1905.04899): an image and its label are mixed with those of another example."""

import numpy as np
import torch

from ...config.data.images import ImageData
from ...config.train import Train
from ...parts.inputs import Inputs
from ...processors.image.processor import ImageProcessor
from ...processors.labels import LabelProcessor
from ..batch import Batch
from ..rng import ExampleRng
from ..source import Source
from .fields import ImageField, ProcessorField
from .source_target import SourceTargetDataset


class MixedImages(SourceTargetDataset):
    """Images with labels. The partner of an example and how both are mixed depend on (seed, epoch, example) only."""

    data: ImageData

    def __init__(
        self, examples: Source, image: ImageProcessor, label: LabelProcessor, data: ImageData, train: Train
    ) -> None:
        self.mixed = bool(data.mixup or data.cutmix)
        source = ImageField("image", image, in_bytes=not self.mixed, augmented=True)
        super().__init__(examples, source, ProcessorField("label", label), data, train)
        self._order: tuple[int, np.ndarray, np.ndarray] | None = None  # of an epoch, and the places of examples in it

    def batch(self, indices: np.ndarray, epoch: int, rows: np.ndarray | None = None) -> Batch:
        if not self.mixed:
            return super().batch(indices, epoch)
        partners, count = self.mixed_with(indices, epoch), len(indices)
        distinct, places = np.unique(np.concatenate([indices, partners]), return_inverse=True)
        generators = ExampleRng.of(self.train.seed, epoch, distinct).generators()
        items = self.encode_together(distinct.tolist(), generators)
        both = self.collate([items[place] for place in places])
        image, label = both["image"], both["label"].values
        values, shares = image.values[:count].clone(), torch.ones(count)
        for row, rng in enumerate(ExampleRng.of(self.train.seed, epoch, indices).branch(1).generators()):
            values[row], shares[row] = mix(values[row], image.values[count + row], self.data, rng)
        valid = None if image.valid is None else image.valid[:count] | image.valid[count:]
        valid = None if valid is None or bool(valid.all()) else valid
        inputs = {
            "image": Inputs("pixels", values, valid),
            "label": Inputs("labels", label[:count]),
            "other": Inputs("labels", label[count:]),
            "share": Inputs("labels", shares),
        }
        return Batch(inputs, count, examples=tuple(indices.tolist()))

    def mixed_with(self, indices: np.ndarray, epoch: int) -> np.ndarray:
        """The partner of each example: its neighbor in the order of the epoch.

        Neighbors are mostly in one batch, so that each image is read once.
        """
        if self._order is None or self._order[0] != epoch:
            order = self.examples.order(np.random.default_rng([self.train.seed, epoch]))
            places = np.empty_like(order)
            places[order] = np.arange(len(order), dtype=order.dtype)
            self._order = epoch, order, places
        _, order, places = self._order
        last = len(order) - 1
        neighbors = np.minimum(places[indices] ^ 1, last)
        partners: np.ndarray = np.where(neighbors == places[indices], order[max(last - 1, 0)], order[neighbors])
        return partners


def mix(
    image: torch.Tensor, other: torch.Tensor, data: ImageData, rng: np.random.Generator
) -> tuple[torch.Tensor, float]:
    """The mixed pixels (channels, height, width), and the share of the first image in them."""
    cut = bool(data.cutmix) and (not data.mixup or rng.random() < 0.5)
    alpha = data.cutmix if cut else data.mixup
    share = float(rng.beta(alpha, alpha))
    if not cut:
        return share * image + (1 - share) * other, share
    height, width = image.shape[1:]
    down, across = (round(size * np.sqrt(1 - share)) for size in (height, width))
    y, x = int(rng.integers(height)), int(rng.integers(width))
    top, left = max(y - down // 2, 0), max(x - across // 2, 0)
    bottom, right = min(y + down - down // 2, height), min(x + across - across // 2, width)
    mixed = image.clone()
    mixed[:, top:bottom, left:right] = other[:, top:bottom, left:right]
    return mixed, 1 - (bottom - top) * (right - left) / (height * width)
