"""Label-smoothed cross-entropy (Szegedy et al., 1512.00567), summed over the predicted positions; R-Drop."""

from typing import Any

import torch
from torch import Tensor

CHUNK_ROWS = 16


def smoothed_cross_entropy(
    logits: Tensor, targets: Tensor, valid: Tensor | None = None, smoothing: float = 0.0
) -> Tensor:
    """The sum over valid positions of the cross-entropy with (1 - smoothing) · onehot + smoothing / vocab.

    logits (…, vocab) of any float type, targets (…), valid (…) bool (None: all positions count). Equals torch's
    `cross_entropy(label_smoothing=smoothing, reduction="sum")` over the valid positions, in float32 or finer.
    """
    logits, targets = logits.flatten(0, -2), targets.flatten()  # (rows, vocab), (rows)
    if valid is not None:
        valid = valid.flatten()
        targets = targets.masked_fill(~valid, 0)  # padding may be outside the vocabulary
    losses: Tensor = _SmoothedCrossEntropy.apply(logits, targets, smoothing)  # type: ignore[no-untyped-call]  # (rows)
    return losses.sum() if valid is None else losses.masked_fill(~valid, 0.0).sum()


def rdrop_divergence(one: Tensor, other: Tensor) -> Tensor:
    """R-Drop: the mean of both Kullback-Leibler divergences between two tables of logits, summed over their rows."""
    one, other = (each.float().log_softmax(-1) for each in (one, other))
    return ((one.exp() - other.exp()) * (one - other)).sum() / 2


class _SmoothedCrossEntropy(torch.autograd.Function):
    """Written by hand: logits are the largest tensor, and autograd would allocate several of their size, not one."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        exact = torch.promote_types(logits.dtype, torch.float32)
        # On a CPU a few rows at a time, which stay in its cache: twice as fast, and no second tensor of that size.
        at_once = logits.device.type != "cpu" or torch.compiler.is_compiling()
        chunks = (logits,) if at_once else torch.split(logits, CHUNK_ROWS)
        terms = [row_terms(rows.to(exact), smoothing) for rows in chunks]
        log_total, base = (torch.cat(parts) for parts in zip(*terms, strict=True))
        target_logits = logits.gather(-1, targets[:, None])[:, 0].to(exact)
        ctx.save_for_backward(logits, targets, log_total)
        ctx.smoothing = smoothing
        return base - (1 - smoothing) * target_logits

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        logits, targets, log_total = ctx.saved_tensors
        even, rest = ctx.smoothing / logits.shape[-1], 1 - ctx.smoothing
        if torch.compiler.is_compiling():  # elementwise: the compiler fuses it into one pass
            probabilities = (logits.to(log_total.dtype) - log_total[:, None]).exp()
            is_target = torch.arange(logits.shape[-1], device=logits.device) == targets[:, None]
            inner = (probabilities - even - torch.where(is_target, rest, 0.0)) * grads[0][:, None]
            return inner.to(logits.dtype), None, None
        inner = torch.empty_like(logits)
        size = max(len(logits), 1) if logits.is_cuda else CHUNK_ROWS
        for first in range(0, len(logits), size):
            rows = slice(first, first + size)
            change = torch.sub(logits[rows], log_total[rows, None]).exp_().sub_(even)
            change.scatter_add_(-1, targets[rows, None], change.new_full((len(change), 1), -rest))
            torch.mul(change, grads[0][rows, None], out=inner[rows])
        return inner, None, None


def row_terms(logits: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Per row: the log of the summed exponentials, and the part of the loss that does not depend on the target."""
    log_total = logits.logsumexp(-1)
    return log_total, log_total - smoothing * logits.mean(-1) if smoothing else log_total
