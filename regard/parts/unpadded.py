"""Reading without padding, on a CPU: the real tokens of all rows in one row, the texts of one length side by side.

Maps of single tokens then have nothing to do for padding, and attention needs no mask: it takes the texts of one length
at a time. It says nothing that the mask does not say: everywhere else, padded rows give the same numbers.
"""

import torch
from torch import Tensor

from .masks import Mask


def serves(x: Tensor, mask: Mask) -> bool:
    """Are texts read, not learnt from, on a CPU, and is padding before or behind them all that the mask speaks of?"""
    learning = torch.is_grad_enabled() or torch.compiler.is_compiling()
    more = mask.window, mask.key_positions, mask.segments, mask.global_positions, mask.beam_ancestry
    other = mask.causal or mask.exclude_self or any(word is not None for word in more)
    return (
        x.device.type == "cpu" and not learning and not other and mask.key_valid is not None and whole(mask.key_valid)
    )


def whole(real: Tensor) -> bool:
    """Is there no padding between the tokens of a row?"""
    begins = real[:, 1:] & ~real[:, :-1]
    return not (begins.sum(1) + real[:, 0] > 1).any()


class Unpadded:
    """Where the real tokens of some rows stand, and how they are laid end to end."""

    def __init__(self, mask: Mask) -> None:
        assert mask.key_valid is not None
        self.shape = rows, tokens = mask.key_valid.shape
        lengths = mask.key_valid.sum(1)
        order = lengths.argsort(stable=True)
        kept = mask.key_valid[order].flatten().nonzero()[:, 0]
        row, column = order[kept // tokens], kept % tokens
        self.places = row * tokens + column
        at = column if mask.positions is None else mask.positions.expand(rows, -1)[row, column]
        lengths, counts = torch.unique(lengths, return_counts=True)
        runs = tuple((count, length) for length, count in zip(lengths.tolist(), counts.tolist(), strict=True) if length)
        self.mask = Mask(positions=at[None], segments=row[None], length_runs=runs)

    def laid(self, x: Tensor) -> Tensor:
        """(batch, tokens, width) -> (1, real tokens, width)"""
        return x.flatten(0, 1)[self.places][None]

    def back(self, x: Tensor) -> Tensor:
        """(1, real tokens, width) -> (batch, tokens, width), zeros where padding is."""
        rows, tokens = self.shape
        return x.new_zeros(rows * tokens, x.size(-1)).index_copy_(0, self.places, x[0]).view(rows, tokens, -1)
