"""The pairs of a run: images, recordings or other texts, each with its text. How they are opened and encoded."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from os import PathLike
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

from ...config.data.mixed import ContrastiveData
from ...data.datasets.contrastive import RowField
from ...data.datasets.fields import STRIDE, AnyField, ImageField, SoundField
from ...data.files.in_memory import type_name
from ...data.source import Source
from ...data.sources.captions import IMAGE_TEXTS
from ...data.sources.media import Pairing, RawValue
from ...data.sources.pairs import open_pairs
from ...data.sources.sounds import TRANSCRIBED_SOUNDS
from ...errors import UserError
from ...messages.media import Image, Item, Sound
from ...modalities.image import ImageModality
from ...modalities.sound import SoundModality
from ...parts.inputs import TensorKind
from ...processors.base import Processor
from ...processors.image.processor import ImageProcessor
from ...processors.sound.frames import SoundFrames
from ...synthetic.captions import Combination, SceneSettings, all_combinations, make_captions
from ...synthetic.dates import make_dates
from ...synthetic.morse import make_morse
from ..base import Processors
from ..classify_image.task import image_processor
from ..transcribe.processors import kept_frames
from .settings import ContrastiveRun

TEXT = "text"  # the field of texts
P = TypeVar("P", bound=Processor | None)  # of the processor of items; None for texts
MediaModality: TypeAlias = ImageModality | SoundModality


class PairSource(ABC, Generic[P]):
    """Pairs of items of one modality and their texts."""

    noun: ClassVar[str]
    field: ClassVar[str]  # of an example
    example: ClassVar[str]  # a file name, for messages

    @abstractmethod
    def open(self, files: Sequence[Sequence[str]], data: ContrastiveData) -> Source:
        """Pairs of an item and its text."""

    @abstractmethod
    def embedded(self, data: ContrastiveData, split: str) -> Source:
        """A split of the embedded data."""

    @abstractmethod
    def new_processor(self, run: ContrastiveRun, processors: Processors, train: Source) -> P:
        """The processor of items: that of the start, or a new one; None for texts."""

    @abstractmethod
    def training_field(self, processor: P, text: RowField) -> AnyField:
        """How training reads items."""

    @abstractmethod
    def modality(self, processor: P) -> MediaModality | None:
        """How requests read items; None: they are texts."""

    @abstractmethod
    def item(self, raw: RawValue) -> Item:
        """The first element of a pair as an item of a request."""

    def model_settings(self, processor: P) -> dict[str, object]:
        """Settings of the model that the processor decides."""
        return {}

    def is_name(self, name: str) -> bool:
        """True for the name of a file of this modality."""
        return False

    def open_items(self, name: str, data: ContrastiveData) -> Iterator[tuple[str, RawValue]]:
        """The items in a file, a folder, an archive or a table of paths, each with its name."""
        raise NotImplementedError


class MediaPairs(PairSource[P]):
    """Media with texts."""

    pairing: ClassVar[Pairing[ContrastiveData]]

    def open(self, files: Sequence[Sequence[str]], data: ContrastiveData) -> Source:
        return self.pairing.open(files, data)

    def is_name(self, name: str) -> bool:
        return self.pairing.medium.is_name(name)

    def open_items(self, name: str, data: ContrastiveData) -> Iterator[tuple[str, RawValue]]:
        return self.pairing.items(name, data)


class ImagePairs(MediaPairs[ImageProcessor]):
    """Images with captions; the embedded ones are scenes of colored shapes."""

    pairing = IMAGE_TEXTS
    noun, field, example = "image", "image", "test.tsv"

    def embedded(self, data: ContrastiveData, split: str) -> Source:
        return make_captions(data.examples, settings=scene_settings(data))[split]

    def new_processor(self, run: ContrastiveRun, processors: Processors, train: Source) -> ImageProcessor:
        return image_processor(run.data, run.model.source, processors.get(self.field))

    def training_field(self, processor: ImageProcessor, text: RowField) -> AnyField:
        return ImageField(self.field, processor)

    def modality(self, processor: ImageProcessor) -> ImageModality:
        return ImageModality(processor)

    def item(self, raw: RawValue) -> Item:
        return Item(image=Image(raw))


class SoundPairs(MediaPairs[SoundFrames]):
    """Recordings with transcripts; the embedded ones are Morse code."""

    pairing = TRANSCRIBED_SOUNDS
    noun, field, example = "recording", "sound", "test.tsv"

    def embedded(self, data: ContrastiveData, split: str) -> Source:
        return make_morse(data.examples)[split]

    def new_processor(self, run: ContrastiveRun, processors: Processors, train: Source) -> SoundFrames:
        return kept_frames(run.data, train, processors.get(self.field))

    def training_field(self, processor: SoundFrames, text: RowField) -> AnyField:
        return SoundField(self.field, processor)

    def modality(self, processor: SoundFrames) -> SoundModality:
        return SoundModality(processor, STRIDE)

    def item(self, raw: RawValue) -> Item:
        return Item(audio=Sound(raw))

    def model_settings(self, processor: SoundFrames) -> dict[str, object]:
        return {"bins": processor.bins}


class TextPairs(PairSource[None]):
    """Pairs of texts; the embedded ones are dates."""

    noun, field, example = "text", "source", "test.tsv"

    def open(self, files: Sequence[Sequence[str]], data: ContrastiveData) -> Source:
        return open_pairs(files, data)

    def embedded(self, data: ContrastiveData, split: str) -> Source:
        return make_dates(data.locales, data.examples, seed=1)[split]

    def new_processor(self, run: ContrastiveRun, processors: Processors, train: Source) -> None:
        return None

    def training_field(self, processor: None, text: RowField) -> AnyField:
        return RowField(text.tokenizer, text.room, self.field, element=0)

    def modality(self, processor: None) -> None:
        return None

    def item(self, raw: RawValue) -> Item:
        if isinstance(raw, str):
            return Item(raw)
        name = f"the file {raw}" if isinstance(raw, PathLike) else f"a value of type {type_name(raw)}"
        raise UserError(f"this run compares texts and was given {name}; give texts, or use a run of images")


AnyPairs: TypeAlias = PairSource[Any]
SOURCES: dict[TensorKind, AnyPairs] = {"pixels": ImagePairs(), "frames": SoundPairs(), "tokens": TextPairs()}


def scene_settings(data: ContrastiveData) -> SceneSettings:
    """The settings of the embedded scenes of a run."""
    combinations = all_combinations(data.colors, data.shape_types)
    unseen, unseen_valid = (
        [parse_combination(text, f"data.{name}", combinations) for text in getattr(data, name)]
        for name in ("unseen", "unseen_valid")
    )
    if common := [*{*unseen}.intersection(unseen_valid)]:
        raise UserError(
            f"data.unseen and data.unseen_valid both have {' '.join(common[0])!r}; choose settings and measure them on "
            "different combinations"
        )
    if len({*unseen, *unseen_valid}) == len(combinations):
        raise UserError("data.unseen and data.unseen_valid have every combination; leave some for training")
    return SceneSettings(data.max_shapes, combinations, unseen, unseen_valid, data.unnamed)


def parse_combination(text: str, key: str, combinations: Collection[Combination]) -> Combination:
    """A color and a shape of the embedded scenes, such as "red circle"."""
    color, _, shape = text.strip().partition(" ")
    if (color, shape) not in combinations:
        colors, shapes = ({combination[place]: 0 for combination in combinations} for place in (0, 1))
        raise UserError(f"{key} has {text!r}; expected a color ({', '.join(colors)}) and a shape ({', '.join(shapes)})")
    return color, shape
