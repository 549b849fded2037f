"""Longformer's window (2004.05150): near neighbours, and a few positions that see and are seen everywhere."""

from itertools import cycle
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import flex
from ..attention import Attention
from ..cache.base import CacheLayout, LayerCache
from ..cache.slots import RollingCache, RollingLayout
from ..kernels import Kernel, SoftmaxKernel
from ..masks import ABSENT, Mask
from ..positions import PositionTerms
from .blocked import (  # fmt: skip
    BLOCK,
    BlockGroup,
    KeyChunk,
    around,
    around_heads,
    biases,
    cut,
    cut_heads,
    group_sizes,
    mixed,
    pieces,
)


class WindowKernel(Kernel):
    """Each query sees `radius` neighbours on each side, and the global positions; O(tokens · radius).

    With a `dilation` of d it sees every d-th token only, so that as many neighbours reach d times as far: the tokens
    fall apart into d texts that never meet, each with an ordinary window.
    """

    biasable = False

    def __init__(self, radius: int, dilation: int = 1, block: int = BLOCK) -> None:
        super().__init__()
        self.radius, self.dilation, self.block, self.inner = radius, dilation, block, SoftmaxKernel()

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None = None, memory: LayerCache | None = None
    ) -> Tensor:
        if isinstance(memory, RollingCache) and mask.beam_ancestry is None and not self._few(q.size(2)):
            return self._prompt(q, k, v, mask)
        if self._short(mask, q.size(2)):
            found: Tensor = self.inner(q, k, v, self._dense(mask, q.size(2), k.size(2), q.device))
            return found
        if flex.compiling(q.device):
            key, tokens = ("flex", self.radius, self.dilation), q.size(2)
            blocks = mask.cached(key, lambda: self._flexed(every(mask, q), tokens, q.device))
            return flex.attend(q, k, v, blocks)
        return self._blocked(q, k, v, mask)

    def weights(self, q: Tensor, k: Tensor, mask: Mask, bias: Tensor | None = None) -> Tensor:
        return self.inner.weights(q, k, self._dense(mask, q.size(2), k.size(2), q.device))

    def prepare(self, mask: Mask, queries: int, keys: int, device: torch.device) -> None:
        """Blocks are planned by the first layer, which knows the precision; the mask keeps it for the others."""
        if self._few(queries):
            self._dense(mask, queries, keys, device).visible(queries, keys, device)

    def cache_layout(self, capacity: int | None) -> tuple[Any, ...]:
        return RollingLayout, self.radius * self.dilation, capacity

    def layer_cache(self, book: Any, rows: int, heads: int, head_width: int, like: Tensor) -> LayerCache:
        return RollingCache(book, rows, heads, head_width, like)

    # --- all pairs: a step of a cache, whose ring is already the window, or a text about as short as the window ------

    def _short(self, mask: Mask, tokens: int) -> bool:
        return mask.key_positions is not None or self._few(tokens)

    def _few(self, tokens: int) -> bool:
        return tokens <= 2 * self.radius * self.dilation + self.block

    def _prompt(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
        """Many tokens behind a ring: only the first of them still see it, and the others are a text of their own."""
        assert mask.key_positions is not None and mask.positions is not None
        ring, reach = k.size(2) - q.size(2), self.radius * self.dilation
        some = mask.replace(positions=mask.positions[:, :reach], key_positions=mask.key_positions[:, : ring + reach])
        first = self.forward(q[:, :, :reach], k[:, :, : ring + reach], v[:, :, : ring + reach], some)
        valid = mask.key_positions[:, ring:] < ABSENT
        own = mask.cached("own", lambda: mask.replace(key_positions=None, key_valid=valid).memoized())
        rest = self.forward(q, k[:, :, ring:], v[:, :, ring:], own)
        return torch.cat([first, rest[:, :, reach:]], 2)

    def _dense(self, mask: Mask, queries: int, keys: int, device: torch.device) -> Mask:
        return mask.cached(
            ("near", self.radius, self.dilation), lambda: self._near(mask, queries, keys, device).memoized()
        )

    def _near(self, mask: Mask, queries: int, keys: int, device: torch.device) -> Mask:
        near = mask.replace(window=self._reach(mask))
        if self.dilation == 1:
            return near
        at, keys_at = mask.query_key_positions(queries, keys, device)
        met = (at[:, :, None] - keys_at[:, None]) % self.dilation == 0
        if mask.global_positions is not None:
            met = met | mask.is_global(keys)[:, None] | mask.is_global(queries)[:, :, None]
        return near.replace(beam_ancestry=met if mask.beam_ancestry is None else met & mask.beam_ancestry)

    def _reach(self, mask: Mask) -> int:
        reach = self.radius * self.dilation
        return reach if mask.window is None else min(reach, mask.window)

    # --- in blocks ---------------------------------------------------------------------------------------------------

    def _blocked(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
        tokens, heads, step = q.size(2), q.size(1), self.dilation
        plans = mask.cached(("band", self.radius, step), lambda: self._plans(mask, tokens, q.device, q.dtype))
        before, after = self._sides(mask)
        far: list[list[list[KeyChunk]]] = [[[]] * heads] * len(q)
        if mask.global_positions is not None:
            few_k, few_v = (gather_heads(x, named(mask, tokens)[0]) for x in (k, v))
            far = [[[piece] for piece in row] for row in pieces(few_k.transpose(-2, -1), few_v, heads)]
        q, found = q * q.size(-1) ** -0.5, []
        for start, plan in enumerate(plans):
            own, *others = (x[:, :, start::step] for x in (q, k, v))
            near_k, near_v = (around_heads(x, self.block, before, after) for x in others)
            near = pieces(near_k, near_v.transpose(-2, -1), heads)
            rows = zip(cut_heads(own, self.block).unbind(0), far, near, cycle(plan))
            mixes = [
                torch.stack([mixed(x, [*a, b], groups) for x, a, b in zip(head.unbind(0), some, row, strict=True)])
                for head, some, row, groups in rows
            ]
            found.append(torch.stack(mixes).flatten(2, 3)[:, :, : own.size(2)])
        return found[0] if step == 1 else woven(found, tokens)

    def _sides(self, mask: Mask) -> tuple[int, int]:
        """How many keys a block has before and after its own. Positions that a caller gives may run backwards."""
        onwards = mask.positions is None or mask.segments is not None
        return self.radius, 0 if mask.causal and onwards else self.radius

    def _plans(self, mask: Mask, tokens: int, device: torch.device, dtype: torch.dtype) -> list[list[list[BlockGroup]]]:
        """The groups of every row of every text into which the tokens fall apart; one row where all are alike."""
        described = [
            word for word in (mask.positions, mask.key_valid, mask.segments, mask.global_positions) if word is not None
        ]
        at = mask.query_key_positions(tokens, tokens, device)[0].expand(max([1, *map(len, described)]), -1)
        hidden = torch.zeros_like(at, dtype=torch.bool) if mask.key_valid is None else ~mask.key_valid
        if mask.global_positions is not None:
            hidden = hidden | mask.is_global(tokens)  # these are looked at apart, once
        keys_at = at.masked_fill(hidden, ABSENT)
        return [
            [self._plan(mask, row, start, at, keys_at, dtype) for row in range(len(at))]
            for start in range(self.dilation)
        ]

    def _plan(
        self, mask: Mask, row: int, start: int, at: Tensor, keys_at: Tensor, dtype: torch.dtype
    ) -> list[BlockGroup]:
        """What the blocks of one row see. Most see the same: their neighbours, all of them."""
        (before, after), step, tokens = self._sides(mask), self.dilation, at.size(1)
        own = cut(at[row : row + 1, start::step], self.block)[0]  # (blocks, queries)
        near = around(keys_at[row : row + 1, start::step], self.block, before, after, ABSENT)[0]  # (blocks, keys)
        words = Mask(mask.causal, mask.exclude_self, self._reach(mask), own, near)
        places = torch.arange(near.size(1), device=at.device) - before
        usual = (near == own[:, :1] + places * step).all(1)
        if mask.segments is not None:
            segments = of_row(mask.segments, row)
            mine = cut(segments[:, start::step], self.block)[0]
            theirs = around(segments[:, start::step], self.block, before, after, -1)[0]
            words, usual = words.replace(segments=mine, key_segments=theirs), usual & (theirs == mine[:, :1]).all(1)
        far = None if mask.global_positions is None else self._far(mask, row, words, tokens)
        # On a CPU, where looking at a number makes nobody wait.
        looked = at.device.type == "cpu" and not torch.compiler.is_compiling()
        plain = Mask(
            mask.causal, mask.exclude_self, self._reach(mask), places[None, before : before + self.block] * step
        )
        plain, groups, done = plain.replace(key_positions=places[None] * step), [], 0
        for count in group_sizes(len(own), self.block * near.size(1), at.device):
            some = slice(done, done + count)
            same = looked and bool(usual[some].all())
            seen = shown(plain if same else words, slice(0, 1) if same else some, self.block)
            few = [] if far is None else [shown(far, some, self.block)]
            groups.append(BlockGroup(count, *biases([*few, seen], dtype)))
            done += count
        return groups

    def _far(self, mask: Mask, row: int, words: Mask, tokens: int) -> Mask:
        """Who sees the global positions of a row, however far."""
        index, real = (of_row(each, row) for each in named(mask, tokens))
        at = of_row(mask.query_key_positions(tokens, tokens, index.device)[0], row)
        assert words.positions is not None
        blocks = len(words.positions)
        keys = real if mask.key_valid is None else real & of_row(mask.key_valid, row).gather(1, index)
        far = words.replace(
            window=None, key_positions=at.gather(1, index).expand(blocks, -1), key_valid=keys.expand(blocks, -1)
        )
        if mask.segments is not None:
            far = far.replace(key_segments=of_row(mask.segments, row).gather(1, index).expand(blocks, -1))
        return far

    # --- by FlexAttention --------------------------------------------------------------------------------------------

    def _flexed(self, mask: Mask, tokens: int, device: torch.device) -> Any:
        reach, step, marks = (
            self._reach(mask),
            self.dilation,
            None if mask.global_positions is None else mask.is_global(tokens),
        )
        at, keys, segments, causal, others = (
            mask.positions,
            mask.key_valid,
            mask.segments,
            mask.causal,
            mask.exclude_self,
        )

        def visible(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            gap = query - key if at is None else at[row, query] - at[row, key]
            seen = gap.abs() <= reach
            seen = seen & (gap % step == 0) if step > 1 else seen
            seen = seen | marks[row, key] if marks is not None else seen
            seen = seen & (gap >= 0) if causal else seen
            seen = seen & (gap != 0) if others else seen
            seen = seen & keys[row, key] if keys is not None else seen
            return seen & (segments[row, query] == segments[row, key]) if segments is not None else seen

        i = torch.arange(flex.blocks(tokens), device=device)
        gap = (i[:, None] - i[None]) * flex.BLOCK  # from the beginning of one block to that of another
        onwards = gap >= 0 if causal and not self._sides(mask)[1] else torch.ones_like(gap, dtype=torch.bool)
        part = (gap.abs() - flex.BLOCK < reach) & onwards
        plain = step == 1 and not others and keys is None
        full = (gap.abs() + flex.BLOCK <= reach + 1) & (gap > 0 if causal else True) & plain
        part, full = part[None, None], full[None, None]
        if segments is not None:
            met, same = flex.alike(segments)
            part, full = part & met, full & same
        if at is not None:  # blocks of one text, in which places go on as the tokens do
            full = full & flex.alike(at - torch.arange(tokens, device=device))[1]
        if marks is not None:
            part = part | (flex.any_in_blocks(marks)[:, None, None] & onwards)
        return flex.sparse(part, full, visible, tokens)


def every(mask: Mask, q: Tensor) -> Mask:
    """The mask with a row for each of the batch in all its words: where FlexAttention asks, nothing is repeated."""
    words = {name: word for name, word in mask.fields().items() if isinstance(word, Tensor)}
    return mask.replace(**{name: word.expand(len(q), *word.shape[1:]) for name, word in words.items()})


def shown(mask: Mask, some: slice, queries: int) -> Tensor:
    """What of a block's mask some blocks see, (blocks, queries, keys)."""
    part = mask.replace(**{name: word[some] for name, word in mask.fields().items() if isinstance(word, Tensor)})
    assert part.key_positions is not None
    seen = part.visible(queries, part.key_positions.size(1))
    assert seen is not None
    return seen[:, 0]


def of_row(word: Tensor, row: int) -> Tensor:
    """A word of one row; some have one for all rows."""
    return word[row % len(word)][None]


def woven(texts: list[Tensor], tokens: int) -> Tensor:
    """Texts of every so manyeth token, as one again."""
    longest = texts[0].size(2)
    even = [F.pad(text, (0, 0, 0, longest - text.size(2))) for text in texts]
    return torch.stack(even, 3).flatten(2, 3)[:, :, :tokens]


def named(mask: Mask, tokens: int) -> tuple[Tensor, Tensor]:
    """The global places, and which of them are some: a place beyond the text, or named twice, is none."""
    return mask.cached("named", lambda: _named(mask, tokens))


def _named(mask: Mask, tokens: int) -> tuple[Tensor, Tensor]:
    assert mask.global_positions is not None
    twice = (mask.global_positions[:, :, None] == mask.global_positions[:, None, :]).tril(-1).any(-1)
    real = (mask.global_positions >= 0) & (mask.global_positions < tokens) & ~twice
    return mask.global_positions.masked_fill(~real, 0), real


def gather_heads(x: Tensor, index: Tensor) -> Tensor:
    return x.gather(2, index[:, None, :, None].expand(-1, x.size(1), -1, x.size(3)))


class GlobalAttention(nn.Module):
    """Longformer: global positions ask with projections of their own, and see everything."""

    causal = False

    def __init__(self, width: int, heads: int, radius: int, first: int, dilation: int = 1, **linear: Any) -> None:
        super().__init__()
        self.first = first  # how many leading tokens are global when the mask does not say
        self.near = Attention(width, heads, WindowKernel(radius, dilation), out=False, **linear)
        self.wide = Attention(width, heads, SoftmaxKernel(), out=False, **linear)
        self.out = nn.Linear(width, width, bias=linear.get("bias", True))

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, where: PositionTerms | None = None,
        memory: LayerCache | None = None,
    ) -> Tensor:  # fmt: skip
        out: Tensor
        if mask.global_positions is None and not self.first:
            out = self.out(self.near(query, key, value, mask, where))
            return out
        if mask.global_positions is None:
            if mask.segments is not None:
                raise ValueError(
                    "a window with global first tokens cannot pack: packed rows have several beginnings; pad instead "
                    "(data.packed), or name the global positions (Mask.globals)"
                )
            first = torch.arange(self.first, device=key.device).expand(len(key), -1)
            mask = mask.cached(("first", self.first), lambda: mask.replace(global_positions=first).memoized())
        assert mask.global_positions is not None
        if len(mask.global_positions) != len(key):  # one row of them serves all
            alike = mask.global_positions.expand(len(key), -1)
            mask = mask.cached("all rows", lambda: mask.replace(global_positions=alike).memoized())
        mixed = self.near(query, key, value, mask, where)
        index, real = named(mask, key.size(1))
        spot = index[..., None].expand(-1, -1, query.size(2))  # (batch, most, width)
        everywhere = mask.cached("wide", lambda: wide_open(mask, key.size(1)).memoized())
        wide = self.wide(
            query.gather(1, spot), key, value, everywhere, None if where is None else where.select_queries(index)
        )
        spot = spot.masked_fill(~real[..., None], query.size(1))  # what is no place is written to a spare one
        out = self.out(F.pad(mixed, (0, 0, 0, 1)).scatter(1, spot, wide.to(mixed.dtype))[:, :-1])
        return out

    def prepare(self, mask: Mask, queries: int, keys: int, device: torch.device) -> None:
        """The first layer makes what it needs; the mask keeps it for the others."""

    def cache_layout(self, capacity: int | None) -> tuple[Any, ...]:
        return (CacheLayout,)

    def layer_cache(self, book: Any, rows: int) -> LayerCache:
        return LayerCache()


def wide_open(mask: Mask, tokens: int) -> Mask:
    """What the global positions themselves see: `mask` without its reach."""
    index = named(mask, tokens)[0]
    at = mask.query_key_positions(tokens, tokens, index.device)[0].expand(len(index), -1)
    segments = None if mask.segments is None else mask.segments.gather(1, index)
    return mask.replace(
        window=None,
        global_positions=None,
        positions=at.gather(1, index),
        key_positions=at,
        segments=segments,
        key_segments=mask.segments,
    )
