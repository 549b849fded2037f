"""Requests and results of transcription."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import ConfigDict

from .base import FORBID_UNKNOWN, Result
from .media import Sound
from .texts import GeneratedText, TargetRequest, TextResult, TimeAlignment


@dataclass(frozen=True)
class TranscribeRequest(TargetRequest):
    """A recording to transcribe."""

    sound: Sound
    ctc: float | None = None  # weight of the CTC scores in beam search
    segment: float | None = None  # longer recordings are cut at pauses, in seconds; 0: the longest of the training
    # Whisper alone; decode.* documents them
    language: str | None = None
    task: Literal["transcribe", "translate"] | None = None
    timestamps: bool | Literal["long"] | None = None
    sequential: bool | None = None
    prompt: str | None = None
    condition_on_previous: bool | None = None
    temperatures: tuple[float, ...] | None = None
    compression_ratio_threshold: float | None = None
    logprob_threshold: float | None = None
    no_speech_threshold: float | None = None
    seed: int | None = None  # of samples at higher temperatures; a strategy that samples has its own


@dataclass(frozen=True)
class TranscriptSegment:
    """A part of a recording."""

    __pydantic_config__: ClassVar[ConfigDict] = FORBID_UNKNOWN
    start: float  # in seconds
    end: float
    nbest: tuple[GeneratedText, ...]  # the best hypotheses
    temperature: float | None = None  # of Whisper: how its window was decoded
    compression_ratio: float | None = None
    no_speech: float | None = None  # the probability that nobody speaks, if it was computed
    ids: tuple[int, ...] = ()  # of Whisper: tokens, timestamps included

    @property
    def text(self) -> str:
        """The best text."""
        return self.nbest[0].text if self.nbest else ""


@dataclass(frozen=True)
class TranscribeResult(TextResult):
    """The best transcript of a recording, joined from its segments."""

    segments: tuple[TranscriptSegment, ...] = ()
    seconds: float = 0.0
    language: str = ""  # the code, if the model knows several


@dataclass(frozen=True)
class AlignAudioResult(GeneratedText, Result):
    """A known text with the times of its words."""

    alignment: TimeAlignment = TimeAlignment((), ())  # of its tokens and words
