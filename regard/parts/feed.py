"""Feed-forward: two linear maps around an activation; plain, gated, or seeing a token's neighbours.

A feed is handed the mask of its layer: most look at one token only and pass over it.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .dropout import Dropout
from .masks import Mask

Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),  # GPT-2's and T5 1.1's "gelu_new"
    "silu": F.silu,
}
IN_PLACE: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": F.relu_,
    "gelu": torch.ops.aten.gelu_,
    "gelu_tanh": partial(torch.ops.aten.gelu_, approximate="tanh"),
    "silu": partial(F.silu, inplace=True),
}


def activated(x: Tensor, act: Activation) -> Tensor:
    """`x` is given away: without gradients its memory is used again, which is a large part of what a layer needs."""
    return ACTIVATIONS[act](x) if torch.is_grad_enabled() else IN_PLACE[act](x)


class FeedForward(nn.Module):
    def __init__(
        self, width: int, inner: int, act: Activation = "relu", bias: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(width, inner, bias=bias), nn.Linear(inner, width, bias=bias)
        self.act, self.dropout = act, Dropout(dropout)

    def forward(self, x: Tensor, mask: Mask = Mask()) -> Tensor:
        out: Tensor = self.out(self.dropout(activated(self.into(x), self.act)))
        return out


class GatedFeedForward(FeedForward):
    """Shazeer (2002.05202): one more linear map, activated, multiplies the first."""

    def __init__(
        self, width: int, inner: int, act: Activation = "gelu_tanh", bias: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__(width, inner, act, bias, dropout)
        self.gate = nn.Linear(width, inner, bias=bias)

    def forward(self, x: Tensor, mask: Mask = Mask()) -> Tensor:
        out: Tensor = self.out(self.dropout(activated(self.gate(x), self.act) * self.into(x)))
        return out


class ConvFeedForward(FeedForward):
    """The first map reads a token beside its neighbours, `size` tokens in all: a convolution over the row.

    A neighbour that is padding, or of another sequence in the same row, counts as zeros, as beyond the row's ends.
    """

    causal = False  # its past would have to be remembered between steps

    def __init__(self, width: int, inner: int, size: int = 3, act: Activation = "relu", dropout: float = 0.0) -> None:
        super().__init__(width, inner, act, dropout=dropout)
        self.into, self.size = nn.Linear(size * width, inner), size

    def forward(self, x: Tensor, mask: Mask = Mask()) -> Tensor:
        return super().forward(self.near(x, mask))

    def near(self, x: Tensor, mask: Mask) -> Tensor:
        return neighbours(x, mask, self.size // 2, self.size // 2)


def neighbours(x: Tensor, mask: Mask, before: int, behind: int) -> Tensor:
    """(batch, tokens, (before + 1 + behind) · width): every token between so many others, side by side."""
    tokens, size = x.size(1), before + 1 + behind
    x = (
        x if mask.key_valid is None else x.masked_fill(~mask.key_valid[:, -tokens:, None], 0.0)
    )  # others may stand before them
    rows = F.pad(x, (0, 0, before, behind))
    seen = [rows[:, i : i + tokens] for i in range(size)]
    if mask.segments is not None:
        theirs = F.pad(mask.segments, (before, behind))  # what lies beyond is zeros already
        same = [theirs[:, i : i + tokens] == mask.segments for i in range(size)]
        seen = [each.masked_fill(~own[..., None], 0.0) for each, own in zip(seen, same, strict=True)]
    return torch.cat(seen, -1)
