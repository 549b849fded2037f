"""Examples of a source and a target, of any modality: what differs is in their fields."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from ...config.data.base import Data
from ...config.train import Train
from ...processors.base import Rng
from ..batch import Batch
from ..dataset import Dataset, EncodedExample, Measured
from ..rng import ExampleRng
from ..source import Example, Source
from .fields import AnyField

TOGETHER = 1000  # examples that are measured or encoded together


class SourceTargetDataset(Dataset):
    """A model reads the source, element 0 of an example, and learns the target, element 1.

    The budget of a step counts the larger of both sizes. Encoded examples stay in memory, unless training augments
    raw sources.
    """

    def __init__(self, examples: Source, source: AnyField, target: AnyField, data: Data, train: Train) -> None:
        super().__init__(examples, data, train)
        self.source, self.target, self.curriculum = source, target, source.curriculum
        self.limit = source.limit or data.max_tokens
        self.limit_key = " or ".join(filter(None, (source.limit_key, target.limit_key))) or self.limit_key

    # Encoding

    def change(self, example: Example, rng: Rng) -> Example:
        """Augmentation of a raw source together with its target."""
        return example

    def encode(self, indices: list[int]) -> Iterable[EncodedExample]:
        for first in range(0, len(indices), TOGETHER):
            yield from self.encode_together(indices[first : first + TOGETHER])

    def encode_together(self, indices: list[int], generators: Sequence[Rng] = ()) -> list[EncodedExample]:
        """These examples as arrays; with generators, as augmented in an epoch."""
        return self.encode_examples(indices, [self.examples[index] for index in indices], generators)

    def encode_examples(
        self, indices: list[int], examples: list[Example], generators: Sequence[Rng] = ()
    ) -> list[EncodedExample]:
        """Examples that are read already, as arrays."""
        if generators:
            sources = []
            for place, rng in enumerate(generators):
                examples[place] = self.change(examples[place], rng)
                sources.append(self.source.encode_augmented(examples[place][0], rng))
        else:
            sources = self.source.encode([example[0] for example in examples])
        targets = self.target.encode([example[1] for example in examples])
        return [(*source, *target) for source, target in zip(sources, targets, strict=True)]

    def batch(self, indices: np.ndarray, epoch: int, rows: np.ndarray | None = None) -> Batch:
        if self.source.changes == "never":
            return super().batch(indices, epoch, rows)
        generators = ExampleRng.of(self.train.seed, epoch, indices).generators()
        if self.source.changes == "raw":
            items = self.encode_together(indices.tolist(), generators)
        else:
            pairs = zip(map(self.split, self.encoded(indices)), generators, strict=True)
            items = [(*self.source.augment(source, rng), *rest) for (source, rest), rng in pairs]
        return replace(self.collate(items), examples=tuple(indices.tolist()))

    def split(self, item: EncodedExample) -> tuple[EncodedExample, EncodedExample]:
        """The arrays of the source, and those of the target."""
        return item[: self.source.arrays], item[self.source.arrays :]

    def collate(self, items: Sequence[EncodedExample]) -> Batch:
        columns = list(zip(*items, strict=True))
        sources, targets = columns[: self.source.arrays], columns[self.source.arrays :]
        return Batch({**self.source.collate(sources), **self.target.collate(targets)}, self.target.count(targets))

    # Sizes

    def measure(self, indices: np.ndarray, keep: bool = False) -> Measured:
        """Sources are encoded only if their sizes are not known otherwise, as from headers."""
        sizes, shortened = np.zeros((len(indices), 2), np.int64), np.zeros(len(indices), bool)
        for first in range(0, len(indices), TOGETHER):
            part = slice(first, first + TOGETHER)
            chosen = indices[part].tolist()
            source = self.source.known_sizes(self.examples, chosen)
            target = source and self.target.known_sizes(self.examples, chosen, source.sizes)
            if source is None or target is None:
                return super().measure(indices, keep and self.source.changes != "raw")
            second = target.sizes if self.target.counted else source.sorted_by or source.sizes
            sizes[part] = np.stack([source.sizes, second], 1)
            for known in (source, target):
                sizes[part][np.flatnonzero(known.too_long)] = self.limit + 1
                shortened[part][np.flatnonzero(known.shortened)] = True
        return Measured(indices, sizes, shortened, np.ones(len(indices), np.int64))

    def sizes(self, item: EncodedExample) -> tuple[int, int]:
        source, target = self.split(item)
        size = self.source.size(source)
        return size, self.target.size(target) if self.target.counted else size

    def describe_too_long(self) -> str:
        limits = filter(None, (self.source.too_long, self.target.too_long))
        return " or ".join(limits) or super().describe_too_long()

    def describe_shortened(self) -> str:
        return self.source.cut or self.target.cut or super().describe_shortened()
