"""Transcription: the text of a recording, by sequence-to-sequence models whose source is frames."""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...config.data.base import DataFiles
from ...config.data.sound import WhisperData
from ...config.measured import Measurements, WordTimes
from ...config.run import AnyRun, RunType
from ...data.datasets.fields import SoundField
from ...data.datasets.source_target import SourceTargetDataset
from ...data.datasets.targets import TranscriptField
from ...data.loading.loader import Loader
from ...data.source import Source
from ...data.sources.sounds import TRANSCRIBED_SOUNDS
from ...decode import Suppress
from ...decode.engine.answer import Emit
from ...decode.engine.jobs import ModelContext
from ...decode.engine.wrappers import JointCTC
from ...errors import UserError
from ...families import family
from ...families.protocols import SpeechModel, as_module
from ...look import AttentionView, Which
from ...messages.media import Item as SoundItem
from ...messages.media import Sound
from ...messages.speech import AlignAudioResult, TranscribeRequest, TranscribeResult
from ...messages.verbs import AlignRequest, ScoreRequest, ScoreResult
from ...metrics.labels import BootstrapResult
from ...metrics.speech import paired_error_bootstrap, speech_metrics
from ...modalities.sound import SoundModality
from ...parts import Inputs
from ...processors.base import Processor
from ...processors.saved import load_processors
from ...processors.sound.frames import SoundFrames
from ...processors.sound.log_mel import AudioProcessor
from ...processors.sound.read import RawSound, is_sound
from ...processors.text.processor import TextProcessor
from ...processors.text.tokenizers import Tokenizer, TrainedTokenizer, train_tokenizer
from ...processors.text.whisper import WhisperTokenizer, new_language, with_control_tokens
from ...synthetic.morse import make_morse
from ..base import (
    Metrics,
    Processors,
    TrainingJob,
    build_model,
    find_tokenizer,
    log_facts,
    max_vocab,
    open_split,
    open_splits,
    require_tokenizer,
    view_title,
    vocab_size,
    with_inputs,
    with_model_settings,
)
from ..generate.plans import best_text
from ..generate.predictor import TextPredictor, pair_requests
from ..objectives import Seq2SeqCtcObjective
from ..reading import FileItems, ItemReader
from ..task import Task
from ..texts import as_text
from .processors import hop_samples, new_frames, window_frames, with_augmentation
from .segments import SegmentTranscriber
from .settings import TranscribeRun, WhisperRun
from .transcriber import OnProgress, Transcriber, progress_emit

TASK = Task("transcribe", frozenset({"frames"}), "target")
SOUND, TEXT = "sound", "text"  # the fields of an example
SPEECH_METRICS = ("wer", "cer", "exact")
MEASURED = 50  # recordings whose word times are checked at the end of the training


