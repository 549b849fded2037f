"""Requests and results of tasks that need no search: labels, numbers, tags, masks, boxes."""

from dataclasses import dataclass

from .base import Request, Result
from .media import AnyItem, Image


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
    """A text, or a pair of texts, to classify."""

    text: str
    top: int | None = None  # number of labels in the result; 0: all
    text_pair: str | None = None  # the second text of a pair


@dataclass(frozen=True)
class MultiLabelRequest(ClassifyRequest):
    """A text to give any number of labels."""

    threshold: float | None = None  # the probability from which a text has a label


@dataclass(frozen=True)
class RegressionRequest(Request):
    """A text, or a pair of texts, to rate."""

    text: str
    text_pair: str | None = None  # the second text of a pair


@dataclass(frozen=True)
class ClassifyImageRequest(Request):
    """An image to classify."""

    image: Image
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
class RegressionResult(Result):
    """The predicted number of a text. An empty text has none."""

    value: float | None


@dataclass(frozen=True)
class TagRequest(Request):
    """A sentence as words, or as text: CoNLL-U, columns, a JSON object, or plain text."""

    sentence: str | tuple[str, ...]
    top: int | None = None  # number of candidates per word; 0: none


@dataclass(frozen=True)
class TaggedSpan:
    """Words of a plain text that tags such as B-PER and I-PER mark together, with their characters."""

    label: str
    text: str
    start: int
    end: int  # after the last character


@dataclass(frozen=True)
class TagResult(Result):
    """The tags of the words of a sentence."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    probabilities: tuple[float, ...]
    top: tuple[tuple[LabelProbability, ...], ...] = ()  # per word
    text: str | None = None  # a sentence that was given as text, with its tags, in its own format
    offsets: tuple[tuple[int, int], ...] = ()  # per word of a plain text: its first character, and after its last
    spans: tuple[TaggedSpan, ...] = ()  # of a plain text, if the tags mark some


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


@dataclass(frozen=True)
class DetectRequest(Request):
    """An image in which to detect objects."""

    image: Image
    threshold: float | None = None  # of the scores
    top: int | None = None  # number of objects in the result, at most; 0: all


@dataclass(frozen=True)
class DetectedObject:
    """An object with its label, score and box."""

    label: str
    score: float
    box: tuple[float, float, float, float]  # left, top, right, bottom in pixels of the original image


@dataclass(frozen=True)
class DetectResult(Result):
    """The objects of an image, the likeliest first, and its size in pixels."""

    width: int
    height: int
    objects: tuple[DetectedObject, ...]


@dataclass(frozen=True)
class ContrastiveRequest(Request):
    """An item to choose a label for: the text that is nearest to it."""

    item: AnyItem
    labels: tuple[str, ...] | None = None  # at least two
    template: str | None = None  # the text of a label, such as "a photo of {}"
    top: int | None = None
