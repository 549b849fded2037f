"""BigBird's block-sparse attention (2007.14062).

Each block attends to itself and its neighbors, to the first and the last block, and to `random` others, which differ
for every head of every layer. The first and the last block attend to everything. Short texts use dense attention. The
pattern depends on the text's own length only: padding and the rest of the batch change nothing.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask

from .. import flex
from ..cache.base import LayerCache
from ..kernels import Kernel, SoftmaxKernel, masked_softmax, repeat_heads
from ..masks import FIELDS, Mask
from .blocked import BlockGroup, KeyChunk, attend_blocks, group_sizes, key_chunks, visibility_biases

OWN_PATTERN = "attention in random blocks has its own pattern and can hide padding only; use dense or window"


class BlockSparseKernel(Kernel):
    """O(tokens · size). With `drawn` false, the `random` blocks are copies of the first block, which then counts
    1 + `random` times: transformers does so outside training, and its published metrics are measured so."""

    biasable, causal = False, False
    honors = ("positions", "key_valid")
    reasons = dict.fromkeys(FIELDS, OWN_PATTERN) | {
        "segments": "attention in random blocks needs one text per row and cannot pack; pad instead "
        "(data.packed=false)",
        "causal": "attention in random blocks reads later tokens and cannot be causal; use it in an encoder",
    }

    kept_heads: tuple[int, ...] | None = None  # the numbers of the heads that pruning has left; None: all

    def __init__(self, size: int = 64, random: int = 3, seed: int = 0, drawn: bool = True) -> None:
        super().__init__()
        self.size, self.random, self.seed, self.drawn, self.inner = size, random, seed, drawn, SoftmaxKernel()

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
        tokens = q.size(2)
        if tokens <= self.dense_limit:
            dense: Tensor = self.inner(q, k, v, mask)
            return dense
        if flex.is_compiling(q.device):
            blocks, score = mask.cached(("flex", *self._cache_key()), lambda: self._flex_mask(mask, q))
            return flex.attend(q, k, v, blocks, score)
        rows = mask.cached(
            "lengths", lambda: [tokens] * len(q) if mask.key_valid is None else row_lengths(mask.key_valid).tolist()
        )
        texts = zip(*(torch.split(x, 1) for x in (q, k, v)), rows, range(len(q)), strict=True)
        return torch.cat([self._attend_row(a, b, c, length, mask, row) for a, b, c, length, row in texts])

    @property
    def dense_limit(self) -> int:
        """Up to this many tokens, attention is dense."""
        return (5 + 2 * self.random) * self.size

    def prepare(self, mask: Mask, queries: int, keys: int, device: torch.device) -> None:
        self.check_mask(mask)
        if queries <= self.dense_limit:
            self.inner.prepare(mask, queries, keys, device)

    def weights(self, q: Tensor, k: Tensor, mask: Mask, bias: Tensor | None = None) -> Tensor:
        self.check_mask(mask)
        scores = q @ repeat_heads(k, q.size(1)).transpose(-2, -1) * q.size(-1) ** -0.5
        visible, more = self._block_visibility(mask, q)
        large = [each.repeat_interleave(self.size, 2).repeat_interleave(self.size, 3) for each in (visible, more)]
        visible, more = (each[:, :, : q.size(2), : q.size(2)] for each in large)
        return masked_softmax(scores + more, mask, scores.new_zeros(()).masked_fill(~visible, -torch.inf))

    # --- the pattern -------------------------------------------------------------------------------------------------

    def random_blocks(self, blocks: Tensor, most: int, heads: int) -> Tensor:
        """The random blocks of each block, (rows, heads, most, random), for texts of `blocks` (rows,) blocks.

        The blocks that it does not attend to anyway are split into `random` runs, and one is taken from each, so none
        repeats. The choice depends only on the seed, the head, the block and the text's length.
        """
        if self.kept_heads is not None:  # a head draws the same blocks after others are pruned
            drawn: Tensor = draw_blocks(blocks, most, self.kept_heads[-1] + 1, self.random, self.seed)
            return drawn[:, list(self.kept_heads)]
        chosen: Tensor = draw_blocks(blocks, most, heads, self.random, self.seed)
        return chosen

    def _block_visibility(self, mask: Mask, q: Tensor) -> tuple[Tensor, Tensor]:
        """By blocks, (rows, heads or 1, blocks, blocks): visibility, and a bias of the scores."""
        heads, most = q.size(1), -(-q.size(2) // self.size)
        tokens = torch.full((1,), q.size(2), device=q.device) if mask.key_valid is None else row_lengths(mask.key_valid)
        blocks, i = -(-tokens // self.size), torch.arange(most, device=q.device)
        last = (blocks - 1)[:, None, None, None]
        query, key = i[:, None], i[None]
        visible = (key == 0) | (key == last) | (query == 0) | (query == last) | ((query - key).abs() <= 1)
        middle = (query > 0) & (query < last) & (tokens > self.dense_limit)[:, None, None, None]
        more = torch.zeros(visible.shape, device=q.device, dtype=q.dtype)
        if self.drawn and self.random:
            chosen = self.random_blocks(blocks, most, heads).clamp(0, most - 1)
            drawn = torch.zeros(len(blocks), heads, most, most, dtype=torch.bool, device=q.device)
            visible = visible | (drawn.scatter(3, chosen, True) & middle)
        elif self.random:
            more = more.masked_fill(middle & (key == 0), math.log(1 + self.random))
        return visible | (tokens <= self.dense_limit)[:, None, None, None], more

    # --- in blocks ---------------------------------------------------------------------------------------------------

    def _attend_row(self, q: Tensor, k: Tensor, v: Tensor, length: int, mask: Mask, row: int) -> Tensor:
        """One text, (1, heads, tokens, head_width)."""
        size, tokens = self.size, q.size(2)
        own = mask if mask.key_valid is None else Mask(key_valid=mask.key_valid[row : row + 1])
        if length <= (limit := self.dense_limit):
            dense: Tensor = self.inner(q, k[:, :, :limit], v[:, :, :limit], truncate(own, limit))
            return dense
        blocks = -(-length // size)
        extra, own = max(blocks * size - tokens, 0), truncate(own, blocks * size)
        q, k, v = (F.pad(x, (0, 0, 0, extra)) if extra else x[:, :, : blocks * size] for x in (q, k, v))
        if extra or own.key_valid is not None:
            keys = torch.ones(1, tokens, dtype=torch.bool, device=q.device) if own.key_valid is None else own.key_valid
            own = Mask(key_valid=F.pad(keys, (0, blocks * size - keys.size(1))))
        groups = mask.cached(("blocks", row, *self._cache_key()), lambda: self._block_groups(own, blocks, q))
        ends = torch.cat([q[:, :, :size], q[:, :, -size:]], 2)
        first, last = self.inner(ends, k, v, own).split(size, 2)
        middle = self._attend_middle(q, k, v, groups)
        return F.pad(torch.cat([first, middle, last], 2), (0, 0, 0, max(tokens - blocks * size, 0)))[:, :, :tokens]

    def _attend_middle(self, q: Tensor, k: Tensor, v: Tensor, groups: list[list[BlockGroup]]) -> Tensor:
        """All blocks but the first and the last."""
        size, heads = self.size, q.size(1)
        near_k, near_v = (x.unfold(2, 3 * size, size) for x in (k, v))
        near = key_chunks(near_k, near_v.transpose(-2, -1), heads)[0]
        ends_k, ends_v = (torch.cat([x[:, :, :size], x[:, :, -size:]], 2) for x in (k, v))
        ends = key_chunks(ends_k.transpose(-2, -1), ends_v, heads)[0]
        own = torch.unflatten(q[0, :, size:-size] * q.size(-1) ** -0.5, 1, (-1, size)).unbind(0)
        others: list[list[KeyChunk]] = [[] for _ in own]
        if self.drawn and self.random:
            whole_k, whole_v = (torch.unflatten(x, 2, (-1, size)) for x in (k, v))
            whole = key_chunks(whole_k, whole_v, heads)[0]
            chosen = self._middle_random_blocks(k.size(2) // size, heads, k.device)
            others = [
                [KeyChunk(x.k[some].flatten(1, 2).transpose(1, 2), x.v[some].flatten(1, 2))]
                for x, some in zip(whole, chosen, strict=True)
            ]  # the only copies of keys
        parts = zip(own, ends, near, others, groups if len(groups) > 1 else groups * heads, strict=True)
        return torch.stack([attend_blocks(x, [a, b, *c], plan).flatten(0, 1) for x, a, b, c, plan in parts])[None]

    def _middle_random_blocks(self, blocks: int, heads: int, device: torch.device) -> Tensor:
        chosen = self.random_blocks(torch.tensor([blocks], device=device), blocks, heads)
        return chosen[0, :, 1:-1]  # (heads, middle, random)

    def _block_groups(self, mask: Mask, blocks: int, q: Tensor) -> list[list[BlockGroup]]:
        """The biases of the middle blocks, one list per head; one list serves all heads if nothing is drawn."""
        size, device, drawn = self.size, q.device, bool(self.drawn and self.random)
        keys = (
            torch.ones(1, blocks * size, dtype=torch.bool, device=device) if mask.key_valid is None else mask.key_valid
        )
        near = keys[0].unfold(0, 3 * size, size).clone()  # (middle, keys)
        near[0, :size], near[-1, -size:] = False, False  # the first and the last block are a chunk of their own
        ends = torch.cat([keys[0, :size], keys[0, -size:]])
        weight = torch.zeros(2 * size, dtype=q.dtype, device=device)
        if self.random and not drawn:
            weight[:size] = math.log(1 + self.random)
        others: list[Tensor | None] = [None]
        if drawn:
            chosen = self._middle_random_blocks(blocks, q.size(1), device)
            others = [torch.unflatten(keys[0], 0, (-1, size))[some].flatten(1) for some in chosen]
        sizes = group_sizes(blocks - 2, size * (5 + self.random) * size, device)
        plans = []
        for other in others:
            groups, done = [], 0
            for count in sizes:
                some = slice(done, done + count)
                visible = [ends[None, None], near[some, None], *([] if other is None else [other[some, None]])]
                (first, *rest), any_visible = visibility_biases(visible, q.dtype)
                groups.append(BlockGroup(count, (first + weight, *rest), any_visible))
                done += count
            plans.append(groups)
        return plans

    def _cache_key(self) -> tuple[object, ...]:
        return self.size, self.random, self.seed, self.drawn, self.kept_heads

    # --- by FlexAttention --------------------------------------------------------------------------------------------

    def _flex_mask(self, mask: Mask, q: Tensor) -> tuple[BlockMask, flex.ScoreRule | None]:
        size, tokens, key_valid = self.size, q.size(2), mask.key_valid
        visible_blocks, more = self._block_visibility(mask, q)
        one_head = visible_blocks.size(1) == 1

        def visible(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            index = row if key_valid is not None else 0, 0 if one_head else head, query // size, key // size
            return visible_blocks[index] & key_valid[row, key] if key_valid is not None else visible_blocks[index]

        def score(value: Tensor, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return value + more[row if key_valid is not None else 0, 0, query // size, key // size]

        partial = flex.coarsen(visible_blocks, size, tokens)
        blocks = flex.build_block_mask(partial, torch.zeros_like(partial), visible, tokens)
        return blocks, score if self.random and not self.drawn else None


@torch.library.custom_op("regard::draw_blocks", mutates_args=())  # opaque: to compile it takes minutes
def draw_blocks(blocks: Tensor, most: int, heads: int, random: int, seed: int) -> Tensor:
    i, k = torch.arange(most, device=blocks.device)[:, None], torch.arange(random, device=blocks.device)
    head = torch.arange(heads, device=blocks.device)[:, None, None]
    noise = hash_integers(
        hash_integers(hash_integers(hash_integers(k + seed) + i) + head) + seed
    )  # (heads, most, random)
    last = blocks[:, None, None, None] - 1
    low, high = (i - 1).clamp(min=1), torch.minimum(i + 1, last - 1)
    near = high - low + 1
    free = (last - 1 - near).clamp(min=1)
    begin, end = free * k // random, free * (k + 1) // random
    index = 1 + begin + noise % (end - begin).clamp(min=1)
    return torch.where(index < low, index, index + near)


@draw_blocks.register_fake
def _(blocks: Tensor, most: int, heads: int, random: int, seed: int) -> Tensor:
    return blocks.new_empty(len(blocks), heads, most, random)


def hash_integers(x: Tensor) -> Tensor:
    """A hash that is the same on every machine; torch does not promise that of its generators."""
    for _ in range(2):
        x = ((x ^ (x >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
    return x ^ (x >> 16)


def row_lengths(valid: Tensor) -> Tensor:
    """(batch,): the length of each row up to its last valid token."""
    return ((torch.arange(valid.size(1), device=valid.device) + 1) * valid).amax(1)


def truncate(mask: Mask, tokens: int) -> Mask:
    """The mask of the first tokens."""
    return mask if mask.key_valid is None else Mask(key_valid=mask.key_valid[:, :tokens])
