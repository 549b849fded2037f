"""Longformer's window (2004.05150): attention to nearby tokens, and a few global positions."""

from itertools import cycle
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask

from .. import flex
from ..attention import Attention, Projections
from ..cache.base import CacheLayout, LayerCache, LayoutSpec
from ..cache.slots import RollingCache, RollingLayout, SlotLayout
from ..kernels import Kernel, SoftmaxKernel
from ..masks import ABSENT, Mask
from ..mixer import SequenceMixer
from ..positions import PositionTerms
from .blocked import (  # fmt: skip
    BLOCK,
    BlockGroup,
    KeyChunk,
    attend_blocks,
    group_sizes,
    heads_to_blocks,
    heads_to_context_blocks,
    key_chunks,
    to_blocks,
    to_context_blocks,
    visibility_biases,
)

# The fields that blocks honor, and those of a prompt after a rolling cache. With other fields, all pairs are computed.
BLOCKED = ("causal", "exclude_self", "window", "positions", "key_valid", "segments", "global_positions")
CACHED = ("causal", "exclude_self", "window", "positions", "key_positions")


class WindowKernel(Kernel):
    """Each query attends to `radius` neighbors on each side and to the global positions; O(tokens · radius).

    With a `dilation` of d it attends to every d-th token only, so the same number of neighbors spans d times as far.
    The tokens then split into d independent strided subsequences, each with an ordinary window.
    """

    biasable = False
    honors = (*BLOCKED, "key_positions", "key_segments", "beam_ancestry")

    def __init__(self, radius: int, dilation: int = 1, block: int = BLOCK) -> None:
        super().__init__()
        self.radius, self.dilation, self.block, self.inner = radius, dilation, block, SoftmaxKernel()

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Mask,
        bias: Tensor | None = None,
        layer_cache: LayerCache | None = None,
    ) -> Tensor:
        self.check_mask(mask)
        if isinstance(layer_cache, RollingCache) and mask.only(*CACHED) and not self._is_short(q.size(2)):
            return self._attend_prompt(q, k, v, mask)
        if self._uses_all_pairs(mask, q.size(2)):
            out: Tensor = self.inner(q, k, v, self._dense_mask(mask, q.size(2), k.size(2), q.device))
            return out
        if flex.is_compiling(q.device):
            key, tokens = ("flex", self.radius, self.dilation), q.size(2)
            blocks = mask.cached(key, lambda: self._flex_mask(expand_rows(mask, q), tokens, q.device))
            return flex.attend(q, k, v, blocks)
        return self._attend_blocks(q, k, v, mask)

    def weights(self, q: Tensor, k: Tensor, mask: Mask, bias: Tensor | None = None) -> Tensor:
        return self.inner.weights(q, k, self._dense_mask(mask, q.size(2), k.size(2), q.device))

    def prepare(self, mask: Mask, queries: int, keys: int, device: torch.device) -> None:
        """Blocks are planned in the first layer, which knows the dtype; the mask caches the plan for the others."""
        if self._is_short(queries):
            self._dense_mask(mask, queries, keys, device).visible(queries, keys, device)

    def cache_layout(self, capacity: int | None) -> LayoutSpec:
        return RollingLayout, self.radius * self.dilation, capacity

    def layer_cache(self, layout: CacheLayout, rows: int, heads: int, head_width: int, like: Tensor) -> LayerCache:
        assert isinstance(layout, SlotLayout)
        return RollingCache(layout, rows, heads, head_width, like)

    # --- all pairs: for a cached step, whose ring is already the window, or a text about as short as the window ------

    def _uses_all_pairs(self, mask: Mask, tokens: int) -> bool:
        return self._is_short(tokens) or not mask.only(*BLOCKED)

    def _is_short(self, tokens: int) -> bool:
        return tokens <= 2 * self.radius * self.dilation + self.block

    def _attend_prompt(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
        """Many tokens after a ring: only the first of them reach the ring; the rest attend among themselves."""
        assert mask.key_positions is not None and mask.positions is not None
        ring, span = k.size(2) - q.size(2), self.radius * self.dilation
        some = mask.replace(positions=mask.positions[:, :span], key_positions=mask.key_positions[:, : ring + span])
        first = self.forward(q[:, :, :span], k[:, :, : ring + span], v[:, :, : ring + span], some)
        valid = mask.key_positions[:, ring:] < ABSENT
        own = mask.cached("own", lambda: mask.replace(key_positions=None, key_valid=valid).memoized())
        rest = self.forward(q, k[:, :, ring:], v[:, :, ring:], own)
        return torch.cat([first, rest[:, :, span:]], 2)

    def _dense_mask(self, mask: Mask, queries: int, keys: int, device: torch.device) -> Mask:
        return mask.cached(
            ("near", self.radius, self.dilation), lambda: self._window_mask(mask, queries, keys, device).memoized()
        )

    def _window_mask(self, mask: Mask, queries: int, keys: int, device: torch.device) -> Mask:
        near = mask.replace(window=self._window(mask))
        if self.dilation == 1:
            return near
        positions, key_positions = mask.query_key_positions(queries, keys, device)
        strided = (positions[:, :, None] - key_positions[:, None]) % self.dilation == 0
        if mask.global_positions is not None:
            strided = strided | mask.is_global(keys)[:, None] | mask.is_global(queries)[:, :, None]
        # `beam_ancestry` accepts any table of visible pairs.
        return near.replace(beam_ancestry=strided if mask.beam_ancestry is None else strided & mask.beam_ancestry)

    def _window(self, mask: Mask) -> int:
        span = self.radius * self.dilation
        return span if mask.window is None else min(span, mask.window)

    # --- in blocks ---------------------------------------------------------------------------------------------------

    def _attend_blocks(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
        tokens, heads, step = q.size(2), q.size(1), self.dilation
        plans = mask.cached(("band", self.radius, step), lambda: self._block_plans(mask, tokens, q.device, q.dtype))
        before, after = self._context_sizes(mask)
        far: list[list[list[KeyChunk]]] = [[[]] * heads] * len(q)
        if mask.global_positions is not None:
            global_k, global_v = (gather_tokens(x, global_index(mask, tokens)[0]) for x in (k, v))
            far = [[[chunk] for chunk in row] for row in key_chunks(global_k.transpose(-2, -1), global_v, heads)]
        q, outputs = q * q.size(-1) ** -0.5, []
        for start, plan in enumerate(plans):
            own, *others = (x[:, :, start::step] for x in (q, k, v))
            near_k, near_v = (heads_to_context_blocks(x, self.block, before, after) for x in others)
            near = key_chunks(near_k, near_v.transpose(-2, -1), heads)
            rows = zip(heads_to_blocks(own, self.block).unbind(0), far, near, cycle(plan))
            mixed = [
                torch.stack(
                    [attend_blocks(x, [*a, b], groups) for x, a, b in zip(head.unbind(0), some, row, strict=True)]
                )
                for head, some, row, groups in rows
            ]
            outputs.append(torch.stack(mixed).flatten(2, 3)[:, :, : own.size(2)])
        return outputs[0] if step == 1 else interleave(outputs, tokens)

    def _context_sizes(self, mask: Mask) -> tuple[int, int]:
        """The number of keys before and after those of a block. Positions from a caller may decrease."""
        increasing = mask.positions is None or mask.segments is not None
        return self.radius, 0 if mask.causal and increasing else self.radius

    def _block_plans(
        self, mask: Mask, tokens: int, device: torch.device, dtype: torch.dtype
    ) -> list[list[list[BlockGroup]]]:
        """The groups of every row of every strided subsequence; a single row if all rows are alike."""
        tensors = mask.positions, mask.key_valid, mask.segments, mask.global_positions
        rows = max(1 if tensor is None else len(tensor) for tensor in tensors)
        positions = mask.query_key_positions(tokens, tokens, device)[0].expand(rows, -1)
        hidden = torch.zeros_like(positions, dtype=torch.bool) if mask.key_valid is None else ~mask.key_valid
        if mask.global_positions is not None:
            hidden = hidden | mask.is_global(tokens)  # they are a chunk of their own
        key_positions = positions.masked_fill(hidden, ABSENT)
        return [
            [self._row_plan(mask, row, start, positions, key_positions, dtype) for row in range(len(positions))]
            for start in range(self.dilation)
        ]

    def _row_plan(
        self, mask: Mask, row: int, start: int, positions: Tensor, key_positions: Tensor, dtype: torch.dtype
    ) -> list[BlockGroup]:
        """The groups of one row. Most blocks attend to all their neighbors and can share one bias."""
        (before, after), step, tokens = self._context_sizes(mask), self.dilation, positions.size(1)
        own = to_blocks(positions[row : row + 1, start::step], self.block)[0]  # (blocks, queries)
        strided = key_positions[row : row + 1, start::step]
        near = to_context_blocks(strided, self.block, before, after, ABSENT)[0]  # (blocks, keys)
        block_mask = Mask(mask.causal, mask.exclude_self, self._window(mask), own, near)
        offsets = torch.arange(near.size(1), device=positions.device) - before
        regular = (near == own[:, :1] + offsets * step).all(1)
        if mask.segments is not None:
            segments = select_row(mask.segments, row)[:, start::step]
            mine = to_blocks(segments, self.block)[0]
            theirs = to_context_blocks(segments, self.block, before, after, -1)[0]
            block_mask = block_mask.replace(segments=mine, key_segments=theirs)
            regular = regular & (theirs == mine[:, :1]).all(1)
        far = None if mask.global_positions is None else self._global_keys_mask(mask, row, block_mask, tokens)
        # Only on a CPU, where reading a value does not wait for the device.
        may_read = positions.device.type == "cpu" and not torch.compiler.is_compiling()
        plain = Mask(
            mask.causal, mask.exclude_self, self._window(mask), offsets[None, before : before + self.block] * step
        )
        plain, groups, done = plain.replace(key_positions=offsets[None] * step), [], 0
        for count in group_sizes(len(own), self.block * near.size(1), positions.device):
            some = slice(done, done + count)
            shared = may_read and bool(regular[some].all())
            visible = visible_in_blocks(plain if shared else block_mask, slice(0, 1) if shared else some, self.block)
            chunks = [visible] if far is None else [visible_in_blocks(far, some, self.block), visible]
            groups.append(BlockGroup(count, *visibility_biases(chunks, dtype)))
            done += count
        return groups

    def _global_keys_mask(self, mask: Mask, row: int, block_mask: Mask, tokens: int) -> Mask:
        """The mask between the blocks of a row and its global positions, at any distance."""
        index, valid = (select_row(each, row) for each in global_index(mask, tokens))
        positions = select_row(mask.query_key_positions(tokens, tokens, index.device)[0], row)
        assert block_mask.positions is not None
        blocks = len(block_mask.positions)
        key_valid = valid if mask.key_valid is None else valid & select_row(mask.key_valid, row).gather(1, index)
        far = block_mask.replace(
            window=None,
            key_positions=positions.gather(1, index).expand(blocks, -1),
            key_valid=key_valid.expand(blocks, -1),
        )
        if mask.segments is not None:
            far = far.replace(key_segments=select_row(mask.segments, row).gather(1, index).expand(blocks, -1))
        return far

    # --- by FlexAttention --------------------------------------------------------------------------------------------

    def _flex_mask(self, mask: Mask, tokens: int, device: torch.device) -> BlockMask:
        window, step, positions, segments = self._window(mask), self.dilation, mask.positions, mask.segments
        is_global = None if mask.global_positions is None else mask.is_global(tokens)
        key_valid, causal, exclude_self = mask.key_valid, mask.causal, mask.exclude_self

        def visible(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            distance = query - key if positions is None else positions[row, query] - positions[row, key]
            pair_visible = distance.abs() <= window
            pair_visible = pair_visible & (distance % step == 0) if step > 1 else pair_visible
            pair_visible = pair_visible | is_global[row, key] if is_global is not None else pair_visible
            pair_visible = pair_visible & (distance >= 0) if causal else pair_visible
            pair_visible = pair_visible & (distance != 0) if exclude_self else pair_visible
            pair_visible = pair_visible & key_valid[row, key] if key_valid is not None else pair_visible
            return pair_visible & (segments[row, query] == segments[row, key]) if segments is not None else pair_visible

        i = torch.arange(flex.block_count(tokens), device=device)
        gap = (i[:, None] - i[None]) * flex.BLOCK  # from the start of one block to the start of another
        past_only = causal and not self._context_sizes(mask)[1]
        allowed = gap >= 0 if past_only else torch.ones_like(gap, dtype=torch.bool)
        partial = (gap.abs() - flex.BLOCK < window) & allowed
        plain = step == 1 and not exclude_self and key_valid is None
        full = (gap.abs() + flex.BLOCK <= window + 1) & (gap > 0 if causal else True) & plain
        partial, full = partial[None, None], full[None, None]
        if segments is not None:
            some, same = flex.block_equality(segments)
            partial, full = partial & some, full & same
        if positions is not None:  # full only between blocks of one text, whose positions increase one by one
            full = full & flex.block_equality(positions - torch.arange(tokens, device=device))[1]
        if is_global is not None:
            partial = partial | (flex.any_in_blocks(is_global)[:, None, None] & allowed)
        return flex.build_block_mask(partial, full, visible, tokens)


def expand_rows(mask: Mask, q: Tensor) -> Mask:
    """The mask with one row per row of the batch in every tensor. FlexAttention indexes them and does not broadcast."""
    return mask.replace(**{name: value.expand(len(q), *value.shape[1:]) for name, value in mask.tensors().items()})


def visible_in_blocks(mask: Mask, some: slice, queries: int) -> Tensor:
    """The visibility in some blocks, (blocks, queries, keys); `mask` has one row per block."""
    part = mask.replace(**{name: value[some] for name, value in mask.tensors().items()})
    assert part.key_positions is not None
    visible = part.visible(queries, part.key_positions.size(1))
    assert visible is not None
    return visible[:, 0]


def select_row(tensor: Tensor, row: int) -> Tensor:
    """One row of a mask tensor, which may have a single row for the whole batch."""
    return tensor[row % len(tensor)][None]


def interleave(texts: list[Tensor], tokens: int) -> Tensor:
    """Interleave the d strided subsequences back into one."""
    longest = texts[0].size(2)
    even = [F.pad(text, (0, 0, 0, longest - text.size(2))) for text in texts]
    return torch.stack(even, 3).flatten(2, 3)[:, :, :tokens]


def global_index(mask: Mask, tokens: int) -> tuple[Tensor, Tensor]:
    """The global positions, and a bool per entry: False beyond the text and for repeated positions."""
    return mask.cached("global index", lambda: _global_index(mask, tokens))


def _global_index(mask: Mask, tokens: int) -> tuple[Tensor, Tensor]:
    assert mask.global_positions is not None
    repeated = (mask.global_positions[:, :, None] == mask.global_positions[:, None, :]).tril(-1).any(-1)
    valid = (mask.global_positions >= 0) & (mask.global_positions < tokens) & ~repeated
    return mask.global_positions.masked_fill(~valid, 0), valid


def gather_tokens(x: Tensor, index: Tensor) -> Tensor:
    """Tokens by index, for every row."""
    return x.gather(2, index[:, None, :, None].expand(-1, x.size(1), -1, x.size(3)))


class GlobalAttention(SequenceMixer):
    """Longformer: a window, and global positions that attend to everything with projections of their own."""

    causal = False

    def __init__(
        self,
        width: int,
        heads: int,
        radius: int,
        leading_globals: int,
        dilation: int = 1,
        **linear: Unpack[Projections],
    ) -> None:
        super().__init__()
        self.leading_globals = leading_globals  # number of leading tokens that are global if the mask names none
        self.near = Attention(width, heads, WindowKernel(radius, dilation), out=False, **linear)
        self.wide = Attention(width, heads, SoftmaxKernel(), out=False, **linear)
        self.out = nn.Linear(width, width, bias=linear.get("bias", True))

    def forward(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        mask: Mask,
        position_terms: PositionTerms | None = None,
        layer_cache: LayerCache | None = None,
    ) -> Tensor:
        assert key is not None
        out: Tensor
        if mask.global_positions is None and not self.leading_globals:
            out = self.out(self.near(query, key, value, mask, position_terms))
            return out
        mask = self._with_globals(mask, key)
        mixed = self.near(query, key, value, mask, position_terms)
        index, valid = global_index(mask, key.size(1))
        target = index[..., None].expand(-1, -1, query.size(2))  # (batch, most, width)
        spare = index.masked_fill(~valid, query.size(1))[..., None]  # invalid entries go to a spare position
        global_mask = mask.cached("global queries", lambda: global_queries_mask(mask, key.size(1)).memoized())
        terms = None if position_terms is None else position_terms.select_queries(index)
        wide = self.wide(query.gather(1, target), key, value, global_mask, terms)
        scattered = F.pad(mixed, (0, 0, 0, 1)).scatter(1, spare.expand_as(wide), wide.to(mixed.dtype))
        out = self.out(scattered[:, :-1])
        return out

    def _with_globals(self, mask: Mask, key: Tensor) -> Mask:
        """The mask with global positions for every row: those it names, or the leading tokens."""
        if mask.global_positions is None:
            if mask.segments is not None:
                raise ValueError(
                    "a window with global first tokens cannot pack: packed rows have several beginnings; pad instead "
                    "(data.packed=false), or name the global positions (Mask.global_positions)"
                )
            leading = torch.arange(self.leading_globals, device=key.device).expand(len(key), -1)
            mask = mask.cached(
                ("leading globals", self.leading_globals), lambda: mask.replace(global_positions=leading).memoized()
            )
        assert mask.global_positions is not None
        if len(mask.global_positions) != len(key):  # a single row serves the whole batch
            expanded = mask.global_positions.expand(len(key), -1)
            mask = mask.cached("all rows", lambda: mask.replace(global_positions=expanded).memoized())
        return mask


def global_queries_mask(mask: Mask, tokens: int) -> Mask:
    """The mask of the global queries: `mask` without its window."""
    index = global_index(mask, tokens)[0]
    positions = mask.query_key_positions(tokens, tokens, index.device)[0].expand(len(index), -1)
    segments = None if mask.segments is None else mask.segments.gather(1, index)
    return mask.replace(
        window=None,
        global_positions=None,
        positions=positions.gather(1, index),
        key_positions=positions,
        segments=segments,
        key_segments=mask.segments,
    )
