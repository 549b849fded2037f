"""Performer's random features (2009.14794): softmax attention in linear time, as an expectation."""

from typing import Any

import torch
from torch import Tensor, nn

from ..kernels import Kernel, spread
from ..masks import Mask
from ..memory import Book, Memory, Sums


class RandomFeatures(Kernel):
    """FAVOR+: the softmax kernel as an expectation over positive orthogonal random features, in linear time."""

    biasable = False
    directions: Tensor

    def __init__(self, head_width: int, features: int, chunk: int = 64) -> None:
        super().__init__()
        self.chunk = chunk
        full, rest = divmod(features, head_width)
        # Not qr alone, whose signs are not random: the estimate would be off however many features there are.
        blocks = [nn.init.orthogonal_(torch.empty(head_width, head_width)) for _ in range(full + bool(rest))]
        lengths = torch.randn(features, head_width).norm(dim=1, keepdim=True)
        self.register_buffer("directions", torch.cat(blocks)[:features] * lengths)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None = None, memory: Memory | None = None
    ) -> Tensor:
        if mask.segments is not None:
            raise ValueError("Performer attention keeps one sum per row and cannot pack; pad instead (data.packed)")
        if mask.others or mask.reach is not None:
            raise ValueError("Performer attention sums all positions up and cannot leave some out; use dense or window")
        q, k = self.log_features(q), self.log_features(k)  # (batch, heads, tokens, features)
        q = (q - q.amax(-1, keepdim=True)).exp()  # any factor per query cancels
        if mask.keys is not None:
            k = k.masked_fill(~mask.keys[:, None, :, None], -torch.inf)
        if memory is not None and memory.beams:  # alternatives of one place: each has sums of its own
            q, k, v = (x.transpose(1, 2).flatten(0, 1)[:, :, None] for x in (q, k, v))
        state = memory if isinstance(memory, Sums) else Sums(q.size(0), k.size(1), q.size(3), v.size(3), v)
        if not mask.causal:
            add(state, k, v)
            return divide(q @ spread(state.kv, q.size(1)), q @ spread(state.z, q.size(1))[..., None])
        chunks = zip(*(torch.split(x, self.chunk, 2) for x in (q, k, v)), strict=True)
        mixed = torch.cat([self._chunk(state, *chunk) for chunk in chunks], 2)
        if memory is not None and memory.beams:
            mixed = torch.unflatten(mixed[:, :, 0], 0, (-1, memory.beams)).transpose(1, 2)
        return mixed

    def weights(self, q: Tensor, k: Tensor, mask: Mask, bias: Tensor | None = None) -> Tensor:
        """What a whole pass gives to each key: the product of its features, as a share of all that is visible."""
        q, k = self.log_features(q), self.log_features(spread(k, q.size(1)))
        seen = mask.visible(q.size(2), k.size(2), q.device)
        scores = (q - q.amax(-1, keepdim=True)).exp() @ (k - k.amax((2, 3), keepdim=True)).exp().transpose(-2, -1)
        scores = scores if seen is None else scores * seen
        return divide(scores, scores.sum(-1, keepdim=True))

    def prepare(self, mask: Mask, queries: int, keys: int, device: torch.device) -> None:
        """No mask is ever built."""

    def _chunk(self, state: Sums, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Queries see the sums of all earlier chunks, and by an ordinary triangle their own."""
        top, heads = torch.maximum(state.top, k.amax((2, 3), keepdim=True)), q.size(1)
        past = (state.top - top).exp()  # the sums were kept in units of the old top
        scores = (q @ spread((k - top).exp(), heads).transpose(-2, -1)).tril()  # (batch, heads, chunk, chunk)
        mixed = scores @ spread(v, heads) + q @ spread(past * state.kv, heads)
        total = scores.sum(-1, keepdim=True) + q @ spread(past * state.z[..., None], heads)
        add(state, k, v)
        return divide(mixed, total)

    def log_features(self, x: Tensor) -> Tensor:
        x = x * x.size(-1) ** -0.25
        return x @ self.directions.T - x.square().sum(-1, keepdim=True) / 2

    def book(self, capacity: int | None) -> tuple[Any, ...]:
        return (Book,)

    def memory(self, book: Any, rows: int, heads: int, head_width: int, like: Tensor) -> Memory:
        return Sums(rows, heads, self.directions.size(0), head_width, like)


def add(state: Sums, k: Tensor, v: Tensor) -> None:
    top = torch.maximum(state.top, k.amax((2, 3), keepdim=True))
    past, now = (state.top - top).exp(), (k - top).exp()
    state.kv = state.kv * past + now.transpose(-2, -1) @ v
    state.z = state.z * past[..., 0] + now.sum(2)
    state.top = top


def divide(mixed: Tensor, total: Tensor) -> Tensor:
    return torch.where(total > 0, mixed / total.clamp(min=torch.finfo(total.dtype).tiny), 0.0)