class TranscribePredictor(TextPredictor[RawSound, TranscribeRequest, TranscribeResult]):
    """The text of every recording: a path, bytes, samples, or (samples, rate).

    Recordings that are longer than those of the training are cut at pauses. Memory does not grow with their length.
    """

    run: TranscribeRun
    request_type, result_type = TranscribeRequest, TranscribeResult
    window = 64  # recordings whose segments are in memory at once
    on_progress: OnProgress | None = None

    def __init__(
        self, run: TranscribeRun, model: SpeechModel, sound: SoundFrames, target: Tokenizer, device: torch.device
    ) -> None:
        self.run, self.sound, self.target, self.device = run, sound, target, device
        self.model = model.to(device).eval()
        self.filters = (Suppress([target.pad, target.start]),)

    @property
    def output_tokenizer(self) -> Tokenizer:
        return self.target

    @property
    def longest_segment(self) -> float:
        """The longest segment of a transcript, in seconds."""
        heard = self.measured.longest_seconds
        seconds: float = self.run.decode.max_segment_seconds or heard or self.run.data.max_seconds
        return seconds

    @cached_property
    def transcriber(self) -> Transcriber:
        """Writes, scores and aligns transcripts."""
        modality = SoundModality(self.sound, self.model.stride)
        return SegmentTranscriber(self.run, self.context_of_model(), self.target, modality, self.plan, self.measured)

    def context_of_model(self) -> ModelContext:
        def joint_model(model: Any, weight: Hashable) -> JointCTC:
            assert isinstance(weight, float)
            return JointCTC(model, weight, self.target.pad, self.target.start, self.target.end)

        return replace(super().context_of_model(), variant=joint_model)

    @property
    def processors(self) -> dict[str, Processor]:
        return {SOUND: self.sound, TEXT: TextProcessor(self.target)}

    def requests(self, items: Iterable[RawSound], details: bool = False, **decode: object) -> list[TranscribeRequest]:
        """`prefix`, `include` and `exclude` may be lists with one entry per recording."""
        sounds = [Sound(sound) for sound in items]
        fields = self.plan.fields(TranscribeRequest, len(sounds), details, decode)
        return [TranscribeRequest(sound, **named) for sound, named in zip(sounds, fields, strict=True)]

    async def answer(self, request: TranscribeRequest, emit: Emit | None = None) -> TranscribeResult:
        return await self.transcriber.answer(request, progress_emit(request.sound, emit, self.on_progress))

    def is_item(self, x: object) -> bool:
        return is_sound(x)

    @property
    def item_reader(self) -> ItemReader:
        return replace(super().item_reader, files=FileItems(partial(TRANSCRIBED_SOUNDS.items, data=self.run.data)))

    # --- known texts -------------------------------------------------------------------------------------------

    def score_requests(
        self, items: RawSound | Iterable[RawSound], targets: str | Iterable[str] | None
    ) -> tuple[list[ScoreRequest], bool]:
        single = is_sound(items)
        pairs = pair_requests(items, targets, single, ("a recording and its text", "recordings", "texts"))
        return [ScoreRequest(SoundItem(audio=Sound(sound)), text) for sound, text in pairs], single

    async def answer_score(self, request: ScoreRequest, emit: Emit | None = None) -> ScoreResult:
        sound = self.transcriber.modality.value_of(request.item)
        return await self.transcriber.score(sound, as_text(request.target, "target"))

    def align(self, sound: RawSound, text: str) -> AlignAudioResult:
        """The times of the words of a known text: by CTC, of Whisper by cross-attention."""
        return self.run_all(self.answer_align_audio, [AlignRequest(SoundItem(audio=Sound(sound)), text)])[0]

    async def answer_align_audio(self, request: AlignRequest, emit: Emit | None = None) -> AlignAudioResult:
        """The times of the words of a known text."""
        return await self.transcriber.align(self.transcriber.modality.value_of(request.item), request.target)

    def look_item(self, item: SoundItem) -> RawSound:
        return item.value_as(Sound).raw

    async def view(self, item: RawSound, target: str | None = None, layer: Which = None) -> AttentionView:
        return await self.transcriber.view(item, target, layer, view_title(self.run))

    def state_inputs(self, items: Iterable[RawSound]) -> list[Inputs]:
        """The frames of each recording."""
        return [self.transcriber.modality.read([sound])[0].inputs for sound in items]

    # --- evaluation --------------------------------------------------------------------------------------------

    def evaluate_with_outputs(self, files: DataFiles | None = None) -> tuple[Metrics, list[str], list[str]]:
        """The metrics of `evaluate`, the transcripts and the references."""
        examples = data_split(self.run, "test", files)
        examples.require_nonempty("data.test")
        metrics, transcripts, references = transcribe_examples(self, examples, {"strategy": best_text(self.run)})
        return metrics | loss_metrics(self, examples), transcripts, references

    def paired_test(
        self, outputs: Sequence[Sequence[str]], references: Sequence[str], /
    ) -> tuple[dict[str, str], list[BootstrapResult]]:
        return paired_error_bootstrap(outputs, references, self.run.eval.normalize)


def transcribe_examples(
    predictor: TranscribePredictor, examples: Source, decode: Mapping[str, object]
) -> tuple[Metrics, list[str], list[str]]:
    """The metrics of transcripts, the transcripts and the references."""
    reference = predictor.transcriber.reference
    references = [reference(examples.text(index, 1)) for index in range(len(examples))]
    transcripts = predictor.predict((examples[index][0] for index in range(len(examples))), False, **decode)
    metrics: Metrics = {"examples": len(examples)}
    return metrics | speech_metrics(transcripts, references, predictor.run.eval.normalize), transcripts, references


