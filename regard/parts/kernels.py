"""Kernels that look at every key: (q, k, v, mask, bias, memory) -> mixed values, (batch, heads, tokens, head_width).

Keys and values may have fewer heads than queries: then each serves a group of query heads that stand side by side.
A query that may see nothing gets zeros, and its gradients are finite: a law for every kernel.
`weights` is the visible path: what each query gives to each key. Nothing is lost by running the fused one.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from . import flex
from .cache.base import LayerCache
from .cache.slots import DenseCache, DenseLayout, RollingCache, RollingLayout
from .masks import Mask

# With a mask tensor, cuDNN breaks the law of zeros in bf16 and failed on decode steps: it is never asked.
MASKED = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class Kernel(nn.Module):
    """What attention does between its projections."""

    biasable = True  # has it scores to which positions can add?
    causal = True  # can it keep the future hidden?
    unpadded = False  # does it know texts laid end to end (`Mask.runs`)?

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None = None, memory: LayerCache | None = None
    ) -> Tensor:
        raise NotImplementedError

    def prepare(self, mask: Mask, queries: int, keys: int, device: torch.device) -> None:
        """Build the form of `mask` that `forward` will ask for, so that one per stack call serves all layers."""
        if not mask.causal_only:
            mask.visible(queries, keys, device)

    def cache_layout(self, capacity: int | None) -> tuple[Any, ...]:
        """The kind of book this kernel's memory is kept by, and its settings; equal answers share one book."""
        return DenseLayout, capacity

    def layer_cache(self, book: Any, rows: int, heads: int, head_width: int, like: Tensor) -> LayerCache:
        return DenseCache(book, rows, heads, head_width, like)


class SoftmaxKernel(Kernel):
    """softmax(q kᵀ · scale + bias) v, by torch's fused attention. `scale` None is 1/√head_width."""

    unpadded = True

    def __init__(self, dropout: float = 0.0, scale: float | None = None) -> None:
        super().__init__()
        self.dropout, self.scale = dropout, scale

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None = None, memory: LayerCache | None = None
    ) -> Tensor:
        drop = self.dropout if self.training else 0.0
        if bias is None and mask.causal_only:
            return self._causal(q, k, v, drop)
        if bias is None and mask.length_runs is not None:
            return self._by_length(q, k, v, mask.length_runs, drop)
        if bias is None and not drop and flex.serves(mask, q.device):
            return flex.mixed(q, k, v, mask, self.scale)
        seen = hidden(mask, bias, q, k)
        if q.size(1) == k.size(1):
            return self._seeing(q, k, v, seen, drop)
        groups, seen = in_groups(q, seen, k.size(1))
        return torch.unflatten(self._seeing(groups, k, v, seen, drop), 2, (-1, q.size(2))).flatten(1, 2)

    def _causal(self, q: Tensor, k: Tensor, v: Tensor, drop: float) -> Tensor:
        if q.is_cuda and q.dtype == torch.float32:  # there, shared key heads in fp32 would cost a table of all scores
            k, v = spread(k, q.size(1)), spread(v, q.size(1))
        return F.scaled_dot_product_attention(
            q, k, v, None, drop, is_causal=True, scale=self.scale, enable_gqa=q.size(1) != k.size(1)
        )

    def _by_length(self, q: Tensor, k: Tensor, v: Tensor, runs: tuple[tuple[int, int], ...], drop: float) -> Tensor:
        """Each run of texts of one length as a batch, in which every token sees every other."""
        begin, mixed = 0, torch.empty_like(q)
        for texts, tokens in runs:
            end = begin + texts * tokens
            q_, k_, v_ = (torch.unflatten(x[0, :, begin:end], 1, (texts, -1)).transpose(0, 1) for x in (q, k, v))
            found = F.scaled_dot_product_attention(
                q_, k_, v_, None, drop, scale=self.scale, enable_gqa=q.size(1) != k.size(1)
            )
            torch.unflatten(mixed[0, :, begin:end], 1, (texts, -1)).transpose(0, 1).copy_(found)
            begin = end
        return mixed

    def _seeing(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, drop: float) -> Tensor:
        if seen is None or not q.is_cuda:
            return F.scaled_dot_product_attention(q, k, v, seen, drop, scale=self.scale)
        with sdpa_kernel(MASKED):
            return F.scaled_dot_product_attention(q, k, v, seen, drop, scale=self.scale)

    def prepare(self, mask: Mask, queries: int, keys: int, device: torch.device) -> None:
        if flex.serves(mask, device):
            flex.blocked(mask, queries, keys, device)
        elif mask.length_runs is None:
            super().prepare(mask, queries, keys, device)

    def weights(self, q: Tensor, k: Tensor, mask: Mask, bias: Tensor | None = None) -> Tensor:
        """(batch, heads, queries, keys), each row summing to one, or to zero where nothing is visible."""
        scores = q @ spread(k, q.size(1)).transpose(-2, -1) * (q.size(-1) ** -0.5 if self.scale is None else self.scale)
        return normalised(scores, mask, bias)


