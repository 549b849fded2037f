"""Examples whose fields have processors: texts, images, sound, labels, boxes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...config.data.base import Data
from ...config.train import Train
from ...parts.inputs import Inputs
from ...processors.fields import Fields
from ..batch import Batch
from ..dataset import Dataset, EncodedExample, Measured, StoredExample
from ..rng import ExampleRng
from ..source import Source

KEPT_BYTES = 1 << 31  # bytes of encoded examples that stay in memory: images and sounds are large


class FieldDataset(Dataset):
    """The processors of `fields` are in the order of an example's fields.

    Augmentation changes raw examples, so with `augmented` every batch encodes its examples again. The cost of an
    example is that of its most expensive field, without augmentation.
    """

    def __init__(self, examples: Source, fields: Fields, data: Data, train: Train, augmented: bool = False) -> None:
        super().__init__(examples, data, train)
        self.fields, self.augmented = fields, augmented
        self._encoded_bytes = 0

    def encode(self, indices: list[int]) -> Iterable[EncodedExample]:
        return (self._encode(index) for index in indices)

    def measure(self, indices: np.ndarray, keep: bool = False) -> Measured:
        return super().measure(indices, keep and not self.augmented)  # augmented examples are encoded again anyway

    def _keep(self, index: int, item: StoredExample) -> None:
        self._encoded_bytes += sum(len(array) if isinstance(array, bytes) else array.nbytes for array in item)
        if self._encoded_bytes <= KEPT_BYTES:
            super()._keep(index, item)

    def _encode(self, index: int, rng: np.random.Generator | None = None) -> EncodedExample:
        example = dict(zip(self.fields.processors, self.examples[index], strict=True))
        return tuple(self.fields.encode(example, rng).values())

    def batch(self, indices: np.ndarray, epoch: int, rows: np.ndarray | None = None) -> Batch:
        if not self.augmented:
            return super().batch(indices, epoch)
        generators = ExampleRng.of(self.train.seed, epoch, indices).generators()
        items = [self._encode(index, rng) for index, rng in zip(indices.tolist(), generators, strict=True)]
        return replace(self.collate(items), examples=tuple(indices.tolist()))

    def sizes(self, item: EncodedExample) -> tuple[int, int]:
        cost = self.fields.cost(self._by_field(item))
        return cost, cost

    def collate(self, items: Sequence[EncodedExample]) -> Batch:
        inputs = self.fields.collate([self._by_field(item) for item in items])
        return Batch(inputs, self.count(inputs))

    def count(self, inputs: Mapping[str, Inputs]) -> int:
        """The divisor of the summed loss: the number of examples, unless a task counts something else."""
        return len(next(iter(inputs.values())))

    def _by_field(self, item: EncodedExample) -> dict[str, np.ndarray]:
        return dict(zip(self.fields.processors, item, strict=True))
