"""Attention rollout (2005.00928): how the attention of all layers of an encoder combines."""

from collections.abc import Sequence

import torch
from torch import Tensor


def rollout(layers: Sequence[Tensor]) -> list[Tensor]:
    """The rollout (positions, positions) after every layer, of weights (heads, positions, positions).

    The residual connection counts as much as the mean over the heads. Rows are normalized before they are multiplied,
    so that each is a distribution over the input. It has no meaning for causal attention, where later positions attend
    to more of the input than earlier ones.
    """
    rollouts: list[Tensor] = []
    for weights in layers:
        mixed = weights.mean(0).clamp(min=0)
        mixed = mixed + torch.eye(len(mixed), dtype=mixed.dtype)
        mixed = mixed / mixed.sum(1, keepdim=True)
        rollouts.append(mixed if not rollouts else mixed @ rollouts[-1])
    return rollouts
