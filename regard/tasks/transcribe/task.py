"""Transcription: the text of a recording, by sequence-to-sequence models whose source is frames."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from ...config.data.base import DataFiles
from ...config.data.sound import SoundData
from ...config.decode import Seq2SeqDecode
from ...config.run import Run
from ...config.strategies import BestPath
from ...data.datasets.sounds import EncodeTargets, PlainTranscripts, SoundDataset
from ...data.loading.loader import Loader
from ...data.source import Source
from ...data.sources.sounds import open_sounds, transcribed_sounds
from ...decode import Hypothesis, Suppress, strategy_from
from ...decode.search.constraints import ConstraintTokenizer, parse_constraints
from ...errors import UserError
from ...families import family
from ...families.protocols import SpeechModel, as_module
from ...look import AttentionView, Which
from ...metrics.labels import BootstrapResult
from ...metrics.speech import paired_error_bootstrap, speech_metrics
from ...parts import Inputs
from ...processors.base import Array, Processor
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
    Record,
    TrainingJob,
    build_model,
    find_tokenizer,
    max_vocab,
    open_split,
    open_splits,
    require_tokenizer,
    view_title,
    vocab_size,
    with_inputs,
    with_model_settings,
)
from ..generate.base import group_indices
from ..generate.results import changed_settings
from ..generate.seq2seq import NO_CONSTRAINTS
from ..generate.writer import VALIDATION_DECODE
from ..notices import require_finite
from ..objectives import Seq2SeqCtcObjective
from ..predictor import PlainResult, Predictor
from ..records import transcript_record
from ..task import Task
from .generation import SoundGeneration
from .processors import hop_samples, new_frames, window_frames, with_augmentation
from .requests import TranscribeRequest, TranscribeResult, Transcript
from .settings import TranscribeDecode
from .transcripts import make_transcript, shift_transcript

TASK = Task("transcribe", frozenset({"frames"}), "target", TranscribeRequest, TranscribeResult)
SOUND, TEXT = "sound", "text"  # the fields of an example
REQUEST_SETTINGS = (
    "max_tokens", "min_tokens", "repetition_penalty", "ctc", "segment", "language", "task", "timestamps", "sequential",
    "prompt", "condition_on_previous", "temperatures", "compression_ratio_threshold", "logprob_threshold",
    "no_speech_threshold", "seed",
)  # fmt: skip  # fields of a request that are decode.*
SPEECH_METRICS = ("wer", "cer", "exact")


class TranscribePredictor(SoundGeneration, Predictor[RawSound, TranscribeRequest, TranscribeResult]):
    """The text of every recording: a path, bytes, samples, or (samples, rate).

    Recordings that are longer than those of the training are cut at pauses. Memory does not grow with their length.
    """

    def __init__(
        self, run: Run, model: SpeechModel, sound: SoundFrames, target: Tokenizer, device: torch.device
    ) -> None:
        self.run, self.sound, self.target, self.device = run, sound, target, device
        self.model = model.to(device).eval()
        self.filters = (Suppress([target.pad, target.start]),)
        self.constraint_tokenizer = ConstraintTokenizer(target)
        self.joint = {}

    def with_model(self, model: nn.Module) -> Self:
        other = super().with_model(model)
        other.joint = {}
        return other

    @property
    def processors(self) -> dict[str, Processor]:
        return {SOUND: self.sound, TEXT: TextProcessor(self.target)}

    def requests(self, items: Iterable[RawSound], details: bool = False, **decode: object) -> list[TranscribeRequest]:
        """`prefix`, `include` and `exclude` may be lists with one entry per recording."""
        items = list(items)
        if not decode:
            return [TranscribeRequest(sound, details=details) for sound in items]
        constraints, settings = parse_constraints(len(items), decode, self.decode_settings)
        assert isinstance(settings, TranscribeDecode)
        shared: dict[str, Any] = {name: getattr(settings, name) for name in REQUEST_SETTINGS}
        plain: Seq2SeqDecode = settings
        strategy = BestPath(settings.length_penalty) if settings.kind == "ctc" else strategy_from(plain)
        shared |= {"strategy": strategy, "rules": self.rules(settings), "details": details}
        pairs = zip(items, constraints, strict=True)
        return [TranscribeRequest(sound, **shared, **constraint._asdict()) for sound, constraint in pairs]

    def predict_batch(self, requests: Sequence[TranscribeRequest], batch: int | None = None) -> list[TranscribeResult]:
        results: dict[int, TranscribeResult] = {}
        for indices in group_indices(requests, attrgetter("strategy", "rules", *REQUEST_SETTINGS)):
            group = [requests[i] for i in indices]
            settings = self.decode_settings(changed_settings(group, self.run.decode, batch, REQUEST_SETTINGS))
            results |= zip(indices, self.transcribe(group, settings), strict=True)
        return [results[i] for i in range(len(requests))]

    def record(self, request: TranscribeRequest, result: TranscribeResult) -> Record:
        return transcript_record(result)

    def is_item(self, x: object) -> bool:
        return is_sound(x)

    def open_items(self, name: str) -> Iterator[tuple[str, RawSound]]:
        """The recordings in a file, a folder, an archive or a table of paths."""
        return open_sounds(name, self.run.data)

    def format_line(self, name: str, request: TranscribeRequest, result: TranscribeResult) -> str:
        """The text of a recording, on one line."""
        plain = self.plain_result(request, result)
        return (
            " ".join(plain.split()) if isinstance(plain, str) else "\t".join(" ".join(text.split()) for text in plain)
        )

    def score(self, texts: Any, targets: Any = None, details: bool = False) -> PlainResult:
        """ln P(target | recording) by the decoder, END included; with details also per token."""
        if is_sound(texts) and isinstance(targets, str):
            return self.score([texts], [targets], details)[0]
        if is_sound(texts) or isinstance(targets, str) or targets is None:
            raise UserError("score takes a recording and its text, or a list of each, not one of both")
        sounds, texts = [*texts], [*targets]
        if len(sounds) != len(texts):
            raise UserError(
                f"there are {len(sounds)} recordings and {len(texts)} texts; give a text for each recording"
            )
        ids = self.text_ids(texts)
        logprobs = self.target_logprobs(map(self.encode_known, sounds), ids)
        totals = [sum(tokens) for tokens in logprobs]
        require_finite(totals)
        if not details:
            return totals
        return [
            {"score": total, "pieces": [*self.target.tokens(row), "■"], "logprobs": tokens}
            for total, row, tokens in zip(totals, ids, logprobs, strict=True)
        ]

    def state_inputs(self, items: Iterable[RawSound]) -> list[Inputs]:
        """The frames of each recording."""
        return [self.sound.collate([self.encode_known(sound)]) for sound in items]

    def look(self, text: RawSound, target: str | None = None, layer: Which = None) -> AttentionView:
        """The attention weights while the model reads a recording and writes `target`, or its own transcript."""
        frames = self.sound.encode(text)
        if target is None:
            settings = self.decode_settings({"kind": "beam", "nbest": 1})
            (hypotheses,) = self.search([frames], settings)
            ids = hypotheses[0].tokens if hypotheses else []
        else:
            ids = self.target.encode([target])[0]
        return self.times.view(frames, ids, layer=layer, title=view_title(self.run))

    def evaluate_with_outputs(self, files: DataFiles | None = None) -> tuple[Metrics, list[str], list[str]]:
        """The metrics of `evaluate`, the transcripts and the references."""
        examples = data_split(self.run, "test", files)
        examples.require_nonempty("data.test")
        metrics, transcripts, references = self.transcribe_examples(examples, {"nbest": 1})
        return metrics | self.loss_metrics(examples), transcripts, references

    def paired_test(
        self, outputs: Sequence[Sequence[str]], references: Any, /
    ) -> tuple[dict[str, str], list[BootstrapResult]]:
        return paired_error_bootstrap(outputs, references, self.run.eval.normalize)

    def align(self, sound: RawSound, text: str) -> Transcript:
        """The times of the words of a known text, by forced alignment with CTC."""
        self.require_ctc("word times")
        text = " ".join(text.split())
        (ids,) = self.target.encode([text])
        self.refuse_unknown(text, ids)
        if not ids:
            raise UserError("the text is empty, so there is nothing to align; give the words of the recording")
        samples = self.sound.samples(sound)
        trace = self.times.align(self.sound.encode(samples), ids)
        (logprob,) = trace.logprobs  # of the best path
        hypothesis = Hypothesis(ids, logprob / len(ids), logprob, True)
        transcript = make_transcript(text, hypothesis, trace, self.target, NO_CONSTRAINTS)
        return shift_transcript(transcript, 0.0, len(samples) / self.sound.rate)

    def refuse_unknown(self, text: str, ids: Sequence[int]) -> None:
        """Refuse a text with characters that the vocabulary lacks."""
        if self.target.unk in ids:
            raise UserError(
                f"{text!r:.60} has characters that this run does not know; write it as in the training data"
            )

    def text_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of texts."""
        return self.target.encode(list(texts))

    def encode_known(self, sound: RawSound) -> Array:
        """The frames of a recording whose text is known."""
        return self.sound.encode(sound)

    def reference(self, transcript: str) -> str:
        """The text of a transcript of the data."""
        return transcript

    def transcripts_to_learn(self) -> EncodeTargets:
        """The transcripts as the model learns them."""
        return PlainTranscripts(self.target)

    def validation_decode(self) -> dict[str, object]:
        """Settings without a search: CTC or the decoder, whichever has the larger weight in beam search."""
        by_ctc = self.model.ctc_weight and self.run.decode.ctc > 0.5
        return {**VALIDATION_DECODE, "kind": "ctc" if by_ctc else "greedy"}

    def transcribe_examples(self, examples: Source, decode: Mapping[str, Any]) -> tuple[Metrics, list[str], list[str]]:
        """The metrics of transcripts, the transcripts and the references."""
        references = [self.reference(examples.text(index, 1)) for index in range(len(examples))]
        transcripts = self.predict((examples[index][0] for index in range(len(examples))), **decode)
        metrics: Metrics = {"examples": len(examples)}
        return metrics | speech_metrics(transcripts, references, self.run.eval.normalize), transcripts, references

    def loss_metrics(self, examples: Source) -> Metrics:
        """The loss of the decoder, in nats per target token, END included, without label smoothing, and perplexity.

        Empty if no example is short enough for the model.
        """
        if not (chosen := self.scored_examples(examples)):
            return {}
        ids = self.text_ids([self.reference(examples.text(index, 1)) for index in chosen])
        frames = (self.sound.encode(examples[index][0]) for index in chosen)
        logprobs = self.target_logprobs(frames, ids)
        loss = -sum(map(sum, logprobs)) / max(sum(map(len, logprobs)), 1)
        return {"loss": loss, "perplexity": float(np.exp(loss))}

    def scored_examples(self, examples: Source) -> list[int]:
        """The indices of the examples that fit the model in one pass."""
        return [*range(len(examples))]


