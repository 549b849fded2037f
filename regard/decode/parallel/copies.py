"""Fertilities: how often each source token is copied into the decoder input, predicted per token or by the length.

A `Copying` is a distribution over the fertilities (rows, source) of the sources of a batch.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn import functional as F

from ...families.protocols import FertilityModel
from ...parts import Encoded
from ...parts.parallel.fertility import best_fertilities, even_fertilities
from ..search.draw import exponential
from ..search.pool import TIE, first_best


def likeliest(scores: Tensor) -> Tensor:
    """The index of the largest score along the last dimension; ties go to the first."""
    return first_best(scores.flatten(0, -2))[1].view(scores.shape[:-1])


def expected(logprobs: Tensor) -> Tensor:
    """The mean class along the last dimension, rounded half up."""
    classes = torch.arange(logprobs.size(-1), device=logprobs.device, dtype=torch.float64)
    return ((logprobs.double().exp() * classes).sum(-1) + 0.5 + TIE).floor().long()


def likeliest_lengths(logits: Tensor, limits: Tensor, beam: int) -> tuple[Tensor, Tensor]:
    """The likeliest lengths from 1 to the limit of each row (rows,), best first, and their log-probabilities.

    Both are (rows, at most beam). A row with fewer possible lengths repeats its first.
    """
    classes = torch.arange(logits.size(1), device=logits.device)
    possible = (classes > 0) & (classes <= limits[:, None])
    scores = logits.float().log_softmax(-1).masked_fill(~possible, -torch.inf)
    best, lengths = scores.sort(dim=1, descending=True, stable=True)
    finite = best > -torch.inf
    return torch.where(finite, lengths, lengths[:, :1])[:, :beam], torch.where(finite, best, best[:, :1])[:, :beam]


class Copying(ABC):
    """A distribution over the fertilities of the sources of a batch."""

    @abstractmethod
    def likeliest(self) -> Tensor:
        """(rows, source)"""

    @abstractmethod
    def mean(self) -> Tensor:
        """(rows, source): the expected fertilities, rounded."""

    @abstractmethod
    def several(self, keys: Tensor) -> Tensor:
        """(rows, samples, source) for keys (rows, samples). The first are the likeliest."""

    @abstractmethod
    def random(self) -> tuple[Tensor, Tensor]:
        """Fertilities (rows, source) sampled by torch's generator, and their log-probability (rows,)."""

    @abstractmethod
    def of_length(self, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """The likeliest ones (rows, source) that add up to the lengths (rows,), and their log-probability (rows,)."""


class TokenCopying(Copying):
    """A fertility of each source token, independent of the others. Padding has fertility 0."""

    def __init__(self, logits: Tensor, valid: Tensor | None) -> None:
        logprobs = logits.float().log_softmax(-1)
        if valid is not None:
            none = torch.full_like(logprobs[:1, :1], -torch.inf)
            none[..., 0] = 0.0
            logprobs = torch.where(valid[..., None], logprobs, none)
        self.logprobs = logprobs  # (rows, source, classes)

    def likeliest(self) -> Tensor:
        return likeliest(self.logprobs)

    def mean(self) -> Tensor:
        return expected(self.logprobs)

    def several(self, keys: Tensor) -> Tensor:
        _, size, classes = self.logprobs.shape
        places = torch.arange(1, size + 1, device=keys.device)[:, None]
        noise = exponential(keys[:, :, None, None], places, torch.arange(classes, device=keys.device))
        fertilities = (self.logprobs[:, None] - noise.log()).argmax(-1)  # a draw from these probabilities
        fertilities[:, 0] = self.likeliest()
        return fertilities

    def random(self) -> tuple[Tensor, Tensor]:
        fertilities = torch.multinomial(self.logprobs.exp().flatten(0, 1), 1).view(self.logprobs.shape[:2])
        return fertilities, self.logprobs.gather(-1, fertilities[..., None])[..., 0].sum(1)

    def of_length(self, lengths: Tensor) -> tuple[Tensor, Tensor]:
        return best_fertilities(self.logprobs, lengths)


class EvenCopying(Copying):
    """A distribution over target lengths; source tokens are spread evenly over the length. END is not copied."""

    def __init__(self, logits: Tensor, sizes: Tensor, width: int) -> None:
        """sizes (rows,): of the sources without END; width: of the padded sources."""
        self.logprobs, self.sizes, self.width = logits.float().log_softmax(-1), sizes, width  # (rows, lengths)

    def likeliest(self) -> Tensor:
        return self._spread(likeliest(self.logprobs))

    def mean(self) -> Tensor:
        return self._spread(expected(self.logprobs))

    def several(self, keys: Tensor) -> Tensor:
        """The likeliest lengths: a beam of them."""
        rows, samples = keys.shape
        longest = self.sizes.new_full((rows,), self.logprobs.size(1) - 1)
        lengths, _ = likeliest_lengths(self.logprobs, longest, samples)
        lengths = torch.cat([lengths, lengths[:, :1].expand(-1, samples - lengths.size(1))], 1)
        fertilities = even_fertilities(lengths.flatten(), self.sizes.repeat_interleave(samples), self.width)
        return fertilities.view(rows, samples, -1)

    def random(self) -> tuple[Tensor, Tensor]:
        lengths = torch.multinomial(self.logprobs.exp(), 1)
        return self._spread(lengths[:, 0]), self.logprobs.gather(1, lengths)[:, 0]

    def of_length(self, lengths: Tensor) -> tuple[Tensor, Tensor]:
        predicted = lengths.clamp(max=self.logprobs.size(1) - 1)[:, None]
        return self._spread(lengths), self.logprobs.gather(1, predicted)[:, 0]

    def _spread(self, lengths: Tensor) -> Tensor:
        return even_fertilities(lengths, self.sizes, self.width)


def predict_copying(model: FertilityModel, encoded: Encoded) -> Copying:
    """The fertilities that a model predicts, token by token or by the length."""
    if model.fertilities:
        return TokenCopying(model.fertility_logits(encoded), encoded.valid)
    rows, width = encoded.states.shape[:2]
    sizes = encoded.states.new_full((rows,), width, dtype=torch.long) if encoded.valid is None else encoded.valid.sum(1)
    return EvenCopying(model.length_logits(encoded), sizes - 1, width)


def limit_fertilities(fertilities: Tensor, limits: Tensor) -> Tensor:
    """Fertilities (rows, source) truncated to at most `limits` (rows,) copies; the first copies remain."""
    ends = torch.minimum(fertilities.cumsum(1), limits[:, None])
    return ends - F.pad(ends[:, :-1], (1, 0))
