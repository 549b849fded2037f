"""Inference without padding on a CPU: the valid tokens of all rows in one row, texts of equal length side by side.

Token-wise layers then do no work for padding, and attention needs no mask: it takes all texts of one length at a time.
The results equal those of padded rows.
"""

import torch
from torch import Tensor

from .masks import Mask
from .recording import current_recorder, current_state_recorder


def supports_unpadded(x: Tensor, mask: Mask) -> bool:
    """True at inference on a CPU if the mask has no rule but padding before or after each text.

    Recorded weights are stored by row, so a recorded call keeps its padding.
    """
    recorded = current_recorder() is not None or current_state_recorder() is not None
    needs_rows = torch.is_grad_enabled() or torch.compiler.is_compiling() or recorded
    if x.device.type != "cpu" or needs_rows or mask.key_valid is None or not mask.only("key_valid", "positions"):
        return False
    return has_contiguous_rows(mask.key_valid)


def has_contiguous_rows(valid: Tensor) -> bool:
    """True if no row has padding between its tokens."""
    starts = valid[:, 1:] & ~valid[:, :-1]
    return not (starts.sum(1) + valid[:, 0] > 1).any()


class Unpadded:
    """The index of the valid tokens of a batch, ordered by the length of their texts."""

    def __init__(self, mask: Mask) -> None:
        assert mask.key_valid is not None
        self.shape = rows, tokens = mask.key_valid.shape
        lengths = mask.key_valid.sum(1)
        order = lengths.argsort(stable=True)
        valid_index = mask.key_valid[order].flatten().nonzero()[:, 0]
        row, column = order[valid_index // tokens], valid_index % tokens
        self.index = row * tokens + column
        positions = column if mask.positions is None else mask.positions.expand(rows, -1)[row, column]
        lengths, counts = torch.unique(lengths, return_counts=True)
        runs = tuple((count, length) for length, count in zip(lengths.tolist(), counts.tolist(), strict=True) if length)
        self.mask = Mask(positions=positions[None], segments=row[None], length_runs=runs)

    def remove_padding(self, x: Tensor) -> Tensor:
        """(batch, tokens, width) -> (1, valid tokens, width)"""
        return x.flatten(0, 1)[self.index][None]

    def restore_padding(self, x: Tensor) -> Tensor:
        """(1, valid tokens, width) -> (batch, tokens, width), with zeros for padding."""
        rows, tokens = self.shape
        return x.new_zeros(rows * tokens, x.size(-1)).index_copy_(0, self.index, x[0]).view(rows, tokens, -1)
