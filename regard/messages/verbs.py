"""Requests and results of the other verbs: score, embed, similar, look, align."""

from dataclasses import dataclass

from ..alignment.links import Symmetrization
from ..look.decision import Decision
from .base import Request, Result
from .media import AnyItem


@dataclass(frozen=True)
class ScoreRequest(Request):
    """A known target of an item; of a language model, a text alone."""

    item: AnyItem
    target: str | tuple[str, ...] | None = None  # a text or a label; of several labels, all that the item has
    details: bool = False  # of texts: also the tokens and their log-probabilities


@dataclass(frozen=True)
class ScoreResult(Result):
    """ln P(target | item). With details, tasks that write text give the tokens of the target, too."""

    score: float
    tokens: tuple[str, ...] = ()
    logprobs: tuple[float, ...] = ()  # of the tokens; END comes last


@dataclass(frozen=True)
class EmbedRequest(Request):
    """An item whose vector is wanted."""

    item: AnyItem
    pooling: str | None = None  # mean, first or max; of text encoders
    normalize: bool | None = None  # to length 1


@dataclass(frozen=True)
class EmbedResult(Result):
    """The vector of an item."""

    vector: tuple[float, ...]


@dataclass(frozen=True)
class SimilarRequest(Request):
    """An item, and others to compare it with."""

    item: AnyItem
    others: tuple[AnyItem, ...]
    top: int | None = None  # 0: all


@dataclass(frozen=True)
class Similarity:
    """The number of one of the others, from 0, and its cosine."""

    number: int
    cosine: float


@dataclass(frozen=True)
class SimilarResult(Result):
    """The others by their cosine similarity, the most similar first."""

    ranking: tuple[Similarity, ...]


@dataclass(frozen=True)
class LookRequest(Request):
    """An item whose attention is wanted while the model writes `target`, or its own output."""

    item: AnyItem
    target: str | None = None
    layer: int | None = None  # from 1; None: all


@dataclass(frozen=True)
class LayerAttention:
    """The attention weights of one layer."""

    kind: str  # encoder, decoder, cross, order
    layer: int  # from 1
    queries: str  # the name of the axis
    keys: str
    weights: tuple[tuple[tuple[float, ...], ...], ...]  # heads × queries × keys


@dataclass(frozen=True)
class LookResult(Result):
    """The attention of one item."""

    axes: dict[str, tuple[str, ...]]  # the labels of source, target and prefix
    layers: tuple[LayerAttention, ...]
    logprobs: tuple[float, ...] = ()  # of the tokens of the target; END comes last
    decision: Decision | None = None  # of a classifier with n-grams: what they and the encoder contribute


@dataclass(frozen=True)
class AlignRequest(Request):
    """An item and its known text."""

    item: AnyItem
    target: str
    symmetrization: Symmetrization = "grow-diag-final-and"


@dataclass(frozen=True)
class AlignResult(Result):
    """The words of a text and its translation that belong together, as (source word, target word), both from 0."""

    links: tuple[tuple[int, int], ...]
