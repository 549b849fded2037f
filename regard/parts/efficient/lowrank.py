"""Linformer's low-rank attention (2006.04768): keys and values of all positions are projected to a few vectors."""

from typing import Literal

import torch
from torch import Tensor, nn

from ..cache.base import LayerCache
from ..kernels import Kernel, SoftmaxKernel, repeat_heads
from ..masks import FIELDS, Mask

Sharing = Literal["none", "heads", "key-value", "layers"]
ALL_VISIBLE = Mask()
HIDES_NONE = "lowrank attention projects all positions together and cannot hide some; use dense or window"


class LowRankKernel(Kernel):
    """O(tokens · rank), for texts of at most `tokens` tokens.

    `sharing` of the projections: none (one per head), by all heads of a layer (`heads`), also by keys and values
    (`key-value`), or by all layers of a stack (`layers`).
    """

    biasable = False
    causal = False
    weights_note = "projected keys: products of attention and projection, which may be negative"
    honors = ("positions", "key_valid")
    reasons = dict.fromkeys(FIELDS, HIDES_NONE) | {
        "segments": "lowrank attention projects a row as one text and cannot pack; set data.packed=false, or use "
        "model.attention.kind=dense or window"
    }

    def __init__(self, heads: int, rank: int, tokens: int, sharing: Sharing = "heads", dropout: float = 0.0) -> None:
        super().__init__()
        self.context, self.sharing, self.inner = tokens, sharing, SoftmaxKernel(dropout)
        maps = heads if sharing == "none" else 1
        self.keys = PositionProjection(maps, rank, tokens)
        self.values = self.keys if sharing in ("key-value", "layers") else PositionProjection(maps, rank, tokens)

    def share_with(self, first: "LowRankKernel") -> None:
        """Use the projections of the first layer, if all layers share them."""
        if self.sharing == "layers":
            self.keys = self.values = first.keys

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Mask,
        bias: Tensor | None = None,
        layer_cache: LayerCache | None = None,
    ) -> Tensor:
        self.check_mask(mask)
        self._check_length(k.size(2))
        mixed: Tensor = self.inner(q, self.keys(k, mask), self.values(v, mask), ALL_VISIBLE)
        return mixed

    def _check_length(self, tokens: int) -> None:
        if tokens > self.context:
            raise ValueError(
                f"a text of {tokens} tokens is longer than the {self.context} positions of lowrank attention; "
                "shorten it, or train with more (model.attention.tokens)"
            )

    def weights(self, q: Tensor, k: Tensor, mask: Mask, bias: Tensor | None = None) -> Tensor:
        """The weight of each value for each query. Projections may be negative: rows are no distributions."""
        weights = self.inner.weights(q, self.keys(k, mask), ALL_VISIBLE)  # (batch, heads, queries, rank)
        identity = torch.eye(k.size(2), dtype=k.dtype, device=k.device).expand(len(k), k.size(1), -1, -1)
        return weights @ repeat_heads(self.values(identity, mask), q.size(1))

    def prepare(self, mask: Mask, queries: int, keys: int, device: torch.device) -> None:
        """It needs no mask tensor."""


class PositionProjection(nn.Module):
    """A linear map over positions: (batch, heads, tokens, head_width) -> (batch, heads, rank, head_width).

    It starts as means over neighboring tokens, the same for keys and values, so that a key and its value stem from the
    same tokens. With rank = tokens it starts as dense attention. The weights are stored tokens / rank times as large,
    so that a mean starts as ones: Adam's steps are as large for small weights as for large ones and would drown them.
    """

    def __init__(self, maps: int, rank: int, tokens: int) -> None:
        super().__init__()
        near = torch.nn.functional.one_hot(torch.arange(tokens) * rank // tokens, rank).T.float()  # (rank, tokens)
        means = near / near.sum(1, keepdim=True).clamp(min=1)
        self.scale = min(rank / tokens, 1.0)
        self.weight = nn.Parameter(means.repeat(maps, 1, 1) / self.scale)

    def map(self, tokens: int) -> Tensor:
        """(maps, rank, tokens)"""
        weight: Tensor = self.weight[:, :, :tokens] * self.scale
        return weight

    def forward(self, x: Tensor, mask: Mask) -> Tensor:
        """Hidden tokens become zeros before the projection, which would mix them in otherwise."""
        x = x if mask.key_valid is None else x.masked_fill(~mask.key_valid[:, None, :, None], 0.0)
        if mask.positions is not None:  # the position counts, not the index in the row
            index = mask.positions[:, None, :, None].expand_as(x)
            x = x.new_zeros(*x.shape[:2], self.weight.size(2), x.size(3)).scatter_add(2, index, x)
        weight = self.map(x.size(2)).to(x.dtype)
        if len(weight) == 1:
            return torch.einsum("rn,bhnd->bhrd", weight[0], x)
        return torch.einsum("hrn,bhnd->bhrd", weight, x)
