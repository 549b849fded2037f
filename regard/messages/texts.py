"""Requests that write text, and their results: translation, language, captions, several modalities in one model."""

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import ConfigDict, Field

from ..config.strategies import AnyStrategy, TokenRules
from .base import FORBID_UNKNOWN, Request, Result
from .media import Image, Sound

Strategy: TypeAlias = Annotated[AnyStrategy, Field(discriminator="kind")]
FinishReason: TypeAlias = Literal["end", "stop", "length", "context"]
"""How a text ends: by END, before a stop string, at max_tokens, or because the context of the model is full."""


@dataclass(frozen=True, kw_only=True)
class TextRequest(Request):
    """The fields of a request that writes text; those of decode.* have the same names."""

    no_settings: ClassVar[frozenset[str]] = frozenset({"adapter", "strategy", "rules"})  # fields that may be None
    strategy: Strategy | None = None
    max_tokens: int | None = None  # 0: a limit from the length of the input
    min_tokens: int | None = None  # before END
    repetition_penalty: float | None = None
    rules: TokenRules | None = None  # of tokens by their ids
    details: bool = False  # also tokens, log-probabilities and alignments, which cost a second pass
    alternatives: int = 0  # with details: the likeliest tokens at every place, with their log-probabilities


@dataclass(frozen=True, kw_only=True)
class TargetRequest(TextRequest):
    """The fields of a request to an encoder–decoder model."""

    prefix: str | None = None  # start of the output
    include: tuple[str, ...] | None = None  # phrases that the output must contain
    exclude: tuple[str, ...] | None = None  # phrases that the output may not contain


@dataclass(frozen=True)
class TranslateRequest(TargetRequest):
    """A text to translate, for all tasks that write a text for a text."""

    source: str
    _: KW_ONLY
    split: bool | None = None  # translate sentence by sentence


@dataclass(frozen=True)
class LanguageRequest(TextRequest):
    """A prompt to continue."""

    prompt: str
    _: KW_ONLY
    stop: tuple[str, ...] | None = None  # the output ends before the first of these strings
    add_start: bool | None = None  # START before the prompt: it begins a text
    max_length: int | None = None  # of prompt and text; `max_tokens` alone replaces the run's
    min_length: int | None = None  # of prompt and text; `min_tokens` alone replaces the run's


@dataclass(frozen=True)
class CaptionRequest(TargetRequest):
    """An image to describe."""

    image: Image


@dataclass(frozen=True)
class MultitaskRequest(TargetRequest):
    """A text, an image or a recording, and what to write for it."""

    no_settings = TargetRequest.no_settings | {"text", "image", "audio"}
    text: str | None = None
    image: Image | None = None
    audio: Sound | None = None
    task: str | None = None  # the tag; "": the tag of the run for this modality

    def __post_init__(self) -> None:
        if sum(value is not None for value in (self.text, self.image, self.audio)) != 1:
            raise ValueError("a request has one input; give exactly one of text, image and audio")


# --- alignments ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TokenAlignment:
    """The source token with the largest attention weight for every token, and the words that they connect."""

    source: tuple[str, ...]
    positions: tuple[int, ...]
    words: tuple[tuple[int, int], ...]  # (source word, target word)
    kind: Literal["tokens"] = "tokens"


@dataclass(frozen=True)
class PatchAlignment:
    """Row and column of the patch with the largest attention weight for every token, from 0."""

    patches: tuple[tuple[int, int], ...]
    kind: Literal["patches"] = "patches"


@dataclass(frozen=True)
class TimedWord:
    """A word with its start and end in seconds from the beginning of the recording."""

    word: str
    start: float
    end: float


@dataclass(frozen=True)
class TimeAlignment:
    """Start and end of every token and of every word, in seconds."""

    times: tuple[tuple[float, float], ...]
    words: tuple[TimedWord, ...]
    kind: Literal["times"] = "times"


Alignment: TypeAlias = Annotated[TokenAlignment | PatchAlignment | TimeAlignment, Field(discriminator="kind")]


# --- results ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TokenLogprob:
    """A token that was possible at a place, with its log-probability."""

    token: str
    logprob: float


@dataclass(frozen=True)
class GeneratedText:
    """One hypothesis. Its tokens, their log-probabilities and the alignment come with details alone."""

    __pydantic_config__: ClassVar[ConfigDict] = FORBID_UNKNOWN
    text: str
    score: float | None = None  # log-probability / length^length_penalty; None: no text was possible
    logprob: float | None = None
    finish: FinishReason | None = None
    length: int = 0  # generated tokens, END included
    given: int = 0  # tokens of the prefix, which score and logprob exclude
    missing: tuple[str, ...] = ()  # phrases of `include` that it lacks
    tokens: tuple[str, ...] = ()
    logprobs: tuple[float, ...] = ()  # of the tokens; END comes last
    alternatives: tuple[tuple[TokenLogprob, ...], ...] = ()  # for every log-probability, the likeliest tokens
    alignment: Alignment | None = None


@dataclass(frozen=True)
class Usage:
    """What a request has cost."""

    input: int  # tokens, patches or frames that were read
    output: int  # tokens that were written in all hypotheses, END included


@dataclass(frozen=True)
class TextResult(GeneratedText, Result):
    """The best text; all of them are in `nbest`."""

    nbest: tuple[GeneratedText, ...] = ()
    usage: Usage = Usage(0, 0)


@dataclass(frozen=True)
class TranslateResult(TextResult):
    """A text that was split has its `sentences`."""

    sentences: tuple["TranslateResult", ...] = ()


@dataclass(frozen=True)
class LanguageResult(TextResult):
    """The best continuation of a prompt."""

    prompt_tokens: tuple[str, ...] = ()  # with details


@dataclass(frozen=True)
class MultitaskResult(TextResult):
    """The text for an input, with the task that was chosen."""

    task: str = ""