class TranscribeJob(TrainingJob):
    """Recordings with their transcripts."""

    predictor: TranscribePredictor
    splits: Mapping[str, Source]

    def __init__(self, predictor: TranscribePredictor, splits: dict[str, Source]) -> None:
        self.predictor, self.run, self.splits = predictor, predictor.run, splits
        model, run = predictor.model, self.run
        self.objective = Seq2SeqCtcObjective(as_module(model), run.train.smoothing, predictor.target.pad)
        max_tokens = min(run.data.max_tokens, predictor.context or run.data.max_tokens)
        dataset = SoundDataset(
            splits["train"], predictor.sound, predictor.transcripts_to_learn(), predictor.target.pad, run.data,
            run.train, max_tokens, bool(model.ctc_weight),
        )  # fmt: skip
        self.loader = Loader.of(dataset)

    def describe_data(self) -> list[str]:
        facts = []
        for name, examples in self.splits.items():
            seconds = sum(examples.seconds(index) for index in range(len(examples)))
            facts.append(f"{name}: {seconds / 3600:.2f} hours of sound")
        return super().describe_data() + facts

    def validate(self) -> dict[str, float]:
        if "valid" not in self.splits:
            return {}
        metrics = self.predictor.loss_metrics(self.splits["valid"])
        if (metric := self.run.train.metric) in metrics:
            return metrics
        if metric not in SPEECH_METRICS:
            raise UserError(
                f"train.metric is {metric}, and all recordings of data.valid are too long for the model to compute it; "
                f"use {' or '.join(SPEECH_METRICS)}, or shorter recordings"
            )
        decode = self.predictor.validation_decode()
        speech, _, _ = self.predictor.transcribe_examples(self.splits["valid"], decode)
        return metrics | {name: speech[name] for name in SPEECH_METRICS}


