"""One vector for a text, from those of its tokens."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Pooling = Literal["mean", "first", "max"]


def pooled(states: Tensor, real: Tensor, how: Pooling = "mean", normalised: bool = False) -> Tensor:
    """states (batch, tokens, width), real (batch, tokens) bool -> (batch, width); padding is not counted."""
    if how == "first":
        vectors = states[:, 0]
    elif how == "max":
        vectors = states.masked_fill(~real[..., None], -torch.inf).amax(1)
    else:
        vectors = states.masked_fill(~real[..., None], 0.0).sum(1) / real.sum(1, keepdim=True).clamp(min=1)
    return F.normalize(vectors, dim=-1) if normalised else vectors
