"""Feed-forward: two linear maps around an activation, plain or gated."""

from collections.abc import Callable
from functools import partial
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),  # GPT-2's and T5 1.1's "gelu_new"
    "silu": F.silu,
}


class Feed(nn.Module):
    def __init__(
        self, width: int, inner: int, act: Activation = "relu", bias: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(width, inner, bias=bias), nn.Linear(inner, width, bias=bias)
        self.act, self.dropout = act, nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.dropout(ACTIVATIONS[self.act](self.into(x))))
        return out


class Gated(Feed):
    """Shazeer (2002.05202): one more linear map, activated, multiplies the first."""

    def __init__(
        self, width: int, inner: int, act: Activation = "gelu_tanh", bias: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__(width, inner, act, bias, dropout)
        self.gate = nn.Linear(width, inner, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.dropout(ACTIVATIONS[self.act](self.gate(x)) * self.into(x)))
        return out
