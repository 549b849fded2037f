"""Longformer's window (2004.05150): near neighbours, and a few positions that see and are seen everywhere."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..attention import Attention
from ..kernels import Kernel, Softmax
from ..masks import FAR, Mask
from ..memory import Book, Memory, Ring, RingBook
from ..positions import Where


class Band(Kernel):
    """Each query sees `radius` neighbours on each side, and the global positions; O(tokens · radius).

    Queries are cut into blocks of `radius`; a block sees itself and its two neighbours, and the mask does the rest.
    """

    biasable = False

    def __init__(self, radius: int) -> None:
        super().__init__()
        self.radius, self.inner = radius, Softmax()

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None = None, memory: Memory | None = None
    ) -> Tensor:
        mixed: Tensor
        if mask.keys_at is not None:  # a step: the ring is already the window
            mixed = self.inner(q, k, v, self._near_only(mask))
            return mixed
        batch, _, tokens, _ = q.shape
        r, extra = self.radius, -tokens % self.radius
        blocks = (tokens + extra) // r
        rows = torch.unflatten(F.pad(q, (0, 0, 0, extra)), 2, (blocks, r)).transpose(1, 2).flatten(0, 1)
        near_k, near_v = (self._near(x, extra).permute(0, 2, 1, 4, 3).flatten(0, 1) for x in (k, v))
        seen = self._blocked(mask, batch, tokens, q.device)  # (batch · blocks, 1, radius, 3 radius)
        if mask.globals is not None:
            index = mask.globals.clamp(min=0)
            far_k, far_v = (repeat(gather_heads(x, index), blocks) for x in (k, v))
            near_k, near_v = torch.cat([far_k, near_k], 2), torch.cat([far_v, near_v], 2)
            seen = torch.cat([mask.form(("far", r, tokens), lambda: self._far(mask, index, tokens)), seen], -1)
        mixed = self.inner(rows, near_k, near_v, Mask(kin=seen[:, 0]))  # (batch · blocks, heads, radius, width)
        return torch.unflatten(mixed, 0, (batch, blocks)).transpose(1, 2).flatten(2, 3)[:, :, :tokens]

    def weights(self, q: Tensor, k: Tensor, mask: Mask, bias: Tensor | None = None) -> Tensor:
        return self.inner.weights(q, k, mask.but(reach=self._reach(mask)))

    def prepare(self, mask: Mask, queries: int, keys: int, device: torch.device) -> None:
        if mask.keys_at is not None:
            self._near_only(mask).visible(queries, keys, device)
        elif mask.globals is None:  # global positions are often named by the layer itself
            described = next((word for word in (mask.at, mask.keys, mask.segments) if word is not None), None)
            self._blocked(mask, 1 if described is None else len(described), queries, device)

    def _near_only(self, mask: Mask) -> Mask:
        return mask.form(("near", self.radius), lambda: mask.but(reach=self._reach(mask)).once())

    def _reach(self, mask: Mask) -> int:
        return self.radius if mask.reach is None else min(self.radius, mask.reach)

    def _near(self, x: Tensor, extra: int) -> Tensor:
        return F.pad(x, (0, 0, self.radius, self.radius + extra)).unfold(2, 3 * self.radius, self.radius)

    def _blocked(self, mask: Mask, batch: int, tokens: int, device: torch.device) -> Tensor:
        """The same description, seen from each block; one row of blocks where all rows are alike."""
        alike = all(word is None for word in (mask.at, mask.keys, mask.segments, mask.globals))
        rows = 1 if alike else batch
        seen = mask.form(("band", self.radius, tokens, rows), lambda: self._block(mask, rows, tokens, device))
        return seen if rows == batch else seen.repeat(batch, 1, 1, 1)

    def _block(self, mask: Mask, batch: int, tokens: int, device: torch.device) -> Tensor:
        r = self.radius
        at = mask.places(tokens, tokens, device)[0].expand(batch, -1)
        hidden = torch.zeros_like(at, dtype=torch.bool) if mask.keys is None else ~mask.keys
        hidden = hidden if mask.globals is None else hidden | mask.marked(tokens)  # these are looked at apart, once
        block = Mask(mask.causal, mask.others, self._reach(mask), own(at, r), near(at.masked_fill(hidden, FAR), r, FAR))
        if mask.segments is not None:
            block = block.but(segments=own(mask.segments, r), keys_segments=near(mask.segments, r, -1))
        seen = block.visible(r, 3 * r)
        assert seen is not None
        return seen

    def _far(self, mask: Mask, index: Tensor, tokens: int) -> Tensor:
        """Which global positions each block sees, however far: (batch · blocks, 1, radius, most)."""
        assert mask.globals is not None
        r, blocks = self.radius, -(-tokens // self.radius)
        at = mask.places(tokens, tokens, index.device)[0].expand(len(index), -1)
        real = mask.globals >= 0
        real = real if mask.keys is None else real & mask.keys.gather(1, index)
        block = Mask(mask.causal, mask.others, at=own(at, r), keys_at=repeat(at.gather(1, index), blocks))
        block = block.but(keys=repeat(real, blocks))
        if mask.segments is not None:
            theirs = repeat(mask.segments.gather(1, index), blocks)
            block = block.but(segments=own(mask.segments, r), keys_segments=theirs)
        seen = block.visible(r, index.size(1))
        assert seen is not None
        return seen.expand(-1, -1, r, -1)

    def book(self, capacity: int | None) -> tuple[Any, ...]:
        return RingBook, self.radius

    def memory(self, book: Any, rows: int, heads: int, head_width: int, like: Tensor) -> Memory:
        return Ring(book, rows, heads, head_width, like)


def own(x: Tensor, radius: int) -> Tensor:
    """(batch, tokens) cut into blocks: (batch · blocks, radius)."""
    return F.pad(x, (0, -x.size(1) % radius)).reshape(-1, radius)


def near(x: Tensor, radius: int, fill: int) -> Tensor:
    """Every block with its two neighbours: (batch · blocks, 3 radius)."""
    extra = -x.size(1) % radius
    return F.pad(x, (radius, radius + extra), value=fill).unfold(1, 3 * radius, radius).flatten(0, 1)


def gather_heads(x: Tensor, index: Tensor) -> Tensor:
    return x.gather(2, index[:, None, :, None].expand(-1, x.size(1), -1, x.size(3)))


def repeat(x: Tensor, blocks: int) -> Tensor:
    return x[:, None].expand(-1, blocks, *x.shape[1:]).flatten(0, 1)


class GlobalAttention(nn.Module):
    """Longformer: global positions ask with projections of their own, and see everything."""

    causal = False

    def __init__(self, width: int, heads: int, radius: int, first: int, **linear: Any) -> None:
        super().__init__()
        self.first = first  # how many leading tokens are global when the mask does not say
        self.near = Attention(width, heads, Band(radius), out=False, **linear)
        self.wide = Attention(width, heads, Softmax(), out=False, **linear)
        self.out = nn.Linear(width, width, bias=linear.get("bias", True))

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, where: Where | None = None,
        memory: Memory | None = None,
    ) -> Tensor:  # fmt: skip
        if mask.globals is None:
            if mask.segments is not None:
                raise ValueError("packed rows have several beginnings; name the global positions (Mask.globals)")
            first = torch.arange(self.first, device=key.device).expand(len(key), -1)
            mask = mask.form("first", lambda: mask.but(globals=first).once())
        assert mask.globals is not None
        mixed = self.near(query, key, value, mask, where)
        spot = mask.globals[..., None].expand(-1, -1, query.size(2))  # (batch, most, width)
        everywhere = mask.form("wide", lambda: wide_open(mask, key.size(1)).once())
        wide = self.wide(query.gather(1, spot.clamp(min=0)), key, value, everywhere)
        spot = spot.masked_fill(spot < 0, query.size(1))  # rows with fewer globals write to a spare place
        out: Tensor = self.out(F.pad(mixed, (0, 0, 0, 1)).scatter(1, spot, wide)[:, :-1])
        return out

    def prepare(self, mask: Mask, queries: int, keys: int, device: torch.device) -> None:
        """The first layer makes what it needs; the mask keeps it for the others."""

    def book(self, capacity: int | None) -> tuple[Any, ...]:
        return (Book,)

    def memory(self, book: Any, rows: int) -> Memory:
        return Memory()


def wide_open(mask: Mask, tokens: int) -> Mask:
    """What the global positions themselves see: `mask` without its reach."""
    assert mask.globals is not None
    index = mask.globals.clamp(min=0)
    at = mask.places(tokens, tokens, index.device)[0].expand(len(index), -1)
    segments = None if mask.segments is None else mask.segments.gather(1, index)
    return mask.but(
        reach=None, globals=None, at=at.gather(1, index), keys_at=at, segments=segments, keys_segments=mask.segments
    )