# --- construction --------------------------------------------------------------------------------------------------


def prepare(run: Run, processors: Processors, device: torch.device, folder: Path | None = None) -> TranscribeJob:
    """Open the data, train the tokenizer and measure the frames, if they are not kept; writes no file."""
    splits = open_splits(run, data_split)
    window = family(run.model.family).SPEC.window(run.model)
    target, sound = find_tokenizer(processors, TEXT), processors.get(SOUND)
    if target is None:
        target = train_tokenizer(run.tokenizer, splits["train"].texts(1))
        target = target if window is None else windowed_tokenizer(target, run.data, window)
    if not isinstance(sound, SoundFrames):
        sound = new_frames(run.data, splits["train"]) if window is None else window_frames(run.data, window)
    run = with_inputs(with_model_settings(run, vocab=vocab_size(run, target), bins=sound.bins), TASK.reads)
    if isinstance(target, WhisperTokenizer):
        run = with_prompt_settings(run, target)
    predictor = new_predictor(run, with_augmentation(sound, run.data), target, device)
    return TranscribeJob(predictor, splits)


def with_prompt_settings(run: Run, target: WhisperTokenizer) -> Run:
    """The run whose decode.* matches its training: the language, the task, and timestamps if the data has them."""
    data, decode = run.data, run.decode
    learned: dict[str, object] = {"task": data.task, "timestamps": decode.timestamps and data.timestamps}
    if target.multilingual:
        learned["language"] = decode.language or target.data_language(data.language)
    if not decode.suppress_tokens:
        learned["suppress_tokens"] = target.control_ids
    return run.model_copy(update={"decode": decode.model_copy(update=learned)})


