"""Dropout (1207.0580): torch's, except on a CPU, where drawing a random number per element takes most of the time.

There one random integer decides about four elements. The rate is then exact to 1 in 65,536, and the scale matches it.
"""

from typing import Any

import torch
from torch import Tensor, nn

STEPS = 2**16


class Dropout(nn.Dropout):
    """Dropout that is the identity at inference."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.p:
            return x
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            return super().forward(x)
        out: Tensor = _CpuDropout.apply(x, min(round(self.p * STEPS), STEPS - 1))  # type: ignore[no-untyped-call]
        return out


class RowDropout(nn.Module):
    """Zero whole rows (batch, …) in training and scale the others up, so that the mean stays."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.p:
            return x
        kept = torch.rand(len(x), *[1] * (x.dim() - 1), device=x.device) >= self.p
        return x * (kept.to(x.dtype) / (1 - self.p))


class _CpuDropout(torch.autograd.Function):
    """Zero `dropped` of 65,536 elements and scale the others up, so that the mean stays."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dropped: int) -> Tensor:
        count = x.numel()
        bits = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)  # all 64 bits
        kept = bits.view(torch.int16)[:count].view(x.shape) >= dropped - STEPS // 2
        factors = kept.to(x.dtype).mul_(STEPS / (STEPS - dropped))
        ctx.save_for_backward(factors)
        return x * factors

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (factors,) = ctx.saved_tensors
        return grads[0] * factors, None
