"""Requests and results of predictors: frozen dataclasses, from which a server derives its schema.

A result never depends on the other requests of a call. A request field that is None takes the value of the run.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from ..config.strategies import DecodeStrategy, ParallelStrategy, TokenRules
from ..messages.base import Request, Result

Strategy: TypeAlias = Annotated[DecodeStrategy, Field(discriminator="kind")]
TranslateStrategy: TypeAlias = Annotated[DecodeStrategy | ParallelStrategy, Field(discriminator="kind")]
Ended: TypeAlias = Literal["end", "stop", "max", "context"]
"""How a continuation ends: by END, by a stop string, at max_tokens, or because the model's context is full."""


# --- texts from texts ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TranslateRequest(Request):
    """A text to translate, for all encoder–decoder tasks."""

    source: str
    strategy: TranslateStrategy | None = None
    max_tokens: int | None = None  # 0: a limit from the length of the source
    prefix: str | None = None  # start of the output
    include: tuple[str, ...] | None = None  # phrases that the output must contain
    exclude: tuple[str, ...] | None = None  # phrases that the output may not contain
    split: bool | None = None  # translate sentence by sentence
    details: bool = False  # also tokens, log-probabilities and alignments, which cost a second pass
    min_tokens: int | None = None  # before END
    repetition_penalty: float | None = None
    rules: TokenRules | None = None  # of tokens by their ids


@dataclass(frozen=True)
class Translation:
    """One hypothesis. Its tokens and alignments are empty without details."""

    text: str
    score: float | None = None  # log-probability / length^length_penalty; None for an empty source
    logprob: float | None = None
    ended: bool | None = None  # False: cut by max_tokens
    pieces: tuple[str, ...] = ()  # tokens
    logprobs: tuple[float, ...] = ()  # of the tokens; END comes last
    given: int = 0  # tokens of the prefix, which score and logprob exclude
    alignment: tuple[int, ...] = ()  # for every token, the source token with the largest attention weight
    word_alignment: tuple[tuple[int, int], ...] = ()  # (source word, target word)
    missing: tuple[str, ...] = ()  # phrases of `include` that it lacks
    length: int = 0  # generated tokens, END included


@dataclass(frozen=True)
class TranslateResult(Translation, Result):
    """The best hypothesis; all of them are in `nbest`. A text that was split has its `sentences` instead."""

    source_pieces: tuple[str, ...] = ()
    nbest: tuple[Translation, ...] = ()
    sentences: tuple["TranslateResult", ...] = ()


@dataclass(frozen=True)
class LanguageRequest(Request):
    """A prompt to continue."""

    prompt: str
    strategy: Strategy | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] | None = None  # the output ends before the first of these strings
    repetition_penalty: float | None = None
    add_start: bool | None = None  # START before the prompt: it begins a text
    details: bool = False  # also tokens and log-probabilities, which cost a second pass
    min_tokens: int | None = None  # before END
    max_length: int | None = None  # of prompt and text; `max_tokens` alone replaces the run's
    min_length: int | None = None  # of prompt and text; `min_tokens` alone replaces the run's
    rules: TokenRules | None = None  # of tokens by their ids


@dataclass(frozen=True)
class Completion:
    """One continuation. Its tokens and log-probabilities are missing without details."""

    text: str
    ended: Ended | None  # None: no token was possible
    score: float | None
    logprob: float | None = None
    prompt_pieces: tuple[str, ...] = ()  # tokens
    pieces: tuple[str, ...] = ()
    logprobs: tuple[float, ...] = ()  # of the tokens; END comes last
    length: int = 0  # generated tokens, END included


@dataclass(frozen=True)
class LanguageResult(Completion, Result):
    """The best continuation; all of them are in `nbest`."""

    nbest: tuple[Completion, ...] = ()


# --- texts from images -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CaptionRequest(Request):
    """An image to describe."""

    image: Any  # a path, bytes, a Pillow image, an array, or a tensor
    strategy: Strategy | None = None
    max_tokens: int | None = None  # 0: 100
    prefix: str | None = None  # start of the output
    include: tuple[str, ...] | None = None  # phrases that the output must contain
    exclude: tuple[str, ...] | None = None  # phrases that the output may not contain
    details: bool = False  # also tokens, log-probabilities and patches, which cost a second pass
    min_tokens: int | None = None  # before END
    repetition_penalty: float | None = None
    rules: TokenRules | None = None  # of tokens by their ids


@dataclass(frozen=True)
class Caption:
    """One hypothesis. Its tokens and patches are empty without details."""

    text: str
    score: float | None = None  # log-probability / length^length_penalty; None: no text satisfies decode.*
    logprob: float | None = None
    ended: bool | None = None  # False: cut by max_tokens
    pieces: tuple[str, ...] = ()  # tokens
    logprobs: tuple[float, ...] = ()  # of the tokens; END comes last
    given: int = 0  # tokens of the prefix, which score and logprob exclude
    patches: tuple[tuple[int, int], ...] = ()  # for every token, row and column of the most attended patch, from 0
    missing: tuple[str, ...] = ()  # phrases of `include` that it lacks
    length: int = 0  # generated tokens, END included


@dataclass(frozen=True)
class CaptionResult(Caption, Result):
    """The best hypothesis; all of them are in `nbest`."""

    nbest: tuple[Caption, ...] = ()


# --- texts from texts, images and sound ------------------------------------------------------------------------------


@dataclass(frozen=True)
class MultitaskRequest(Request):
    """A text, an image or a recording, and what to write for it."""

    kind: Literal["text", "image", "audio"]
    value: Any  # a text; a path, bytes, a Pillow image or an array; a path, bytes, samples, or (samples, rate)
    task: str | None = None  # the tag; "": the tag of the run for this modality
    strategy: Strategy | None = None
    max_tokens: int | None = None  # 0: a limit from the length of the input
    prefix: str | None = None  # start of the output
    include: tuple[str, ...] | None = None  # phrases that the output must contain
    exclude: tuple[str, ...] | None = None  # phrases that the output may not contain
    details: bool = False  # also tokens, log-probabilities and alignments, which cost a second pass
    min_tokens: int | None = None  # before END
    repetition_penalty: float | None = None
    rules: TokenRules | None = None  # of tokens by their ids


@dataclass(frozen=True)
class MultitaskResult(Translation, Result):
    """The best hypothesis; all of them are in `nbest`. Alignments are to `positions`: tokens, patches or times."""

    kind: str = ""
    task: str = ""
    positions: tuple[str, ...] = ()
    nbest: tuple[Translation, ...] = ()
