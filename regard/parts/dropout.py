"""Dropout (1207.0580) as torch has it, but for a CPU, where drawing a number for each place takes most of its time.

There one random integer decides about four places; a share is then exact to 1 in 65,536, and the scale fits it.
"""

from typing import Any

import torch
from torch import Tensor, nn

STEPS = 2**16


class Dropout(nn.Dropout):
    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.p or x.device.type != "cpu" or torch.compiler.is_compiling():
            return super().forward(x)
        out: Tensor = _Dropped.apply(x, min(round(self.p * STEPS), STEPS - 1))  # type: ignore[no-untyped-call]
        return out


class _Dropped(torch.autograd.Function):
    """`hidden` of 65,536 places become zero, and the others larger, so that the mean stays."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, hidden: int) -> Tensor:
        count = x.numel()
        drawn = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)  # all 64 bits
        kept = drawn.view(torch.int16)[:count].view(x.shape) >= hidden - STEPS // 2
        share = kept.to(x.dtype).mul_(STEPS / (STEPS - hidden))
        ctx.save_for_backward(share)
        return x * share

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None]:
        (share,) = ctx.saved_tensors
        return outer[0] * share, None
