"""Inputs of one processor with their targets; each target follows its own prompt."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...config.data.base import Data
from ...config.train import Train
from ...processors.base import Array, Processor, Rng
from ...processors.image.processor import ImageProcessor
from ...processors.text.processor import TextProcessor
from ..batch import Batch
from ..dataset import Dataset, EncodedExample, Measured, StoredExample
from ..rng import ExampleRng
from ..source import Source
from .collate import prompted_targets
from .fields import KEPT_BYTES
from .mixed_images import MAX_PATCHES
from .sounds import EncodeTargets


@dataclass(frozen=True)
class EndedText(TextProcessor):
    """Texts that an encoder reads, with END."""

    def encode(self, raw: str | Sequence[str], rng: Rng | None = None) -> Array:
        return np.append(super().encode(raw, rng), self.tokenizer.end).astype(np.int32)


class PromptedDataset(Dataset):
    """The budget of a step counts the units of the processor or the tokens of the target, whichever are more.

    Inputs stay in memory once encoded, unless training augments them (`augmented`).
    """

    def __init__(
        self,
        examples: Source,
        source: Processor,
        encode_targets: EncodeTargets,
        padding: int,
        data: Data,
        train: Train,
        augmented: bool = False,
    ) -> None:
        super().__init__(examples, data, train)
        self.source, self.encode_targets, self.padding = source, encode_targets, padding
        self.augmented, self._encoded_bytes = augmented, 0

    def encode(self, indices: list[int]) -> Iterable[EncodedExample]:
        for index in indices:
            raw, target = self.examples[index]
            yield self.source.encode(raw), *self.encode_targets([target])[0]

    def sizes(self, item: EncodedExample) -> tuple[int, int]:
        return self.source.cost(item[0]), len(item[1]) + len(item[2]) - 1

    def batch(self, indices: np.ndarray, epoch: int, rows: np.ndarray | None = None) -> Batch:
        if not self.augmented:
            return super().batch(indices, epoch)
        examples = [self.examples[index] for index in indices.tolist()]
        generators = ExampleRng.of(self.train.seed, epoch, indices).generators()
        values = [self.source.encode(raw, rng) for (raw, _), rng in zip(examples, generators, strict=True)]
        targets = self.encode_targets([target for _, target in examples])
        items = [(value, *target) for value, target in zip(values, targets, strict=True)]
        return replace(self.collate(items), examples=tuple(indices.tolist()))

    def collate(self, items: Sequence[EncodedExample]) -> Batch:
        values, prompts, targets = zip(*items, strict=True)
        inputs = {"source": self.source.collate(values), **prompted_targets(prompts, targets, self.padding)}
        return Batch(inputs, sum(map(len, targets)))

    def _keep(self, index: int, item: StoredExample) -> None:
        self._encoded_bytes += sum(len(array) if isinstance(array, bytes) else array.nbytes for array in item)
        if self._encoded_bytes <= KEPT_BYTES:
            super()._keep(index, item)


class PromptedImages(PromptedDataset):
    """Measuring reads no image: all have the same size, and only targets may be too long."""

    source: ImageProcessor

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.limit = MAX_PATCHES

    def measure(self, indices: np.ndarray, keep: bool = False) -> Measured:
        patches = self.source.fixed_cost
        assert patches is not None, "images are cropped to squares"
        rows = self.encode_targets([self.examples.text(index, 1) for index in indices.tolist()])
        tokens = np.array([len(prompt) + len(ids) - 1 for prompt, ids in rows], np.int64)
        sizes = np.stack([np.where(tokens > self.data.max_tokens, self.limit + 1, patches), tokens], 1)
        return Measured(indices, sizes, np.zeros(len(indices), bool), np.ones(len(indices), np.int64))

    def describe_too_long(self) -> str:
        return f"a target of more than {self.data.max_tokens} tokens"