def windowed_tokenizer(trained: TrainedTokenizer, data: SoundData, frames: int) -> WhisperTokenizer:
    """The tokenizer of a model that reads windows."""
    return with_control_tokens(trained, [new_language(data.language)], frames * hop_samples(data) / data.rate)


def restore(run: Run, folder: Path, device: torch.device) -> TranscribePredictor:
    """The predictor of a run folder, without the weights."""
    processors = load_processors(folder)
    sound, target = processors.get(SOUND), require_tokenizer(processors, TEXT)
    if not isinstance(sound, SoundFrames):
        raise UserError(f"{folder} lacks its processor of sound; restore it, or train the run again")
    return new_predictor(run, sound, target, device)


def new_predictor(run: Run, sound: SoundFrames, target: Tokenizer, device: torch.device) -> TranscribePredictor:
    """The predictor with a new model: a WhisperPredictor if tokenizer and processor are those of Whisper."""
    from ..whisper.task import WhisperPredictor

    if isinstance(target, WhisperTokenizer) and isinstance(sound, AudioProcessor):
        return WhisperPredictor(run, build_model(run), sound, target, device)
    return TranscribePredictor(run, build_model(run), sound, target, device)


def size_without_data(run: Run) -> Run:
    """The run with the sizes of a model without data."""
    return with_inputs(with_model_settings(run, vocab=max_vocab(run), bins=run.data.bins), TASK.reads)


def data_split(run: Run, split: str, files: DataFiles | None = None) -> Source:
    """A split of the data; the embedded data are Morse code."""
    data = run.data
    embedded = lambda: make_morse(data.examples)[split]  # noqa: E731
    return open_split(run, split, files, lambda files: transcribed_sounds(files, data), embedded, "test.tsv")
