"""Pairs of an item and a text as arrays. Equal items, and equal texts, share a number, by which the loss knows them."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from os import PathLike, fspath
from typing import Any

import numpy as np
import torch

from ...config.data.mixed import ContrastiveData
from ...config.train import Train
from ...parts.inputs import Inputs
from ...processors.base import Array, Rng
from ...processors.image.processor import ImageProcessor
from ...processors.image.read import RawImage
from ...processors.sound.frames import SoundFrames
from ...processors.sound.read import RawSound
from ...processors.text.tokenizers import Tokenizer
from ..batch import Batch
from ..dataset import Dataset, EncodedExample, Measured, StoredExample
from ..rng import ExampleRng
from ..source import Source
from .collate import pad_tokens
from .fields import KEPT_BYTES
from .rows import add_start_end

UNLIMITED = 1 << 20  # no item is too large: images are resized, texts cut, long recordings left out before


class ItemSide(ABC):
    """One side of a pair: from raw values to arrays, and to the inputs of a model."""

    field: str
    changes_raw = False  # training augments the raw value, so every epoch encodes it again

    @abstractmethod
    def encode(self, raw: Any, rng: Rng | None = None) -> Array: ...

    @abstractmethod
    def collate(self, encoded: Sequence[Array]) -> Inputs: ...

    @abstractmethod
    def cost(self, examples: Source, index: int) -> int:
        """The size that the budget of a step counts; it does not read the item if possible."""

    def encode_to_train(self, raw: Any, rng: Rng | None = None) -> Array:
        """As `encode`, possibly in less memory."""
        return self.encode(raw, rng)

    def augment(self, encoded: Array, rng: Rng) -> Array:
        """An encoded item as an epoch uses it."""
        return encoded


@dataclass(frozen=True)
class TextSide(ItemSide):
    """Texts between START and END; longer ones are cut to `room` tokens."""

    tokenizer: Tokenizer
    room: int
    place: int = 1  # the field of an example
    field: str = "text"

    def encode(self, raw: str, rng: Rng | None = None) -> Array:
        return self.encode_all([raw])[0]

    def encode_all(self, items: Sequence[str]) -> list[Array]:
        """Many texts in one call of the tokenizer."""
        return [add_start_end(self.tokenizer, ids[: self.room]) for ids in self.tokenizer.encode(list(items))]

    def collate(self, encoded: Sequence[Array]) -> Inputs:
        return pad_tokens(encoded, self.tokenizer.pad)

    def cost(self, examples: Source, index: int) -> int:
        return len(self.encode(examples.text(index, self.place)))


@dataclass(frozen=True)
class ImageSide(ItemSide):
    """Images as their processor reads them. Augmented images are encoded again in every epoch."""

    image: ImageProcessor
    field: str = "image"

    @property
    def changes_raw(self) -> bool:  # type: ignore[override]
        image = self.image
        return bool(image.scale != (1.0, 1.0) or image.flip or image.color or image.randaugment or image.erase)

    def encode(self, raw: RawImage, rng: Rng | None = None) -> Array:
        return self.image.encode(raw, rng)

    def encode_to_train(self, raw: RawImage, rng: Rng | None = None) -> Array:
        """As bytes, a quarter of the memory, unless normalized pixels are erased."""
        return self.image.encode(raw, rng) if self.image.erase else self.image.encode_bytes(raw, rng)

    def collate(self, encoded: Sequence[Array]) -> Inputs:
        return self.image.collate(encoded)

    def cost(self, examples: Source, index: int) -> int:
        fixed = self.image.fixed_cost
        return self.image.cost(self.image.encode(examples[index][0])) if fixed is None else fixed


@dataclass(frozen=True)
class SoundSide(ItemSide):
    """Frames stay in memory, unless training augments the samples. SpecAugment masks a copy."""

    sound: SoundFrames
    field: str = "sound"

    @property
    def changes_raw(self) -> bool:  # type: ignore[override]
        return self.sound.augments_samples

    def encode(self, raw: RawSound, rng: Rng | None = None) -> Array:
        return self.sound.encode(raw, rng)

    def augment(self, encoded: Array, rng: Rng) -> Array:
        return self.sound.mask(encoded.copy(), rng) if self.sound.masks else encoded

    def collate(self, encoded: Sequence[Array]) -> Inputs:
        return self.sound.collate(encoded)

    def cost(self, examples: Source, index: int) -> int:
        return self.sound.frames(round(examples.seconds(index) * self.sound.rate))


class ContrastiveDataset(Dataset):
    """Pairs in random order: the negatives of a pair are drawn from all others, not from those of its length."""

    data: ContrastiveData
    sorted = False

    def __init__(self, examples: Source, source: ItemSide, text: TextSide, data: ContrastiveData, train: Train) -> None:
        super().__init__(examples, data, train)
        self.source, self.text, self.limit = source, text, UNLIMITED
        self._encoded_bytes = 0

    def encode(self, indices: list[int]) -> Iterable[EncodedExample]:
        pairs = [self.examples[index] for index in indices]
        return self._encoded(indices, pairs, [self.source.encode_to_train(raw) for raw, _ in pairs])

    def _encoded(
        self, indices: Sequence[int], pairs: Sequence[tuple[Any, ...]], items: Sequence[Array]
    ) -> Iterable[EncodedExample]:
        rows = self.text.encode_all([text for _, text in pairs])
        for index, (raw, text), item, row in zip(indices, pairs, items, rows, strict=True):
            numbers = np.array([content_number(raw, index), content_number(text, index)], np.int64)
            yield item, row, numbers

    def measure(self, indices: np.ndarray, keep: bool = False) -> Measured:
        """Reads an image or a recording only if its size is not known otherwise."""
        chosen = indices.tolist()
        texts = self.text.tokenizer.encode([self.examples.text(index, self.text.place) for index in chosen])
        lengths = np.array([len(ids) for ids in texts])
        costs = [self.source.cost(self.examples, index) for index in chosen]
        sizes = np.stack([np.array(costs), lengths.clip(max=self.text.room) + 2], 1)
        return Measured(indices, sizes, lengths > self.text.room, np.ones(len(indices), np.int64))

    def describe_shortened(self) -> str:
        return f"texts have more than {self.text.room} tokens and were cut (data.max_tokens or model positions)"

    def batch(self, indices: np.ndarray, epoch: int, rows: np.ndarray | None = None) -> Batch:
        generators = ExampleRng.of(self.train.seed, epoch, indices).generators()
        items: list[EncodedExample]
        if self.source.changes_raw:
            chosen = indices.tolist()
            pairs = [self.examples[index] for index in chosen]
            changed = [self.source.encode_to_train(raw, rng) for (raw, _), rng in zip(pairs, generators, strict=True)]
            items = list(self._encoded(chosen, pairs, changed))
        else:
            stored = zip(self.encoded(indices), generators, strict=True)
            items = [(self.source.augment(item, rng), *rest) for (item, *rest), rng in stored]
        return replace(self.collate(items), examples=tuple(indices.tolist()))

    def collate(self, items: Sequence[EncodedExample]) -> Batch:
        sources, texts, numbers = zip(*items, strict=True)
        same = torch.from_numpy(np.stack(numbers))
        inputs = {
            self.source.field: self.source.collate(sources),
            self.text.field: self.text.collate(texts),
            f"same_{self.source.field}": Inputs("labels", same[:, 0]),
            f"same_{self.text.field}": Inputs("labels", same[:, 1]),
        }
        return Batch(inputs, len(items))

    def _keep(self, index: int, item: StoredExample) -> None:
        self._encoded_bytes += sum(len(array) if isinstance(array, bytes) else array.nbytes for array in item)
        if self._encoded_bytes <= KEPT_BYTES:
            super()._keep(index, item)


def content_number(raw: RawImage | RawSound, index: int) -> int:
    """A number that is equal for equal texts, paths and bytes; for other objects in memory, the example's index."""
    if isinstance(raw, str | PathLike):
        content = " ".join(fspath(raw).split()).encode("utf-8", "surrogateescape")
    else:
        content = raw if isinstance(raw, bytes) else b"example %d" % index
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest()) >> 1
