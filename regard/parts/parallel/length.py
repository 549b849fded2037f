"""Prediction of the length of a target from its encoded source."""

import torch
from torch import Tensor, nn

from ..pooling import pool


class LengthHead(nn.Module):
    """Scores of target lengths from 0 to `longest`, END not counted.

    The score of a length is that of the length itself and that of its difference from the length of the source: what
    is learned about a difference holds for sources of all lengths.
    """

    def __init__(self, width: int, longest: int) -> None:
        super().__init__()
        self.longest = longest
        self.length = nn.Linear(width, longest + 1)
        self.difference = nn.Linear(width, 2 * longest + 1)

    def forward(self, states: Tensor, valid: Tensor | None) -> Tensor:
        """states (batch, source, width), valid (batch, source) -> logits (batch, longest + 1)"""
        size = states.size(1)
        sizes = states.new_full((len(states),), size, dtype=torch.long) if valid is None else valid.sum(1)
        lengths = torch.arange(self.longest + 1, device=states.device)
        index = (lengths - sizes[:, None] + self.longest).clamp(0, 2 * self.longest)
        pooled = pool(states, valid, "mean")
        logits: Tensor = self.length(pooled) + self.difference(pooled).gather(1, index)
        return logits
