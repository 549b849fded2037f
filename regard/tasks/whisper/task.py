"""The predictor of Whisper models: the task `transcribe` with languages, translation into English, and timestamps."""

import warnings
from collections.abc import Sequence
from typing import Self

import torch
from torch import nn

from ...config.data.sound import SoundData
from ...config.run import Run
from ...data.datasets.sounds import EncodeTargets
from ...data.source import Source
from ...decode.engine.wrappers import EncodedSources
from ...decode.search.constraints import ConstraintTokenizer
from ...decode.search.timestamps import TimestampRules
from ...errors import UserError
from ...families.protocols import SpeechModel
from ...look import AttentionView, Which
from ...processors.base import Array
from ...processors.sound.log_mel import AudioProcessor
from ...processors.sound.read import RawSound
from ...processors.text.whisper import WhisperTokenizer, WhisperTranscripts, text_language
from ..transcribe.requests import Transcript
from ..transcribe.settings import TranscribeDecode
from ..transcribe.task import TranscribePredictor
from .known_texts import TranscriptScorer

PROMPT = 4  # the most tokens before a transcript: START, language, task, no timestamps


class WhisperPredictor(TranscriptScorer, TranscribePredictor):
    """The text of every recording: a path, bytes, samples, or (samples, rate), in the language that is spoken or in
    English. Memory does not grow with the length of a recording.
    """

    def __init__(
        self, run: Run, model: SpeechModel, sound: AudioProcessor, target: WhisperTokenizer, device: torch.device
    ) -> None:
        super().__init__(run, model, sound, target, device)
        self.filters = ()
        self.encoded_model = EncodedSources(self.model)
        control = target.control
        self.timestamp_rules = TimestampRules(
            target.first_timestamp, target.end, control.no_timestamps, control.latest_start, target.text_end
        )
        self.constraint_tokenizer = ConstraintTokenizer(target)

    def with_model(self, model: nn.Module) -> Self:
        other = super().with_model(model)
        other.encoded_model = EncodedSources(other.model)
        return other

    @property
    def context(self) -> int:
        return self.positions

    def text_ids(self, texts: Sequence[str]) -> list[list[int]]:
        decode: TranscribeDecode = self.run.decode
        language = self.target.language(decode.language) if decode.language else ""
        return [self.target.encode_words(text, text_language(language, decode.task)) for text in texts]

    def scored_examples(self, examples: Source) -> list[int]:
        texts = [self.reference(examples.text(index, 1)) for index in range(len(examples))]
        sizes = [len(self.target.encode_words(text, "")) for text in texts]
        most, longest = self.positions - PROMPT, self.sound.seconds + self.sound.hop / self.sound.rate
        chosen = [i for i, size in enumerate(sizes) if size <= most and examples.seconds(i) <= longest]
        if long := len(sizes) - len(chosen):
            warnings.warn(
                f"{long:,} of {len(sizes):,} recordings have more than {self.sound.seconds} seconds or {most:,} tokens "
                "and do not count in the loss",
                stacklevel=2,
            )
        return chosen

    def encode_known(self, sound: RawSound) -> Array:
        samples = self.sound.samples(sound)
        self.refuse_long_recording(len(samples) / self.sound.rate)
        return self.sound.encode(samples)

    def reference(self, transcript: str) -> str:
        return self.target.plain(transcript)

    def transcripts_to_learn(self) -> EncodeTargets:
        """The transcripts as the model learns them."""
        data: SoundData = self.run.data
        language = self.target.data_language(data.language)
        if data.task not in self.target.control.tasks and data.task != "transcribe":
            raise UserError(f"data.task is {data.task}, and this model does not {data.task}; start from another one")
        return WhisperTranscripts(self.target, language, data.task, data.timestamps, data.prompts, self.max_previous)

    def validation_decode(self) -> dict[str, object]:
        return {**super().validation_decode(), "temperatures": (0.0,), "no_speech_threshold": 1.0}

    def look(self, text: RawSound, target: str | None = None, layer: Which = None) -> AttentionView:
        ids = None if target is None else self.text_ids([target])[0]
        return self.look_at(self.encode_known(text), ids, layer)

    def align(self, sound: RawSound, text: str) -> Transcript:
        """The times of the words of a known text, by the cross-attention of the alignment heads."""
        (ids,) = self.text_ids([text])
        self.refuse_unknown(text, ids)
        if not ids:
            raise UserError("the text is empty, so there is nothing to align; give the words of the recording")
        return self.align_tokens(self.sound.samples(sound), ids, " ".join(text.split()))
