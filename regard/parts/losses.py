"""Label-smoothed cross-entropy (Szegedy et al., 1512.00567), summed over the predicted positions; answers apart."""

from typing import Any

import torch
from torch import Tensor

ROWS = 16


def smoothed_cross_entropy(
    logits: Tensor, targets: Tensor, real: Tensor | None = None, smoothing: float = 0.0
) -> Tensor:
    """The sum over real positions of the cross-entropy with (1 - smoothing) · onehot + smoothing / vocab.

    logits (…, vocab) of any float type, targets (…), real (…) true where a position counts (None: everywhere). Equals
    torch's `cross_entropy(label_smoothing=smoothing, reduction="sum")` over the real positions, in float32 or finer.
    """
    logits, targets = logits.flatten(0, -2), targets.flatten()  # (rows, vocab), (rows)
    if real is not None:
        real = real.flatten()
        targets = targets.masked_fill(~real, 0)  # what stands there may be no word at all
    losses: Tensor = _Smoothed.apply(logits, targets, smoothing)  # type: ignore[no-untyped-call]  # (rows)
    return losses.sum() if real is None else losses.masked_fill(~real, 0.0).sum()


def rdrop_divergence(one: Tensor, other: Tensor) -> Tensor:
    """The mean of both Kullback-Leibler divergences between what two tables of logits say, summed over their rows."""
    one, other = (each.float().log_softmax(-1) for each in (one, other))
    return ((one.exp() - other.exp()) * (one - other)).sum() / 2


class _Smoothed(torch.autograd.Function):
    """By hand, for logits are the largest tensor of all: autograd would make several of their size, this makes one."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        exact = torch.promote_types(logits.dtype, torch.float32)
        # On a CPU a few rows at a time, which stay in its cache: twice as fast, and no second tensor of that size.
        whole = logits.device.type != "cpu" or torch.compiler.is_compiling()
        some = (logits,) if whole else torch.split(logits, ROWS)
        both = [amounts(rows.to(exact), smoothing) for rows in some]
        total, found = (torch.cat(each) for each in zip(*both, strict=True))
        chosen = logits.gather(-1, targets[:, None])[:, 0].to(exact)
        ctx.save_for_backward(logits, targets, total)
        ctx.smoothing = smoothing
        return found - (1 - smoothing) * chosen

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None]:
        logits, targets, total = ctx.saved_tensors
        even, rest = ctx.smoothing / logits.shape[-1], 1 - ctx.smoothing
        if torch.compiler.is_compiling():  # each number by itself: the compiler makes one pass of it
            chances = (logits.to(total.dtype) - total[:, None]).exp()
            right = torch.arange(logits.shape[-1], device=logits.device) == targets[:, None]
            inner = (chances - even - torch.where(right, rest, 0.0)) * outer[0][:, None]
            return inner.to(logits.dtype), None, None
        inner = torch.empty_like(logits)
        size = max(len(logits), 1) if logits.is_cuda else ROWS
        for first in range(0, len(logits), size):
            rows = slice(first, first + size)
            change = torch.sub(logits[rows], total[rows, None]).exp_().sub_(even)
            change.scatter_add_(-1, targets[rows, None], change.new_full((len(change), 1), -rest))
            torch.mul(change, outer[0][rows, None], out=inner[rows])
        return inner, None, None


def amounts(logits: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """The logarithm of all the weight in each row; and what its loss holds whatever the target is."""
    total = logits.logsumexp(-1)
    return total, total - smoothing * logits.mean(-1) if smoothing else total
