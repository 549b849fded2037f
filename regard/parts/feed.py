"""Feed-forward: two linear maps around an activation; plain, gated or with a convolution over neighboring tokens.

Each receives the mask of its layer; only the convolution uses it.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .dropout import Dropout
from .masks import Mask

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "quick_gelu"]


def quick_gelu(x: Tensor) -> Tensor:
    """CLIP's approximation of GELU."""
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),  # GPT-2's and T5 1.1's "gelu_new"
    "silu": F.silu,
    "quick_gelu": quick_gelu,
}
IN_PLACE: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": F.relu_,
    "gelu": torch.ops.aten.gelu_,
    "gelu_tanh": partial(torch.ops.aten.gelu_, approximate="tanh"),
    "silu": partial(F.silu, inplace=True),
    "quick_gelu": lambda x: x.mul_(torch.sigmoid(1.702 * x)),
}


def activate(x: Tensor, act: Activation) -> Tensor:
    """Activate in place if there are no gradients: `x` is a large part of a layer's memory. The caller gives it up."""
    return ACTIVATIONS[act](x) if torch.is_grad_enabled() else IN_PLACE[act](x)


class FeedForward(nn.Module):
    """Two linear maps with an activation between them."""

    def __init__(
        self, width: int, inner: int, act: Activation = "relu", bias: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(width, inner, bias=bias), nn.Linear(inner, width, bias=bias)
        self.act, self.dropout = act, Dropout(dropout)

    def forward(self, x: Tensor, mask: Mask = Mask()) -> Tensor:
        out: Tensor = self.out(self.dropout(activate(self.into(x), self.act)))
        return out


class GatedFeedForward(FeedForward):
    """Shazeer (2002.05202): the activation of a third linear map gates the first."""

    def __init__(
        self, width: int, inner: int, act: Activation = "gelu_tanh", bias: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__(width, inner, act, bias, dropout)
        self.gate = nn.Linear(width, inner, bias=bias)

    def forward(self, x: Tensor, mask: Mask = Mask()) -> Tensor:
        out: Tensor = self.out(self.dropout(activate(self.gate(x), self.act) * self.into(x)))
        return out


class ConvFeedForward(FeedForward):
    """The first map is a convolution over `size` tokens of the row.

    Padding and tokens of other segments count as zeros, like positions beyond the row's ends.
    """

    causal = False  # it has no cache for past tokens

    def __init__(self, width: int, inner: int, size: int = 3, act: Activation = "relu", dropout: float = 0.0) -> None:
        super().__init__(width, inner, act, dropout=dropout)
        self.into, self.size = nn.Linear(size * width, inner), size

    def forward(self, x: Tensor, mask: Mask = Mask()) -> Tensor:
        return super().forward(self.with_neighbors(x, mask))

    def with_neighbors(self, x: Tensor, mask: Mask) -> Tensor:
        """The tokens beside their neighbors."""
        return gather_neighbors(x, mask, self.size // 2, self.size // 2)


def gather_neighbors(x: Tensor, mask: Mask, before: int, after: int) -> Tensor:
    """(batch, tokens, (before + 1 + after) · width): every token concatenated with its neighbors."""
    tokens, size = x.size(1), before + 1 + after
    if mask.key_valid is not None:  # it may describe cached keys before these tokens
        x = x.masked_fill(~mask.key_valid[:, -tokens:, None], 0.0)
    rows = F.pad(x, (0, 0, before, after))
    neighbors = [rows[:, i : i + tokens] for i in range(size)]
    if mask.segments is not None:
        segments = F.pad(mask.segments, (before, after))  # beyond the ends, the inputs are zeros already
        same = [segments[:, i : i + tokens] == mask.segments for i in range(size)]
        neighbors = [each.masked_fill(~own[..., None], 0.0) for each, own in zip(neighbors, same, strict=True)]
    return torch.cat(neighbors, -1)
