"""Requests and results of predictors: frozen dataclasses, from which a server derives its schema.

A result never depends on the other requests of a call. A request field that is None takes the value of the run.
"""

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypeAlias

from pydantic import Field

from ..config.strategies import DecodeStrategy, ParallelStrategy, TokenRules
from ..messages.base import Request, Result

Strategy: TypeAlias = Annotated[DecodeStrategy, Field(discriminator="kind")]
TranslateStrategy: TypeAlias = Annotated[DecodeStrategy | ParallelStrategy, Field(discriminator="kind")]


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


# --- labels and tokens from texts ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelProbability:
    """A label with its probability."""

    label: str
    probability: float


@dataclass(frozen=True)
class TokenProbability:
    """A token with its probability."""

    token: str
    probability: float


@dataclass(frozen=True)
class ClassifyRequest(Request):
    """A text to classify."""

    text: str
    top: int | None = None  # number of labels in the result; 0: all
    text_pair: str | None = None  # the second text of a pair


@dataclass(frozen=True)
class MultiLabelRequest(Request):
    """A text to give any number of labels."""

    text: str
    top: int | None = None  # number of labels in `top` of the result; 0: all
    text_pair: str | None = None  # the second text of a pair
    threshold: float | None = None  # the probability from which a text has a label


@dataclass(frozen=True)
class ClassifyImageRequest(Request):
    """An image to classify."""

    image: Any  # a path, bytes, a Pillow image, or an array
    top: int | None = None  # number of labels in the result; 0: all


@dataclass(frozen=True)
class ClassifyResult(Result):
    """The likeliest label, and the `top` ones. An empty text has none."""

    label: str | None
    probability: float | None
    top: tuple[LabelProbability, ...]

    @property
    def score(self) -> float | None:
        """The probability of the label, under the name that results of all image tasks have."""
        return self.probability


@dataclass(frozen=True)
class MultiLabelResult(Result):
    """The labels of a text, the likeliest first, and the `top` ones of all. An empty text has none."""

    labels: tuple[LabelProbability, ...]
    top: tuple[LabelProbability, ...]


@dataclass(frozen=True)
class RegressionRequest(Request):
    """A text to rate."""

    text: str
    text_pair: str | None = None  # the second text of a pair


@dataclass(frozen=True)
class RegressionResult(Result):
    """The predicted number of a text. An empty text has none."""

    value: float | None


@dataclass(frozen=True)
class TagRequest(Request):
    """A sentence as words, or as text: CoNLL-U, columns, a JSON object, or words between spaces."""

    sentence: str | tuple[str, ...]
    top: int | None = None  # number of candidates per word; 0: none


@dataclass(frozen=True)
class TagResult(Result):
    """The tags of the words of a sentence."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    probabilities: tuple[float, ...]
    top: tuple[tuple[LabelProbability, ...], ...] = ()  # per word
    text: str | None = None  # a sentence that was given as text, with its tags, in its own format


@dataclass(frozen=True)
class MaskedRequest(Request):
    """A text with <mask> or [MASK]."""

    text: str
    top: int | None = None  # number of candidates per mask; 0: one


@dataclass(frozen=True)
class MaskedResult(Result):
    """The predictions for every mask of a text."""

    text: str  # with the likeliest tokens in place of the masks
    masks: tuple[tuple[TokenProbability, ...], ...]  # per mask


# --- boxes from images -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DetectRequest(Request):
    """An image in which to detect objects."""

    image: Any  # a path, bytes, a Pillow image, an array, or a tensor
    threshold: float | None = None  # of the scores
    top: int | None = None  # number of objects in the result, at most


class DetectedObject(NamedTuple):
    """An object with its label, score and box."""

    label: str
    score: float
    box: tuple[float, float, float, float]  # left, top, right, bottom in pixels of the original image


@dataclass(frozen=True)
class DetectResult(Result):
    """The objects of an image, the likeliest first, and its size in pixels."""

    objects: tuple[DetectedObject, ...]
    width: int
    height: int


# --- items and texts in one space ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ContrastiveRequest(Request):
    """An item to choose a label for: the text that is nearest to it."""

    item: Any  # a text; an image or a recording, if the run reads them
    labels: tuple[str, ...] | None = None  # at least two
    template: str | None = None  # the text of a label, such as "a photo of {}"
    top: int | None = None
