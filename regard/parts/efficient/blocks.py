"""BigBird's blocks (2007.14062): neighbouring blocks, the first and the last one, and a few that are drawn for good.

Tokens stand in blocks. Each block sees itself and its neighbours, the first and the last block, and `random` others, of
which every head of every layer has its own; the first and the last block see everything. A text of few blocks sees
itself whole. All this goes by a text's own length: padding and its batch-mates change nothing.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .. import flex
from ..cache.base import LayerCache
from ..kernels import Kernel, SoftmaxKernel, normalised, spread
from ..masks import Mask
from .blocked import BlockGroup, KeyChunk, biases, group_sizes, mixed, pieces


class BlockSparseKernel(Kernel):
    """O(tokens · size). With `drawn` false, the `random` blocks are all the first one once more, which then counts so
    many times: that is how transformers reads outside training, and what its published figures are of."""

    biasable, causal = False, False

    def __init__(self, size: int = 64, random: int = 3, seed: int = 0, drawn: bool = True) -> None:
        super().__init__()
        self.size, self.random, self.seed, self.drawn, self.inner = size, random, seed, drawn, SoftmaxKernel()

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None = None, memory: LayerCache | None = None
    ) -> Tensor:
        refuse(mask)
        tokens = q.size(2)
        if tokens <= self.few:
            dense: Tensor = self.inner(q, k, v, mask)
            return dense
        if flex.compiling(q.device):
            blocks, score = mask.cached(("flex", *self._key(q)), lambda: self._flexed(mask, q))
            return flex.attend(q, k, v, blocks, score)
        rows = mask.cached(
            "lengths", lambda: [tokens] * len(q) if mask.key_valid is None else lengths(mask.key_valid).tolist()
        )
        texts = zip(*(torch.split(x, 1) for x in (q, k, v)), rows, range(len(q)), strict=True)
        return torch.cat([self._row(a, b, c, length, mask, row) for a, b, c, length, row in texts])

    @property
    def few(self) -> int:
        """A text of so many tokens sees itself whole."""
        return (5 + 2 * self.random) * self.size

    def prepare(self, mask: Mask, queries: int, keys: int, device: torch.device) -> None:
        refuse(mask)
        if queries <= self.few:
            self.inner.prepare(mask, queries, keys, device)

    def weights(self, q: Tensor, k: Tensor, mask: Mask, bias: Tensor | None = None) -> Tensor:
        refuse(mask)
        scores = q @ spread(k, q.size(1)).transpose(-2, -1) * q.size(-1) ** -0.5
        seen, more = self._table(mask, q)
        large = [each.repeat_interleave(self.size, 2).repeat_interleave(self.size, 3) for each in (seen, more)]
        seen, more = (each[:, :, : q.size(2), : q.size(2)] for each in large)
        return normalised(scores + more, mask, scores.new_zeros(()).masked_fill(~seen, -torch.inf))

    # --- who sees whom -----------------------------------------------------------------------------------------------

    def picks(self, blocks: Tensor, most: int, heads: int) -> Tensor:
        """Of texts of so many blocks, which ones each block sees besides: (rows, heads, most, random).

        Blocks that it does not see anyway are cut into `random` runs and one is taken of each, so none comes twice.
        What is taken is a function of the seed, the head, the block and the text's length, of nothing else.
        """
        found: Tensor = picked(blocks, most, heads, self.random, self.seed)
        return found

    def _table(self, mask: Mask, q: Tensor) -> tuple[Tensor, Tensor]:
        """By blocks, (rows, heads or 1, blocks, blocks): what is seen, and what is added to the scores."""
        heads, most = q.size(1), -(-q.size(2) // self.size)
        tokens = torch.full((1,), q.size(2), device=q.device) if mask.key_valid is None else lengths(mask.key_valid)
        blocks, i = -(-tokens // self.size), torch.arange(most, device=q.device)
        last = (blocks - 1)[:, None, None, None]
        query, key = i[:, None], i[None]
        seen = (key == 0) | (key == last) | (query == 0) | (query == last) | ((query - key).abs() <= 1)
        middle = (query > 0) & (query < last) & (tokens > self.few)[:, None, None, None]
        more = torch.zeros(seen.shape, device=q.device, dtype=q.dtype)
        if self.drawn and self.random:
            chosen = self.picks(blocks, most, heads).clamp(0, most - 1)
            drawn = torch.zeros(len(blocks), heads, most, most, dtype=torch.bool, device=q.device)
            seen = seen | (drawn.scatter(3, chosen, True) & middle)
        elif self.random:
            more = more.masked_fill(middle & (key == 0), math.log(1 + self.random))
        return seen | (tokens <= self.few)[:, None, None, None], more

    # --- in blocks ---------------------------------------------------------------------------------------------------

    def _row(self, q: Tensor, k: Tensor, v: Tensor, length: int, mask: Mask, row: int) -> Tensor:
        """One text, (1, heads, tokens, head_width)."""
        size, tokens, own = (
            self.size,
            q.size(2),
            mask if mask.key_valid is None else Mask(key_valid=mask.key_valid[row : row + 1]),
        )
        if length <= self.few:
            few: Tensor = self.inner(q, k[:, :, : self.few], v[:, :, : self.few], cut_off(own, self.few))
            return few
        blocks = -(-length // size)
        extra, own = max(blocks * size - tokens, 0), cut_off(own, blocks * size)
        q, k, v = (F.pad(x, (0, 0, 0, extra)) if extra else x[:, :, : blocks * size] for x in (q, k, v))
        if extra or own.key_valid is not None:
            keys = torch.ones(1, tokens, dtype=torch.bool, device=q.device) if own.key_valid is None else own.key_valid
            own = Mask(key_valid=F.pad(keys, (0, blocks * size - keys.size(1))))
        groups = mask.cached(("blocks", row, *self._key(q)), lambda: self._groups(own, blocks, q))
        ends = torch.cat([q[:, :, :size], q[:, :, -size:]], 2)
        first, last = self.inner(ends, k, v, own).split(size, 2)
        middle = self._middle(q, k, v, groups)
        return F.pad(torch.cat([first, middle, last], 2), (0, 0, 0, max(tokens - blocks * size, 0)))[:, :, :tokens]

    def _middle(self, q: Tensor, k: Tensor, v: Tensor, groups: list[list[BlockGroup]]) -> Tensor:
        """All blocks but the first and the last."""
        size, heads = self.size, q.size(1)
        near_k, near_v = (x.unfold(2, 3 * size, size) for x in (k, v))
        near = pieces(near_k, near_v.transpose(-2, -1), heads)[0]
        ends_k, ends_v = (torch.cat([x[:, :, :size], x[:, :, -size:]], 2) for x in (k, v))
        ends = pieces(ends_k.transpose(-2, -1), ends_v, heads)[0]
        own = torch.unflatten(q[0, :, size:-size] * q.size(-1) ** -0.5, 1, (-1, size)).unbind(0)
        others: list[list[KeyChunk]] = [[] for _ in own]
        if self.drawn and self.random:
            whole_k, whole_v = (torch.unflatten(x, 2, (-1, size)) for x in (k, v))
            whole = pieces(whole_k, whole_v, heads)[0]
            chosen = self._chosen(k.size(2) // size, heads, k.device)
            others = [
                [KeyChunk(x.k[some].flatten(1, 2).transpose(1, 2), x.v[some].flatten(1, 2))]
                for x, some in zip(whole, chosen, strict=True)
            ]  # the only keys that are copied
        parts = zip(own, ends, near, others, groups if len(groups) > 1 else groups * heads, strict=True)
        return torch.stack([mixed(x, [a, b, *c], plan).flatten(0, 1) for x, a, b, c, plan in parts])[None]

    def _chosen(self, blocks: int, heads: int, device: torch.device) -> Tensor:
        return self.picks(torch.tensor([blocks], device=device), blocks, heads)[0, :, 1:-1]  # (heads, middle, random)

    def _groups(self, mask: Mask, blocks: int, q: Tensor) -> list[list[BlockGroup]]:
        """What is added to the scores of the middle blocks; one list serves all heads where nothing is drawn."""
        size, device, drawn = self.size, q.device, bool(self.drawn and self.random)
        keys = (
            torch.ones(1, blocks * size, dtype=torch.bool, device=device) if mask.key_valid is None else mask.key_valid
        )
        near = keys[0].unfold(0, 3 * size, size).clone()  # (middle, keys)
        near[0, :size], near[-1, -size:] = False, False  # the first and the last block are looked at apart
        ends = torch.cat([keys[0, :size], keys[0, -size:]])
        weight = torch.zeros(2 * size, dtype=q.dtype, device=device)
        if self.random and not drawn:
            weight[:size] = math.log(1 + self.random)
        others: list[Tensor | None] = [None]
        if drawn:
            chosen = self._chosen(blocks, q.size(1), device)
            others = [torch.unflatten(keys[0], 0, (-1, size))[some].flatten(1) for some in chosen]
        sizes = group_sizes(blocks - 2, size * (5 + self.random) * size, device)
        plans = []
        for other in others:
            groups, done = [], 0
            for count in sizes:
                some = slice(done, done + count)
                seen = [ends[None, None], near[some, None], *([] if other is None else [other[some, None]])]
                (first, *rest), open = biases(seen, q.dtype)
                groups.append(BlockGroup(count, (first + weight, *rest), open))
                done += count
            plans.append(groups)
        return plans

    def _key(self, q: Tensor) -> tuple[Any, ...]:
        return self.size, self.random, self.seed, self.drawn

    # --- by FlexAttention --------------------------------------------------------------------------------------------

    def _flexed(self, mask: Mask, q: Tensor) -> tuple[Any, Any]:
        size, tokens, keys = self.size, q.size(2), mask.key_valid
        seen, more = self._table(mask, q)
        one = seen.size(1) == 1

        def visible(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            found = seen[row if keys is not None else 0, 0 if one else head, query // size, key // size]
            return found & keys[row, key] if keys is not None else found

        def score(found: Tensor, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return found + more[row if keys is not None else 0, 0, query // size, key // size]

        part = flex.coarse(seen, size, tokens)
        blocks = flex.sparse(part, torch.zeros_like(part), visible, tokens)
        return blocks, score if self.random and not self.drawn else None


@torch.library.custom_op("regard::picked", mutates_args=())  # a compiler that looked inside would need minutes
def picked(blocks: Tensor, most: int, heads: int, random: int, seed: int) -> Tensor:
    i, k = torch.arange(most, device=blocks.device)[:, None], torch.arange(random, device=blocks.device)
    head = torch.arange(heads, device=blocks.device)[:, None, None]
    luck = scrambled(scrambled(scrambled(scrambled(k + seed) + i) + head) + seed)  # (heads, most, random)
    last = blocks[:, None, None, None] - 1
    low, high = (i - 1).clamp(min=1), torch.minimum(i + 1, last - 1)
    near = high - low + 1
    free = (last - 1 - near).clamp(min=1)
    begin, end = free * k // random, free * (k + 1) // random
    place = 1 + begin + luck % (end - begin).clamp(min=1)
    return torch.where(place < low, place, place + near)


@picked.register_fake
def _(blocks: Tensor, most: int, heads: int, random: int, seed: int) -> Tensor:
    return blocks.new_empty(len(blocks), heads, most, random)


def scrambled(x: Tensor) -> Tensor:
    """Numbers without visible order, the same on every machine: what a generator says is no promise of torch's."""
    for _ in range(2):
        x = ((x ^ (x >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
    return x ^ (x >> 16)


def lengths(keys: Tensor) -> Tensor:
    """(batch,) how many tokens each row has up to its last real one."""
    return ((torch.arange(keys.size(1), device=keys.device) + 1) * keys).amax(1)


def cut_off(mask: Mask, tokens: int) -> Mask:
    return mask if mask.key_valid is None else Mask(key_valid=mask.key_valid[:, :tokens])


def refuse(mask: Mask) -> None:
    if mask.segments is not None:
        raise ValueError(
            "attention in random blocks goes by one text's length and cannot pack; pad instead (data.packed)"
        )
    if mask.causal:
        raise ValueError("attention in random blocks sees later tokens and cannot be causal; use it in an encoder")
    if (
        mask.exclude_self
        or mask.window is not None
        or mask.global_positions is not None
        or mask.beam_ancestry is not None
    ):
        raise ValueError(
            "attention in random blocks has its own pattern and can leave out padding only; use dense or window"
        )
