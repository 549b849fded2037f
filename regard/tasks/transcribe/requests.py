"""Requests and results of transcription."""

from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from ...config.strategies import BestPath, DecodeStrategy, TokenRules
from ...messages.base import Request, Result


@dataclass(frozen=True)
class TranscribeRequest(Request):
    """A recording to transcribe."""

    sound: Any  # a path, bytes, samples at the rate of the run, or (samples, rate)
    strategy: Annotated[DecodeStrategy | BestPath, Field(discriminator="kind")] | None = None
    ctc: float | None = None  # weight of the CTC scores in beam search
    segment: float | None = None  # longer recordings are cut at pauses, in seconds; 0: the longest of the training
    max_tokens: int | None = None  # of a segment; 0: a limit from its length
    min_tokens: int | None = None  # before END
    prefix: str | None = None  # start of the output
    include: tuple[str, ...] | None = None  # phrases that the output must contain
    exclude: tuple[str, ...] | None = None  # phrases that the output may not contain
    repetition_penalty: float | None = None
    rules: TokenRules | None = None  # of tokens by their ids
    details: bool = False  # also tokens, words and their times, which cost a second pass
    # Whisper alone; decode.* documents them
    language: str | None = None
    task: Literal["transcribe", "translate"] | None = None
    timestamps: bool | None = None
    sequential: bool | None = None
    prompt: str | None = None
    condition_on_previous: bool | None = None
    temperatures: tuple[float, ...] | None = None
    compression_ratio_threshold: float | None = None
    logprob_threshold: float | None = None
    no_speech_threshold: float | None = None
    seed: int | None = None  # of samples at higher temperatures; a strategy that samples has its own


class TimedWord(NamedTuple):
    """A word with its start and end in seconds."""

    word: str
    start: float  # in seconds from the beginning of the recording
    end: float


@dataclass(frozen=True)
class Transcript:
    """One hypothesis. Its tokens and words are empty without details."""

    text: str
    score: float | None = None  # log-probability / length^length_penalty; None for silence
    logprob: float | None = None
    ended: bool | None = None  # False: cut by max_tokens
    pieces: tuple[str, ...] = ()  # tokens
    logprobs: tuple[float, ...] = ()  # of the tokens; END comes last, except with strategy ctc
    times: tuple[tuple[float, float], ...] = ()  # of the tokens: start and end in seconds
    words: tuple[TimedWord, ...] = ()
    missing: tuple[str, ...] = ()  # phrases of `include` that it lacks
    length: int = 0  # generated tokens, END included


@dataclass(frozen=True)
class DecodedWindow:
    """How the window of a segment was decoded."""

    temperature: float
    logprob: float  # mean log-probability of its tokens
    compression_ratio: float
    no_speech: float | None = None  # the probability that nobody speaks, if it was computed


@dataclass(frozen=True)
class TranscriptSegment:
    """A part of a recording."""

    start: float  # in seconds
    end: float
    nbest: tuple[Transcript, ...]  # the best hypotheses
    decoded: "DecodedWindow | None" = None  # of Whisper: how its window was decoded
    tokens: tuple[int, ...] = ()  # of Whisper: ids, timestamps included


@dataclass(frozen=True)
class TranscribeResult(Transcript, Result):
    """The best transcript of a recording, joined from its segments."""

    seconds: float = 0.0
    segments: tuple[TranscriptSegment, ...] = ()
    language: str = ""  # the code, if the model knows several

    @property
    def nbest(self) -> tuple[Transcript, ...]:
        """The best hypotheses of a recording of one segment; of several segments, the joined transcript alone."""
        if len(self.segments) == 1:
            return self.segments[0].nbest
        names = [field.name for field in fields(Transcript)]
        return (Transcript(**{name: getattr(self, name) for name in names}),)
