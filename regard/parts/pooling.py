"""Pool the vectors of a text's tokens into one."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Pooling = Literal["mean", "first", "max", "last"]


def pool(states: Tensor, valid: Tensor | None, how: Pooling = "mean", normalized: bool = False) -> Tensor:
    """states (batch, tokens, width), valid (batch, tokens) bool -> (batch, width). Padding is at the end."""
    if how == "first":
        vectors = states[:, 0]
    elif how == "last":
        last = states.size(1) - 1 if valid is None else valid.sum(1).sub(1).clamp(min=0)
        vectors = states[torch.arange(len(states), device=states.device), last]
    elif how == "max":
        vectors = (states if valid is None else states.masked_fill(~valid[..., None], -torch.inf)).amax(1)
    elif valid is None:
        vectors = states.sum(1) / states.size(1)
    else:
        vectors = states.masked_fill(~valid[..., None], 0.0).sum(1) / valid.sum(1, keepdim=True).clamp(min=1)
    return F.normalize(vectors, dim=-1) if normalized else vectors