def loss_metrics(predictor: TranscribePredictor, examples: Source) -> Metrics:
    """The loss of the decoder, in nats per target token, END included, without label smoothing, and perplexity.

    Empty if no example is short enough for the model.
    """
    transcriber = predictor.transcriber
    if not (chosen := transcriber.scored_examples(examples)):
        return {}
    programs = (
        transcriber.known_logprobs(Sound(examples[index][0]), transcriber.reference(examples.text(index, 1)))
        for index in chosen
    )
    logprobs = [row for _, row in predictor.run_programs(programs)]
    loss = -sum(map(sum, logprobs)) / max(sum(map(len, logprobs)), 1)
    return {"loss": loss, "perplexity": float(np.exp(loss))}


class TranscribeJob(TrainingJob):
    """Recordings with their transcripts."""

    run: TranscribeRun
    predictor: TranscribePredictor
    splits: Mapping[str, Source]

    def __init__(self, predictor: TranscribePredictor, splits: dict[str, Source]) -> None:
        self.predictor, self.run, self.splits = predictor, predictor.run, splits
        model, run = predictor.model, self.run
        self.objective = Seq2SeqCtcObjective(as_module(model), run.train.objective, predictor.target.pad)
        texts, data = predictor.transcriber.targets_to_learn(), run.data
        source = SoundField("source", predictor.sound, data.max_seconds, data.curriculum)
        pad, ctc = predictor.target.pad, bool(model.ctc_weight)
        target = TranscriptField(texts, pad, data.max_tokens, predictor.context, ctc)
        self.loader = Loader.of(SourceTargetDataset(splits["train"], source, target, data, run.train))

    def describe_data(self) -> list[str]:
        facts = []
        for name, examples in self.splits.items():
            seconds = sum(examples.seconds(index) for index in range(len(examples)))
            facts.append(f"{name}: {seconds / 3600:.2f} hours of sound")
        return super().describe_data() + facts

    def measure(self) -> Measurements:
        examples, transcriber = self.splits.get("valid", self.splits["train"]), self.predictor.transcriber
        pairs = [examples[index] for index in range(min(len(examples), MEASURED))]
        starts = (
            lambda emit, pair=pair: transcriber.tokens_in_sound(Sound(pair[0]), transcriber.reference(pair[1]))
            for pair in pairs
        )
        counts = [answer.result() for answer in self.predictor.engine.run(starts) if answer.error is None]
        inside, tokens, sound, positions = (sum(column) for column in zip((0, 0, 0, 0), *counts, strict=True))
        shares = {"tokens_in_sound": round(inside / max(tokens, 1), 4), "sound": round(sound / max(positions, 1), 4)}
        return Measurements(
            longest_seconds=longest_recording(self.splits["train"], self.run.data.max_seconds),
            word_times=WordTimes(**shares) if tokens else None,
        )

    def validate(self) -> dict[str, float]:
        if "valid" not in self.splits:
            return {}
        metrics = loss_metrics(self.predictor, self.splits["valid"])
        if (metric := self.run.train.metric) in metrics:
            return metrics
        if metric not in SPEECH_METRICS:
            raise UserError(
                f"train.metric is {metric}, and all recordings of data.valid are too long for the model to compute it; "
                f"use {' or '.join(SPEECH_METRICS)}, or shorter recordings"
            )
        decode = self.predictor.transcriber.validation_decode()
        speech, _, _ = transcribe_examples(self.predictor, self.splits["valid"], decode)
        return metrics | {name: speech[name] for name in SPEECH_METRICS}


# --- construction --------------------------------------------------------------------------------------------------


