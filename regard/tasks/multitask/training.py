"""The training side of each modality: its processor, its data set, and the metrics of its outputs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ...data.dataset import Dataset
from ...data.datasets.fields import STRIDE, ImageField, ProcessorField, SoundField
from ...data.datasets.source_target import SourceTargetDataset
from ...data.datasets.targets import TargetField, TranscriptField
from ...data.source import Source
from ...data.sources.manifest import AUDIO, IMAGE, TEXT
from ...metrics.speech import speech_metrics
from ...metrics.text import text_metrics
from ...metrics.tokenization import choose_tokenization
from ...processors.base import Array, Processor, Rng
from ...processors.image.processor import ImageProcessor
from ...processors.sound.frames import SoundFrames
from ...processors.text.processor import TextProcessor
from ..base import Processors
from ..classify_image.task import image_processor
from ..transcribe.processors import kept_frames
from .settings import MultitaskEval, MultitaskRun
from .tags import TaggedTargets

TEXT_METRICS = ("bleu", "chrf", "exact")
SPEECH_METRICS = ("wer", "cer", "exact")


@dataclass(frozen=True)
class ModalityTraining:
    """What training needs of a modality."""

    new_processor: Callable[[MultitaskRun, Processors, Source], Processor]  # from those that are kept, or from the data
    dataset: Callable[..., Dataset]  # of its processor, examples, targets and run
    metrics: Callable[[Sequence[str], Sequence[str], MultitaskEval], dict[str, float]]  # of outputs and references
    stride: int = 1  # units of its processor in one encoder position


@dataclass(frozen=True)
class EndedText(TextProcessor):
    """Texts that an encoder reads, with END."""

    def encode(self, raw: str | Sequence[str], rng: Rng | None = None) -> Array:
        return np.append(super().encode(raw, rng), self.tokenizer.end).astype(np.int32)


def text_dataset(processor: TextProcessor, examples: Source, targets: TaggedTargets, run: MultitaskRun) -> Dataset:
    """Texts with END."""
    target = TargetField(targets, targets.tokenizer.pad, run.data.max_tokens)
    source = ProcessorField("source", EndedText(processor.tokenizer))
    return SourceTargetDataset(examples, source, target, run.data, run.train)


def image_dataset(processor: ImageProcessor, examples: Source, targets: TaggedTargets, run: MultitaskRun) -> Dataset:
    """Images, augmented or not."""
    target = TargetField(targets, targets.tokenizer.pad, run.data.max_tokens, noun="target")
    return SourceTargetDataset(examples, ImageField("source", processor, in_bytes=False), target, run.data, run.train)


def sound_dataset(processor: SoundFrames, examples: Source, targets: TaggedTargets, run: MultitaskRun) -> Dataset:
    """Recordings as frames."""
    ctc, data = bool(run.model.ctc.weight), run.data
    target = TranscriptField(targets, targets.tokenizer.pad, data.max_tokens, None, ctc)
    source = SoundField("source", processor, data.max_seconds, data.curriculum)
    return SourceTargetDataset(examples, source, target, data, run.train)


def text_scores(outputs: Sequence[str], references: Sequence[str], settings: MultitaskEval) -> dict[str, float]:
    """The metrics of outputs for texts and images."""
    correct = [[reference] for reference in references]
    return text_metrics(outputs, correct, TEXT_METRICS, choose_tokenization(correct, settings))


def speech_scores(outputs: Sequence[str], references: Sequence[str], settings: MultitaskEval) -> dict[str, float]:
    """The metrics of transcripts."""
    scores = speech_metrics(outputs, references, settings.normalize)
    return {name: scores[name] for name in SPEECH_METRICS}


TRAINING = {
    TEXT: ModalityTraining(lambda run, kept, examples: kept[TEXT], text_dataset, text_scores),
    IMAGE: ModalityTraining(
        lambda run, kept, examples: image_processor(run.data, run.model, kept.get(IMAGE)), image_dataset, text_scores
    ),
    AUDIO: ModalityTraining(
        lambda run, kept, examples: kept_frames(run.data, examples, kept.get(AUDIO)),
        sound_dataset,
        speech_scores,
        STRIDE,
    ),
}
