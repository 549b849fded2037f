"""Times of tokens by dynamic time warping over cross-attention, as Whisper finds those of words."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ...processors.base import Array

FILTER = 7  # encoder positions of the median filter
NAMED, DETECTED = (
    1e-6,
    0.2,
)  # minimum deviation of a position, as a share of the maximum: for named, for detected heads
ONSET = 0.1  # the first token begins where its weight reaches this share of its maximum


def token_spans(maps: Sequence[Tensor], chosen: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The first and last encoder position of every token, from cross-attention (heads, tokens + 1, positions).

    It uses the `chosen` heads, as Whisper does; if none are known, the heads that follow the recording. These attend to
    silence at random, so positions with little weight from all tokens count less.
    """
    return align_tokens(alignment_weights(maps, chosen), NAMED if chosen else DETECTED)


def align_tokens(weights: Tensor, least_spread: float = NAMED) -> list[tuple[int, int]]:
    """The first and last encoder position of every token, from attention weights (heads, tokens + 1, positions).

    The last row is that of END, to which silence after the last token belongs. Silence before the first token belongs
    to none: the token begins where it gets a share of its largest weight.
    """
    weights = normalize(weights)
    spread = weights.std(1, keepdim=True, unbiased=False)
    spread = spread.clamp(min=max(least_spread * float(spread.max()), 1e-12))
    normalized = (weights - weights.mean(1, keepdim=True)) / spread
    rows, columns = warp(-median_filter(normalized).mean(0).numpy())
    starts = [int(columns[place]) for place in np.flatnonzero(np.diff(rows, prepend=-1))]
    starts[0] = _onset(weights.mean(0)[0, : starts[1]])
    return [(start, max(end - 1, start)) for start, end in zip(starts, starts[1:], strict=False)]


def _onset(weights: Tensor) -> int:
    """The first position with ONSET of the largest of these weights."""
    return int((weights >= ONSET * weights.max()).to(torch.uint8).argmax()) if len(weights) else 0


def median_filter(values: Tensor) -> Tensor:
    """The median of neighbors in the last dimension, whose borders are reflected."""
    half = FILTER // 2
    if values.size(-1) <= half:
        return values
    padded = torch.nn.functional.pad(values, (half, half), mode="reflect")
    return padded.unfold(-1, FILTER, 1).median(-1).values


def warp(cost: Array) -> tuple[Array, Array]:
    """The path of least cost through (rows, columns) from the first to the last cell: its rows and columns."""
    return warp_all(cost[None])[0]


def warp_all(costs: Array) -> list[tuple[Array, Array]]:
    """The paths of least cost through several tables (tables, rows, columns).

    Cells on a diagonal do not depend on each other, so each diagonal is one step.
    """
    count, height, width = costs.shape
    total = np.full((count, height + 1, width + 1), np.inf)
    origin = np.zeros(total.shape, np.int8)  # 0: from the diagonal, 1: from the row before, 2: in the row
    total[:, 0, 0] = 0
    for diagonal in range(2, height + width + 1):
        row = np.arange(max(1, diagonal - width), min(height, diagonal - 1) + 1)
        column = diagonal - row
        diagonal_total, above_total, left_total = (
            total[:, row - 1, column - 1],
            total[:, row - 1, column],
            total[:, row, column - 1],
        )
        least = np.minimum(np.minimum(diagonal_total, above_total), left_total)
        origin[:, row, column] = np.where(left_total == least, 2, np.where(diagonal_total == least, 0, 1))
        total[:, row, column] = costs[:, row - 1, column - 1] + least
    return [_trace_back(origin[table]) for table in range(count)]


def _trace_back(origin: Array) -> tuple[Array, Array]:
    row, column = (size - 1 for size in origin.shape)
    path = []
    while row or column:
        path.append((row - 1, column - 1))
        step = 2 if not row else 1 if not column else origin[row, column]
        row, column = row - (step != 2), column - (step != 1)
    cells = np.array(path[::-1])
    return cells[:, 0], cells[:, 1]


def normalize(weights: Tensor) -> Tensor:
    """Attention weights whose rows add up to 1 again, after some keys were cut off."""
    return weights.double() / weights.double().sum(2, keepdim=True).clamp(min=1e-12)


def alignment_weights(maps: Sequence[Tensor], chosen: Sequence[tuple[int, int]]) -> Tensor:
    """(heads, queries, keys) of the heads that follow a recording.

    These are the `chosen` ones, by layer and head. If none are known, it is the half of all heads with the largest
    share of their attention on a path through the recording.
    """
    if chosen:
        return torch.stack([maps[layer][head] for layer, head in chosen])
    weights = torch.cat([*maps])
    shares = normalize(weights)
    paths = warp_all(-shares.numpy())
    on_path = torch.stack(
        [head_shares[rows, columns].sum() for head_shares, (rows, columns) in zip(shares, paths, strict=True)]
    )
    best = on_path.argsort(descending=True, stable=True)[: (len(weights) + 1) // 2]
    return weights[best.sort().values]
