"""Naive Bayes over n-grams beside the class head of a finished model, for any family that predicts labels of texts.

The counts are the model's child `ngrams`, so they move, train and are saved with it; the names of its other tensors do
not change.
"""

from dataclasses import replace
from typing import Protocol, TypeVar, cast

from torch import Tensor, nn

from ..config.data.texts import NGrams
from ..parts import Encoded, Inputs
from ..parts.ngrams import NGramCounts

NGRAMS_MODULE = "ngrams"  # name of the child
M = TypeVar("M", bound=nn.Module)


class Labeler(Protocol):
    """What n-grams need of a model."""

    def encode(self, text: Inputs) -> Encoded: ...
    def label_logits(self, encoded: Encoded) -> Tensor: ...


class NGramLabeler(Labeler, Protocol):
    """A model of labels with n-grams."""

    ngrams: NGramCounts

    def label_logits(self, encoded: Encoded, own_labels: Tensor | None = None) -> Tensor:
        """(batch, labels). `own_labels` (batch, labels) are those of training texts, whose own counts are left out."""


def attach_ngrams(model: M, settings: NGrams, vocab: int, labels: int, pairs: bool = False) -> M:
    """Add the logits of n-grams to those of the class head, in place. Nothing changes if `settings.order` is 0."""
    if not settings.order:
        return model
    s = settings
    overlap = pairs and s.overlap and s.words and s.characters > 0
    counts = NGramCounts(vocab, labels, s.order, s.buckets, s.words, s.characters, overlap)
    model.add_module(NGRAMS_MODULE, counts)
    original = cast(type[Labeler], type(model))

    def encode(self: NGramLabeler, text: Inputs) -> Encoded:
        return replace(original.encode(self, text), text=text)

    def label_logits(self: NGramLabeler, encoded: Encoded, own_labels: Tensor | None = None) -> Tensor:
        assert encoded.text is not None
        logits: Tensor = original.label_logits(self, encoded) + self.ngrams(encoded.text, own_labels)
        return logits

    methods = {"__module__": original.__module__, "encode": encode, "label_logits": label_logits}
    model.__class__ = type(original.__name__, (original,), methods)
    return model


def ngrams_of(model: nn.Module) -> NGramCounts | None:
    """The n-grams of a model, or None."""
    module = model._modules.get(NGRAMS_MODULE)
    return module if isinstance(module, NGramCounts) else None
