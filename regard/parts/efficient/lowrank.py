"""Linformer's low rank (2006.04768): keys and values are mapped from all their places to a few, and looked at there."""

from typing import Literal

import torch
from torch import Tensor, nn

from ..cache.base import LayerCache
from ..kernels import Kernel, SoftmaxKernel, spread
from ..masks import Mask

Sharing = Literal["none", "heads", "key-value", "layers"]
EVERYTHING = Mask()


class LowRankKernel(Kernel):
    """O(tokens · rank). A map is that of one head (`none`), of all heads of a layer (`heads`), of their keys and values
    alike (`key-value`), of all layers of a stack (`layers`). A text has at most as many tokens as the maps have places.
    """

    biasable = False
    causal = False

    def __init__(self, heads: int, rank: int, tokens: int, sharing: Sharing = "heads", dropout: float = 0.0) -> None:
        super().__init__()
        self.context, self.sharing, self.inner = tokens, sharing, SoftmaxKernel(dropout)
        maps = heads if sharing == "none" else 1
        self.keys = PositionProjection(maps, rank, tokens)
        self.values = self.keys if sharing in ("key-value", "layers") else PositionProjection(maps, rank, tokens)

    def join(self, first: "LowRankKernel") -> None:
        """Share what layers share with the first one."""
        if self.sharing == "layers":
            self.keys = self.values = first.keys

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None = None, memory: LayerCache | None = None
    ) -> Tensor:
        self._refuse(mask, k.size(2))
        mixed: Tensor = self.inner(q, self.keys(k, mask), self.values(v, mask), EVERYTHING)
        return mixed

    def _refuse(self, mask: Mask, tokens: int) -> None:
        if mask.segments is not None:
            raise ValueError(
                "lowrank attention maps a row as one text and cannot pack; set data.packed=false, or use "
                "model.attention.kind=dense or window"
            )
        if mask.causal or mask.exclude_self or mask.window is not None:
            raise ValueError("lowrank attention maps all positions together and cannot hide some; use dense or window")
        if tokens > self.context:
            raise ValueError(
                f"a text of {tokens} tokens is longer than the {self.context} places that lowrank attention maps; "
                "shorten it, or train with more (model.attention.tokens)"
            )

    def weights(self, q: Tensor, k: Tensor, mask: Mask, bias: Tensor | None = None) -> Tensor:
        """How much of each value a query gets. Maps may be negative: no row is a distribution."""
        looks = self.inner.weights(q, self.keys(k, mask), EVERYTHING)  # (batch, heads, queries, rank)
        own = torch.eye(k.size(2), dtype=k.dtype, device=k.device).expand(len(k), k.size(1), -1, -1)
        return looks @ spread(self.values(own, mask), q.size(1))

    def prepare(self, mask: Mask, queries: int, keys: int, device: torch.device) -> None:
        """No mask is ever built."""


class PositionProjection(nn.Module):
    """A linear map over places: (batch, heads, tokens, head_width) -> (batch, heads, rank, head_width).

    It begins as means over neighbours, the same for keys and values, so that what is found by a key is the value of the
    same tokens; with as many places as tokens it begins as dense attention. Its numbers are kept tokens / rank times as
    large, so that a mean begins as ones: Adam's steps, as long for small numbers as for large, would drown it.
    """

    def __init__(self, maps: int, rank: int, tokens: int) -> None:
        super().__init__()
        near = torch.nn.functional.one_hot(torch.arange(tokens) * rank // tokens, rank).T.float()  # (rank, tokens)
        means = near / near.sum(1, keepdim=True).clamp(min=1)
        self.scale = min(rank / tokens, 1.0)
        self.weight = nn.Parameter(means.repeat(maps, 1, 1) / self.scale)

    def map(self, tokens: int) -> Tensor:
        """(maps, rank, tokens)"""
        cut: Tensor = self.weight[:, :, :tokens] * self.scale
        return cut

    def forward(self, x: Tensor, mask: Mask) -> Tensor:
        """What the mask hides is zero before it is mapped, or it would be seen all the same."""
        x = x if mask.key_valid is None else x.masked_fill(~mask.key_valid[:, None, :, None], 0.0)
        if mask.positions is not None:  # a token is where it says it is, not where it stands in the row
            places = mask.positions[:, None, :, None].expand_as(x)
            x = x.new_zeros(*x.shape[:2], self.weight.size(2), x.size(3)).scatter_add(2, places, x)
        weight = self.map(x.size(2)).to(x.dtype)
        if len(weight) == 1:
            return torch.einsum("rn,bhnd->bhrd", weight[0], x)
        return torch.einsum("hrn,bhnd->bhrd", weight, x)
