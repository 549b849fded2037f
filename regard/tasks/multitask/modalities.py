"""The modalities of one model: how each is read in training and prediction, and its metrics."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, ClassVar

from ...config.data.mixed import MultitaskData
from ...config.run import Run
from ...data.dataset import Dataset
from ...data.datasets.prompted import EndedText, PromptedDataset, PromptedImages
from ...data.datasets.sounds import STRIDE, EncodeTargets, SoundDataset
from ...data.source import Source
from ...data.sources.manifest import AUDIO, IMAGE, TEXT
from ...errors import UserError
from ...look import ViewAxis
from ...metrics.speech import speech_metrics
from ...metrics.text import text_metrics
from ...metrics.tokenization import choose_tokenization
from ...modalities.axes import frame_axis, patch_axis
from ...parts import Inputs
from ...parts.inputs import TensorKind
from ...processors.base import Array, Processor
from ...processors.image.processor import ImageProcessor
from ...processors.sound.frames import SoundFrames
from ...processors.sound.read import sound_info, sound_name
from ...processors.text.tokenizers import Tokenizer
from ..base import Metrics, Processors
from ..classify_image.task import image_processor
from ..generate.seq2seq import SourceInputs
from ..generate.views import END
from ..transcribe.processors import new_frames, with_augmentation

IMAGE_TOKENS = 100  # of the text for an image, if decode.max_tokens is 0
TEXT_METRICS = ("bleu", "chrf", "exact")
SPEECH_METRICS = ("wer", "cer", "exact")


class Modality(ABC):
    """A modality of the inputs of a run, such as images."""

    name: ClassVar[str]  # its key in a manifest
    tensor_kind: ClassVar[TensorKind]
    stride: ClassVar[int] = 1  # units of its processor in one encoder position
    processor: Processor

    @abstractmethod
    def dataset(self, examples: Source, targets: EncodeTargets, padding: int, run: Run) -> Dataset:
        """The training data of this modality."""

    def encode(self, raw: Any) -> Array:
        """An input as an array, without the augmentation of training."""
        return self.processor.encode(raw)

    @abstractmethod
    def max_tokens(self, array: Array) -> int:
        """The most tokens of an output, if decode.max_tokens is 0."""

    def source(self, raw: Any, prompt: tuple[int, ...]) -> SourceInputs:
        array = self.encode(raw)
        return SourceInputs(
            self.processor.collate([array]),
            self.max_tokens(array),
            blake2b(array.tobytes(), digest_size=16).hexdigest(),
            prompt,
        )

    @abstractmethod
    def positions(self, source: Inputs, count: int) -> list[str]:
        """The names of the `count` encoder positions of one input, for people."""

    @abstractmethod
    def axis(self, raw: Any, count: int) -> ViewAxis:
        """The `count` encoder positions of an input, for views of attention."""

    def metrics(self, outputs: Sequence[str], references: Sequence[str], settings: Any) -> Metrics:
        """The metrics of outputs; `settings` are eval.*."""
        correct = [[reference] for reference in references]
        return {**text_metrics(outputs, correct, TEXT_METRICS, choose_tokenization(correct, settings))}


class TextInputs(Modality):
    """Texts as tokens with END."""

    name, tensor_kind = TEXT, "tokens"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self.processor = tokenizer, EndedText(tokenizer)

    def dataset(self, examples: Source, targets: EncodeTargets, padding: int, run: Run) -> Dataset:
        return PromptedDataset(examples, self.processor, targets, padding, run.data, run.train)

    def max_tokens(self, array: Array) -> int:
        return 2 * len(array) + 16

    def positions(self, source: Inputs, count: int) -> list[str]:
        return [*self.tokenizer.tokens(source.values[0, : count - 1].tolist()), END]

    def axis(self, raw: Any, count: int) -> ViewAxis:
        return ViewAxis.of_tokens("source", self.positions(self.source(raw, ()).inputs, count), ended=True)


class ImageInputs(Modality):
    """Images as patches."""

    name, tensor_kind = IMAGE, "pixels"

    def __init__(self, processor: ImageProcessor) -> None:
        self.processor: ImageProcessor = processor

    def dataset(self, examples: Source, targets: EncodeTargets, padding: int, run: Run) -> Dataset:
        processor = self.processor
        changed = processor.scale != (1.0, 1.0) or bool(
            processor.flip or processor.color or processor.randaugment or processor.erase
        )
        return PromptedImages(examples, processor, targets, padding, run.data, run.train, changed)

    def max_tokens(self, array: Array) -> int:
        return IMAGE_TOKENS

    def positions(self, source: Inputs, count: int) -> list[str]:
        columns = -(-source.values.size(3) // self.processor.patch)
        return [f"{place // columns + 1},{place % columns + 1}" for place in range(count)]

    def axis(self, raw: Any, count: int) -> ViewAxis:
        return patch_axis(self.processor, raw, count)


class SoundInputs(Modality):
    """Recordings as frames; one longer than data.max_seconds is refused."""

    name, tensor_kind, stride = AUDIO, "frames", STRIDE

    def __init__(self, processor: SoundFrames, data: MultitaskData) -> None:
        self.processor: SoundFrames = processor
        self.longest = data.max_seconds

    def dataset(self, examples: Source, targets: EncodeTargets, padding: int, run: Run) -> Dataset:
        ctc = bool(run.model.ctc.weight)
        return SoundDataset(examples, self.processor, targets, padding, run.data, run.train, run.data.max_tokens, ctc)

    def encode(self, raw: Any) -> Array:
        if (seconds := sound_info(raw, self.processor.rate).seconds) > self.longest:
            raise UserError(
                f"{sound_name(raw)} has {seconds:.1f} seconds and this run reads at most {self.longest:g} "
                "(data.max_seconds); cut it, or train with longer recordings"
            )
        return self.processor.encode(raw)

    def max_tokens(self, array: Array) -> int:
        return len(array) // STRIDE + 16

    def positions(self, source: Inputs, count: int) -> list[str]:
        return [f"{self.processor.seconds_of(place * STRIDE):.2f}" for place in range(count)]

    def axis(self, raw: Any, count: int) -> ViewAxis:
        return frame_axis(self.processor, STRIDE, count, self.encode(raw))

    def metrics(self, outputs: Sequence[str], references: Sequence[str], settings: Any) -> Metrics:
        scores = speech_metrics(outputs, references, settings.normalize)
        return {name: scores[name] for name in SPEECH_METRICS}


# --- construction --------------------------------------------------------------------------------------------------


def new_modalities(
    run: Run, processors: Processors, tokenizer: Tokenizer, examples: dict[str, Source]
) -> dict[str, Modality]:
    """The modalities of the training data. Missing processors are made from the settings and the data."""
    modalities: dict[str, Modality] = {}
    if TEXT in examples:
        modalities[TEXT] = TextInputs(tokenizer)
    if IMAGE in examples:
        image = processors.get(IMAGE)
        processor = image_processor(run.data, run.model, image if isinstance(image, ImageProcessor) else None)
        modalities[IMAGE] = ImageInputs(processor)
    if AUDIO in examples:
        sound = processors.get(AUDIO)
        frames = sound if isinstance(sound, SoundFrames) else new_frames(run.data, examples[AUDIO])
        modalities[AUDIO] = SoundInputs(with_augmentation(frames, run.data), run.data)
    return modalities


def restored_modalities(run: Run, processors: Processors, tokenizer: Tokenizer) -> dict[str, Modality]:
    """The modalities of a run folder: those that its model reads."""
    modalities: dict[str, Modality] = {}
    image, sound = processors.get(IMAGE), processors.get(AUDIO)
    if "tokens" in run.model.inputs:
        modalities[TEXT] = TextInputs(tokenizer)
    if isinstance(image, ImageProcessor):
        modalities[IMAGE] = ImageInputs(image)
    if isinstance(sound, SoundFrames):
        modalities[AUDIO] = SoundInputs(sound, run.data)
    if missing := {*run.model.inputs} - {modality.tensor_kind for modality in modalities.values()}:
        raise UserError(f"run.json lists no processor of {', '.join(missing)}; restore it, or train the run again")
    return modalities
