"""Kernels over all keys: (q, k, v, mask, bias, layer_cache) -> mixed values, (batch, heads, tokens, head_width).

Keys and values may have fewer heads than queries; then each serves a group of consecutive query heads. A query without
any visible key gets zeros and finite gradients: a law for every kernel. `weights` computes the attention weights that
the fused `forward` does not materialize.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from . import flex
from .cache.base import CacheLayout, LayerCache, LayoutSpec
from .cache.slots import DenseCache, DenseLayout, RollingCache, RollingLayout, SlotLayout
from .masks import DENSE, NO_REASONS, Mask

# Not cuDNN: with a mask tensor it breaks the law of zeros in bf16, and it failed on decode steps.
MASKED_BACKENDS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class Kernel(nn.Module):
    """The part of attention between its projections."""

    biasable = True  # False: it has no scores to which positions could add
    causal = True  # False: it cannot hide later keys
    unpadded = False  # True: it accepts rows without padding (`Mask.length_runs`)
    weights_note = ""  # how `weights` differ from the softmax over all visible keys
    honors: Sequence[str] = DENSE  # the fields of a mask that it obeys; it refuses the others
    reasons: Mapping[str, str] = NO_REASONS  # why it refuses a field, for fields that a user can cause

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Mask,
        bias: Tensor | None = None,
        layer_cache: LayerCache | None = None,
    ) -> Tensor:
        raise NotImplementedError

    def weights(self, q: Tensor, k: Tensor, mask: Mask, bias: Tensor | None = None) -> Tensor:
        """(batch, heads, queries, keys); each row sums to one, or to zero if no key is visible."""
        raise NotImplementedError

    def check_mask(self, mask: Mask) -> None:
        """Refuse fields that it does not honor. Kernels that use `Mask.visible` need no other check."""
        mask.require(type(self).__name__, self.honors, self.reasons)

    def prepare(self, mask: Mask, queries: int, keys: int, device: torch.device) -> None:
        """Build the form of `mask` that `forward` uses. One per stack call serves all layers."""
        if not mask.causal_only:
            mask.visible(queries, keys, device)

    def cache_layout(self, capacity: int | None) -> LayoutSpec:
        """The layout class for this kernel's cache and its settings. Layers with equal answers share a layout."""
        return DenseLayout, capacity

    def layer_cache(self, layout: CacheLayout, rows: int, heads: int, head_width: int, like: Tensor) -> LayerCache:
        assert isinstance(layout, SlotLayout)
        return DenseCache(layout, rows, heads, head_width, like)


class SoftmaxKernel(Kernel):
    """softmax(q kᵀ · scale + bias) v, by torch's fused attention. `scale` None is 1/√head_width."""

    unpadded = True

    def __init__(self, dropout: float = 0.0, scale: float | None = None) -> None:
        super().__init__()
        self.dropout, self.scale = dropout, scale

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Mask,
        bias: Tensor | None = None,
        layer_cache: LayerCache | None = None,
    ) -> Tensor:
        drop = self.dropout if self.training else 0.0
        if bias is None and mask.causal_only:
            return self._attend_causal(q, k, v, drop)
        if bias is None and mask.length_runs is not None and mask.only("positions", "segments", "length_runs"):
            return self._attend_length_runs(q, k, v, mask.length_runs, drop)
        if bias is None and not drop and flex.supports_packed(mask, q.device):
            return flex.attend_packed(q, k, v, mask, self.scale)
        attn_mask = sdpa_mask(mask, bias, q, k)
        if q.size(1) == k.size(1):
            return self._sdpa(q, k, v, attn_mask, drop)
        groups, attn_mask = group_query_heads(q, attn_mask, k.size(1))
        return torch.unflatten(self._sdpa(groups, k, v, attn_mask, drop), 2, (-1, q.size(2))).flatten(1, 2)

    def _attend_causal(self, q: Tensor, k: Tensor, v: Tensor, drop: float) -> Tensor:
        if q.is_cuda and q.dtype == torch.float32:  # SDPA would materialize all scores for shared key heads in fp32
            k, v = repeat_heads(k, q.size(1)), repeat_heads(v, q.size(1))
        return F.scaled_dot_product_attention(
            q, k, v, None, drop, is_causal=True, scale=self.scale, enable_gqa=q.size(1) != k.size(1)
        )

    def _attend_length_runs(
        self, q: Tensor, k: Tensor, v: Tensor, runs: tuple[tuple[int, int], ...], drop: float
    ) -> Tensor:
        """Attend within each run of texts of equal length as one batch without a mask."""
        begin, mixed = 0, torch.empty_like(q)
        for texts, tokens in runs:
            end = begin + texts * tokens
            q_, k_, v_ = (torch.unflatten(x[0, :, begin:end], 1, (texts, -1)).transpose(0, 1) for x in (q, k, v))
            out = F.scaled_dot_product_attention(
                q_, k_, v_, None, drop, scale=self.scale, enable_gqa=q.size(1) != k.size(1)
            )
            torch.unflatten(mixed[0, :, begin:end], 1, (texts, -1)).transpose(0, 1).copy_(out)
            begin = end
        return mixed

    def _sdpa(self, q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, drop: float) -> Tensor:
        if attn_mask is None or not q.is_cuda:
            return F.scaled_dot_product_attention(q, k, v, attn_mask, drop, scale=self.scale)
        with sdpa_kernel(MASKED_BACKENDS):
            return F.scaled_dot_product_attention(q, k, v, attn_mask, drop, scale=self.scale)

    def prepare(self, mask: Mask, queries: int, keys: int, device: torch.device) -> None:
        if flex.supports_packed(mask, device):
            flex.packed_block_mask(mask, queries, keys, device)
        elif mask.length_runs is None:
            super().prepare(mask, queries, keys, device)

    def weights(self, q: Tensor, k: Tensor, mask: Mask, bias: Tensor | None = None) -> Tensor:
        """(batch, heads, queries, keys); each row sums to one, or to zero if no key is visible."""
        scores = (
            q
            @ repeat_heads(k, q.size(1)).transpose(-2, -1)
            * (q.size(-1) ** -0.5 if self.scale is None else self.scale)
        )
        return masked_softmax(scores, mask, bias)