def prepare(run: AnyRun, processors: Processors, device: torch.device, folder: Path | None = None) -> TranscribeJob:
    """Open the data, train the tokenizer and measure the frames, if they are not kept; writes no file."""
    splits = open_splits(run, data_split)
    window = family(run.model.family).SPEC.window(run.model)
    target, sound = find_tokenizer(processors, TEXT), processors.get(SOUND)
    if target is None:
        target = train_tokenizer(run.tokenizer, splits["train"].texts(1))
        target = target if window is None else windowed_tokenizer(target, run.data, window)
    if not isinstance(sound, SoundFrames):
        train = splits["train"]
        sound = window_frames(run.data, window) if window else new_frames(run.data, train)
    run = with_inputs(with_model_settings(run, vocab=vocab_size(run, target), bins=sound.bins), TASK.reads)
    if window is None:
        run = with_heard_segments(run, longest_recording(splits["train"], run.data.max_seconds))
    if isinstance(target, WhisperTokenizer):
        run = with_prompt_settings(run, target)
    predictor = new_predictor(run, with_augmentation(sound, run.data), target, device)
    return TranscribeJob(predictor, splits)


def longest_recording(examples: Source, most: float) -> float:
    """The seconds of the longest recording that training reads, which leaves out those of more than `most`."""
    seconds = (examples.seconds(index) for index in range(len(examples)))
    return math.ceil(100 * max((one for one in seconds if one <= most), default=most)) / 100


def with_heard_segments(run: RunType, longest: float) -> RunType:
    """The run that cuts recordings into segments that are not longer than the longest recording of its training."""
    asked = run.decode.max_segment_seconds
    decode = run.decode.model_copy(update={"max_segment_seconds": min(asked or longest, longest)})
    segments = f"segments of at most {decode.max_segment_seconds:g} seconds (decode.max_segment_seconds)"
    log_facts("data.train", [f"the longest recording has {longest:g} seconds; predictions read {segments}"])
    return run.model_copy(update={"decode": decode})


def with_prompt_settings(run: WhisperRun, target: WhisperTokenizer) -> WhisperRun:
    """The run whose decode.* matches its training: the language, the task, and timestamps if the data has them."""
    data, decode = run.data, run.decode
    timestamps = decode.windows.timestamps and data.timestamps
    learned: dict[str, object] = {
        "task": data.task, "windows": decode.windows.model_copy(update={"timestamps": timestamps})
    }  # fmt: skip
    if target.multilingual:
        learned["language"] = decode.language or target.data_language(data.language)
    if not decode.rules.suppress_tokens:
        learned["rules"] = replace(decode.rules, suppress_tokens=tuple(target.control_ids))
    return run.model_copy(update={"decode": decode.model_copy(update=learned)})


def windowed_tokenizer(trained: TrainedTokenizer, data: WhisperData, frames: int) -> WhisperTokenizer:
    """The tokenizer of a model that reads windows."""
    return with_control_tokens(trained, [new_language(data.language)], frames * hop_samples(data) / data.rate)


def restore(run: TranscribeRun, folder: Path, device: torch.device) -> TranscribePredictor:
    """The predictor of a run folder, without the weights."""
    processors = load_processors(folder)
    sound, target = processors.get(SOUND), require_tokenizer(processors, TEXT)
    if not isinstance(sound, SoundFrames):
        raise UserError(f"{folder} lacks its processor of sound; restore it, or train the run again")
    return new_predictor(run, sound, target, device)


def new_predictor(run: AnyRun, sound: SoundFrames, target: Tokenizer, device: torch.device) -> TranscribePredictor:
    """The predictor with a new model: a WhisperPredictor if tokenizer and processor are those of Whisper."""
    from ..whisper.task import WhisperPredictor

    if isinstance(target, WhisperTokenizer) and isinstance(sound, AudioProcessor):
        return WhisperPredictor(run, build_model(run), sound, target, device)
    return TranscribePredictor(run, build_model(run), sound, target, device)


def size_without_data(run: TranscribeRun) -> TranscribeRun:
    """The run with the sizes of a model without data."""
    return with_inputs(with_model_settings(run, vocab=max_vocab(run), bins=run.data.bins), TASK.reads)


def data_split(run: TranscribeRun, split: str, files: DataFiles | None = None) -> Source:
    """A split of the data; the embedded data are Morse code."""
    data = run.data
    embedded = lambda: make_morse(data.examples)[split]  # noqa: E731
    return open_split(run, split, files, lambda files: TRANSCRIBED_SOUNDS.open(files, data), embedded, "test.tsv")
