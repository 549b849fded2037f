"""How training reads the elements of its examples: one field for what a model reads, one for what it learns.

A field of another modality is a processor in a `ProcessorField`, or a class of its own: see docs/modalities.md.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np

from ...parts.inputs import Inputs
from ...processors.base import Array, Processor, Rng
from ...processors.image.processor import ImageProcessor
from ...processors.image.read import RawImage, image_size
from ...processors.sound.frames import SoundFrames
from ...processors.sound.read import RawSound
from ...processors.text.tokenizers import Tokenizer
from ..dataset import EncodedExample
from ..source import Source
from .collate import pad_tokens

STRIDE = 4  # frames of an encoder position
UNLIMITED = 1 << 20  # patches: images are never too large to train on, they are resized
UNSIZED = ("labels", "boxes")  # tensors whose sizes the budget does not count

Indices: TypeAlias = Sequence[int]
Columns: TypeAlias = Sequence[Sequence[Array]]
Raw = TypeVar("Raw", contravariant=True)


class KnownSizes(NamedTuple):
    """The sizes of the values of some examples, in the unit of the budget."""

    sizes: Sequence[int]
    too_long: Sequence[bool] = ()  # values that are left out beside those above the limit of the data set
    shortened: Sequence[bool] = ()  # values that are cut, or only partly learned
    sorted_by: Sequence[int] = ()  # what orders a curriculum, if not the size


class ExampleField(ABC, Generic[Raw]):
    """One element of every example: its arrays, their augmentation, their sizes and batches.

    An encoded value is a tuple of `arrays` arrays, so that one field may have several inputs of a batch.
    """

    arrays = 1  # of an encoded value
    changes: Literal["never", "raw", "encoded"] = "never"  # what training augments; raw: every epoch encodes again
    counted = True  # the budget of a step counts its size
    curriculum = False  # the first epoch goes from small values to large ones
    limit = 0  # the largest size to learn from; 0: data.max_tokens
    limit_key = ""  # the setting behind `limit`
    too_long = ""  # describes values above `limit`, to follow "they have "
    cut = ""  # describes shortened values, to follow "3 of 10 "

    @abstractmethod
    def encode(self, raws: Sequence[Raw]) -> list[EncodedExample]:
        """The arrays of raw values, the same in every epoch. Token ids are int32."""

    @abstractmethod
    def collate(self, columns: Columns) -> Mapping[str, Inputs]:
        """The inputs of encoded values in a batch, by name. A column has one array of every value."""

    def encode_augmented(self, raw: Raw, rng: Rng) -> EncodedExample:
        """The arrays of a raw value as one epoch uses it, if training changes raw values."""
        raise NotImplementedError

    def augment(self, value: EncodedExample, rng: Rng) -> EncodedExample:
        """An encoded value as one epoch uses it, if training changes encoded values."""
        raise NotImplementedError

    def size(self, value: EncodedExample) -> int:
        """The size of an encoded value, in the unit of the budget."""
        return len(value[0])

    def known_sizes(self, examples: Source, indices: Indices, sources: Sequence[int] = ()) -> KnownSizes | None:
        """The sizes of values that need not be decoded for it, as from headers; None: measuring encodes whole examples.

        A target also gets the sizes of its sources.
        """
        return None

    def count(self, columns: Columns) -> int:
        """What the summed loss of these targets is divided by."""
        return len(columns[0])


AnyField: TypeAlias = ExampleField[Any]


class ProcessorField(ExampleField[object]):
    """Any values as their processor encodes them; with `augmented`, every epoch encodes them again."""

    def __init__(self, name: str, processor: Processor, augmented: bool = False) -> None:
        self.name, self.processor = name, processor
        self.changes = "raw" if augmented else "never"
        self.counted = processor.modality not in UNSIZED

    def encode(self, raws: Sequence[object]) -> list[EncodedExample]:
        return [(self.processor.encode(raw),) for raw in raws]

    def encode_augmented(self, raw: object, rng: Rng) -> EncodedExample:
        return (self.processor.encode(raw, rng),)

    def size(self, value: EncodedExample) -> int:
        return self.processor.cost(value[0])

    def known_sizes(self, examples: Source, indices: Indices, sources: Sequence[int] = ()) -> KnownSizes | None:
        return None if self.counted else KnownSizes([0] * len(indices))

    def collate(self, columns: Columns) -> Mapping[str, Inputs]:
        return {self.name: self.processor.collate(columns[0])}


class TextField(ExampleField[str]):
    """Texts as tokens with END."""

    def __init__(self, name: str, tokenizer: Tokenizer) -> None:
        self.name, self.tokenizer = name, tokenizer

    def encode(self, raws: Sequence[str]) -> list[EncodedExample]:
        return [(np.array([*row, self.tokenizer.end], np.int32),) for row in self.tokenizer.encode(list(raws))]

    def collate(self, columns: Columns) -> Mapping[str, Inputs]:
        return {self.name: pad_tokens(columns[0], self.tokenizer.pad)}


class ImageField(ExampleField[RawImage]):
    """Images. Training reads them as bytes, a quarter of the memory, unless it erases or mixes normalized pixels."""

    def __init__(self, name: str, image: ImageProcessor, in_bytes: bool = True, augmented: bool | None = None) -> None:
        """`augmented` None: if the processor changes images."""
        self.name, self.image, self.limit = name, image, UNLIMITED
        self.in_bytes = in_bytes and not image.erase
        self.changes = "raw" if (image.augments if augmented is None else augmented) else "never"

    def encode(self, raws: Sequence[RawImage]) -> list[EncodedExample]:
        encode = self.image.encode_bytes if self.in_bytes else self.image.encode
        return [(encode(raw),) for raw in raws]

    def encode_augmented(self, raw: RawImage, rng: Rng) -> EncodedExample:
        return (self.image.encode_bytes(raw, rng) if self.in_bytes else self.image.encode(raw, rng),)

    def size(self, value: EncodedExample) -> int:
        return self.image.cost(value[0])

    def known_sizes(self, examples: Source, indices: Indices, sources: Sequence[int] = ()) -> KnownSizes:
        if (fixed := self.image.fixed_cost) is not None:
            return KnownSizes([fixed] * len(indices))
        return KnownSizes([self.image.cost_of_size(*image_size(examples.field(index, 0))) for index in indices])

    def collate(self, columns: Columns) -> Mapping[str, Inputs]:
        return {self.name: self.image.collate(columns[0])}


class SoundField(ExampleField[RawSound]):
    """Recordings as frames, whose number follows from the header. SpecAugment masks a copy of the frames in memory."""

    def __init__(self, name: str, sound: SoundFrames, max_seconds: float = math.inf, curriculum: bool = False) -> None:
        self.name, self.sound, self.curriculum = name, sound, curriculum
        self.changes = "raw" if sound.augments_samples else "encoded" if sound.masks else "never"
        self.longest = min(max_seconds, sound.longest)
        self.limit = UNLIMITED
        if self.longest < math.inf:
            self.limit = sound.frames(round(self.longest * sound.rate)) + 1  # a rounded length is not too long
            self.limit_key = "model.source_positions" if self.longest < max_seconds else "data.max_seconds"
            self.too_long = f"more than {self.longest:g} seconds"

    def encode(self, raws: Sequence[RawSound]) -> list[EncodedExample]:
        return [(self.sound.encode(raw),) for raw in raws]

    def encode_augmented(self, raw: RawSound, rng: Rng) -> EncodedExample:
        return (self.sound.encode(raw, rng),)

    def augment(self, value: EncodedExample, rng: Rng) -> EncodedExample:
        return (self.sound.mask(value[0].copy(), rng),)

    def known_sizes(self, examples: Source, indices: Indices, sources: Sequence[int] = ()) -> KnownSizes:
        sound, lengths = self.sound, [examples.seconds(index) for index in indices]
        samples = [round(seconds * sound.rate) for seconds in lengths]
        frames = [sound.frames(count) for count in samples]
        long = [seconds > self.longest + sound.hop / sound.rate for seconds in lengths]
        if not self.curriculum or sound.longest == math.inf:
            return KnownSizes(frames, long)
        recorded = [max(count // sound.hop, 1) for count in samples]  # without the silence that fills a window
        return KnownSizes(frames, long, sorted_by=[*map(min, recorded, frames)])

    def collate(self, columns: Columns) -> Mapping[str, Inputs]:
        return {self.name: self.sound.collate(columns[0])}
