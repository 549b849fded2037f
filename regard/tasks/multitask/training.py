"""The training side of each modality: its processor, its data set, and the metrics of its outputs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...config.run import Run
from ...data.dataset import Dataset
from ...data.datasets.prompted import EndedText, PromptedDataset, PromptedImages
from ...data.datasets.sounds import STRIDE, SoundDataset
from ...data.source import Source
from ...data.sources.manifest import AUDIO, IMAGE, TEXT
from ...metrics.speech import speech_metrics
from ...metrics.text import text_metrics
from ...metrics.tokenization import choose_tokenization
from ...processors.base import Processor
from ...processors.image.processor import ImageProcessor
from ...processors.sound.frames import SoundFrames
from ...processors.text.processor import TextProcessor
from ..base import Processors
from ..classify_image.task import image_processor
from ..transcribe.processors import new_frames, with_augmentation
from .settings import MultitaskEval
from .tags import TaggedTargets

TEXT_METRICS = ("bleu", "chrf", "exact")
SPEECH_METRICS = ("wer", "cer", "exact")


@dataclass(frozen=True)
class ModalityTraining:
    """What training needs of a modality."""

    new_processor: Callable[[Run, Processors, Source], Processor]  # from those that are kept, or from the data
    dataset: Callable[..., Dataset]  # of its processor, examples, targets and run
    metrics: Callable[[Sequence[str], Sequence[str], MultitaskEval], dict[str, float]]  # of outputs and references
    stride: int = 1  # units of its processor in one encoder position


def text_dataset(processor: TextProcessor, examples: Source, targets: TaggedTargets, run: Run) -> Dataset:
    """Texts with END."""
    ended = EndedText(processor.tokenizer)
    return PromptedDataset(examples, ended, targets, targets.tokenizer.pad, run.data, run.train)


def image_dataset(processor: ImageProcessor, examples: Source, targets: TaggedTargets, run: Run) -> Dataset:
    """Images, augmented or not."""
    changed = processor.scale != (1.0, 1.0) or bool(
        processor.flip or processor.color or processor.randaugment or processor.erase
    )
    return PromptedImages(examples, processor, targets, targets.tokenizer.pad, run.data, run.train, changed)


def sound_dataset(processor: SoundFrames, examples: Source, targets: TaggedTargets, run: Run) -> Dataset:
    """Recordings as frames."""
    ctc, pad = bool(run.model.ctc.weight), targets.tokenizer.pad
    return SoundDataset(examples, processor, targets, pad, run.data, run.train, run.data.max_tokens, ctc)


def new_image_processor(run: Run, processors: Processors, examples: Source) -> ImageProcessor:
    """The kept processor with the augmentation of data.*, or a new one."""
    image = processors.get(IMAGE)
    return image_processor(run.data, run.model, image if isinstance(image, ImageProcessor) else None)


def new_sound_processor(run: Run, processors: Processors, examples: Source) -> SoundFrames:
    """The kept processor with the augmentation of data.*, or filterbanks with the statistics of the examples."""
    sound = processors.get(AUDIO)
    return with_augmentation(sound if isinstance(sound, SoundFrames) else new_frames(run.data, examples), run.data)


def text_scores(outputs: Sequence[str], references: Sequence[str], settings: MultitaskEval) -> dict[str, float]:
    """The metrics of outputs for texts and images."""
    correct = [[reference] for reference in references]
    return text_metrics(outputs, correct, TEXT_METRICS, choose_tokenization(correct, settings))


def speech_scores(outputs: Sequence[str], references: Sequence[str], settings: MultitaskEval) -> dict[str, float]:
    """The metrics of transcripts."""
    scores = speech_metrics(outputs, references, settings.normalize)
    return {name: scores[name] for name in SPEECH_METRICS}


TRAINING = {
    TEXT: ModalityTraining(lambda run, processors, examples: processors[TEXT], text_dataset, text_scores),
    IMAGE: ModalityTraining(new_image_processor, image_dataset, text_scores),
    AUDIO: ModalityTraining(new_sound_processor, sound_dataset, speech_scores, STRIDE),
}