class RollingSoftmaxKernel(SoftmaxKernel):
    """Softmax attention whose cache keeps only the last `window` keys."""

    def __init__(self, window: int, dropout: float = 0.0) -> None:
        super().__init__(dropout)
        self.window = window

    def cache_layout(self, capacity: int | None) -> LayoutSpec:
        return RollingLayout, self.window, capacity

    def layer_cache(self, layout: CacheLayout, rows: int, heads: int, head_width: int, like: Tensor) -> LayerCache:
        assert isinstance(layout, SlotLayout)
        return RollingCache(layout, rows, heads, head_width, like)


class AdditiveKernel(Kernel):
    """Bahdanau et al. (1409.0473): the score of a query-key pair is vᵀ tanh(q + k)."""

    def __init__(self, head_width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.score, self.dropout = nn.Linear(head_width, 1, bias=False), dropout

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Mask,
        bias: Tensor | None = None,
        layer_cache: LayerCache | None = None,
    ) -> Tensor:
        return F.dropout(self.weights(q, k, mask, bias), self.dropout, self.training) @ repeat_heads(v, q.size(1))

    def weights(self, q: Tensor, k: Tensor, mask: Mask, bias: Tensor | None = None) -> Tensor:
        k = repeat_heads(k, q.size(1))
        scores = self.score(torch.tanh(q[:, :, :, None] + k[:, :, None]))[..., 0]  # (batch, heads, queries, keys)
        return masked_softmax(scores, mask, bias)


def repeat_heads(x: Tensor, heads: int) -> Tensor:
    """Repeat keys, values or sums of them so that every query head has its own."""
    return x if x.size(1) == heads else x.repeat_interleave(heads // x.size(1), 1)


def group_query_heads(q: Tensor, attn_mask: Tensor | None, heads: int) -> tuple[Tensor, Tensor | None]:
    """Merge the query heads that share a key head into one head with more queries; no key is copied."""

    def grouped(x: Tensor) -> Tensor:
        return torch.unflatten(x, 1, (heads, -1)).flatten(2, 3)

    if attn_mask is not None and attn_mask.size(1) > 1:  # a bias with one table per head
        attn_mask = grouped(attn_mask)
    elif attn_mask is not None and attn_mask.size(2) > 1:
        attn_mask = attn_mask.repeat(1, 1, q.size(1) // heads, 1)
    return grouped(q), attn_mask


def sdpa_mask(mask: Mask, bias: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """The mask argument of SDPA: scores with minus infinity for hidden pairs."""
    visible = mask.visible(q.size(2), k.size(2), q.device)
    if bias is not None:
        return bias if visible is None else bias.masked_fill(~visible, -torch.inf)
    if visible is None:
        return None
    zero = q.new_zeros(())  # SDPA would convert booleans to scores in every layer
    return mask.cached(("scores", q.dtype), lambda: zero.expand_as(visible).masked_fill(~visible, -torch.inf))


def masked_softmax(scores: Tensor, mask: Mask, bias: Tensor | None) -> Tensor:
    """Softmax over the visible keys; zeros, with zero gradients, where no key is visible."""
    visible = mask.visible(scores.size(2), scores.size(3), scores.device)
    scores = scores if bias is None else scores + bias
    if visible is not None:
        scores = scores.masked_fill(~visible, -torch.inf)
    all_hidden = scores.amax(-1, keepdim=True) == -torch.inf
    return scores.masked_fill(all_hidden, 0.0).softmax(-1).masked_fill(all_hidden, 0.0)