class RollingSoftmaxKernel(SoftmaxKernel):
    """Softmax that, from call to call, remembers only the last `window` keys."""

    def __init__(self, window: int, dropout: float = 0.0) -> None:
        super().__init__(dropout)
        self.window = window

    def cache_layout(self, capacity: int | None) -> tuple[Any, ...]:
        return RollingLayout, self.window, capacity

    def layer_cache(self, book: Any, rows: int, heads: int, head_width: int, like: Tensor) -> LayerCache:
        return RollingCache(book, rows, heads, head_width, like)


class AdditiveKernel(Kernel):
    """Bahdanau et al. (1409.0473): the score of a pair is vᵀ tanh(q + k)."""

    def __init__(self, head_width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.score, self.dropout = nn.Linear(head_width, 1, bias=False), dropout

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None = None, memory: LayerCache | None = None
    ) -> Tensor:
        return F.dropout(self.weights(q, k, mask, bias), self.dropout, self.training) @ spread(v, q.size(1))

    def weights(self, q: Tensor, k: Tensor, mask: Mask, bias: Tensor | None = None) -> Tensor:
        k = spread(k, q.size(1))
        scores = self.score(torch.tanh(q[:, :, :, None] + k[:, :, None]))[..., 0]  # (batch, heads, queries, keys)
        return normalised(scores, mask, bias)


def spread(x: Tensor, heads: int) -> Tensor:
    """Keys or values, or sums of them, once for every query head."""
    return x if x.size(1) == heads else x.repeat_interleave(heads // x.size(1), 1)


def in_groups(q: Tensor, seen: Tensor | None, heads: int) -> tuple[Tensor, Tensor | None]:
    """The query heads that share a key head become one head, their queries one after another: no key is copied."""

    def gathered(x: Tensor) -> Tensor:
        return torch.unflatten(x, 1, (heads, -1)).flatten(2, 3)

    if seen is not None and seen.size(1) > 1:  # a bias: every head has its own
        seen = gathered(seen)
    elif seen is not None and seen.size(2) > 1:
        seen = seen.repeat(1, 1, q.size(1) // heads, 1)
    return gathered(q), seen


def hidden(mask: Mask, bias: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """What SDPA takes as its mask: booleans, or scores with minus infinity where nothing is to be seen."""
    seen = mask.visible(q.size(2), k.size(2), q.device)
    if bias is not None:
        return bias if seen is None else bias.masked_fill(~seen, -torch.inf)
    if seen is None or not q.is_cuda:
        return seen
    empty = q.new_zeros(())  # there booleans would become scores anew in every layer
    return mask.cached(("scores", q.dtype), lambda: empty.expand_as(seen).masked_fill(~seen, -torch.inf))


def normalised(scores: Tensor, mask: Mask, bias: Tensor | None) -> Tensor:
    seen = mask.visible(scores.size(2), scores.size(3), scores.device)
    scores = scores if bias is None else scores + bias
    if seen is not None:
        scores = scores.masked_fill(~seen, -torch.inf)
    blind = scores.amax(-1, keepdim=True) == -torch.inf
    return scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)  # zeros, also in the gradient
