"""Times of tokens by dynamic time warping over cross-attention, as Whisper finds those of words."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..processors.base import Array

FILTER = 7  # encoder positions of the median filter


def align_tokens(weights: Tensor) -> list[tuple[int, int]]:
    """The encoder positions of every token, first and last, from attention weights (heads, tokens + 1, positions).

    The last row is that of END, to which silence after the last token belongs.
    """
    weights = weights.double() / weights.double().sum(2, keepdim=True).clamp(min=1e-12)
    spread = weights.std(1, keepdim=True, unbiased=False).clamp(min=1e-12)
    normalized = (weights - weights.mean(1, keepdim=True)) / spread
    rows, columns = warp(-median_filter(normalized).mean(0).numpy())
    starts = [int(columns[place]) for place in np.flatnonzero(np.diff(rows, prepend=-1))]
    return [(start, max(end - 1, start)) for start, end in zip(starts, starts[1:], strict=False)]


def median_filter(values: Tensor) -> Tensor:
    """The median of neighbors in the last dimension, whose borders are reflected."""
    half = FILTER // 2
    if values.size(-1) <= half:
        return values
    padded = torch.nn.functional.pad(values, (half, half), mode="reflect")
    return padded.unfold(-1, FILTER, 1).median(-1).values


def warp(cost: Array) -> tuple[Array, Array]:
    """The path of least cost from the first to the last cell: its rows and columns.

    Cells on a diagonal do not depend on each other, so each diagonal is one step.
    """
    height, width = cost.shape
    total = np.full((height + 1, width + 1), np.inf)
    origin = np.zeros((height + 1, width + 1), np.int8)  # 0: from the diagonal, 1: from the row before, 2: in the row
    total[0, 0] = 0
    for diagonal in range(2, height + width + 1):
        row = np.arange(max(1, diagonal - width), min(height, diagonal - 1) + 1)
        column = diagonal - row
        both, above, left = total[row - 1, column - 1], total[row - 1, column], total[row, column - 1]
        least = np.minimum(np.minimum(both, above), left)
        origin[row, column] = np.where(left == least, 2, np.where(both == least, 0, 1))
        total[row, column] = cost[row - 1, column - 1] + least
    path, row, column = [], height, width
    while row or column:
        path.append((row - 1, column - 1))
        step = 2 if not row else 1 if not column else origin[row, column]
        row, column = row - (step != 2), column - (step != 1)
    found = np.array(path[::-1])
    return found[:, 0], found[:, 1]


def heads_of(maps: Sequence[Tensor], chosen: Sequence[tuple[int, int]]) -> Tensor:
    """(heads, queries, keys): the `chosen` ones, by layer and head; else all of the upper half of the layers."""
    if chosen:
        return torch.stack([maps[layer][head] for layer, head in chosen])
    return torch.cat([*maps[len(maps) // 2 :]])
