"""Blocked attention in plain torch: each block of queries attends to its own few keys; other scores are never built.

Neighboring blocks share most of their keys, as views of one tensor without copies.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

import torch
from torch import Tensor
from torch.nn import functional as F

BLOCK = 64  # queries; smaller blocks waste less at their edges but make the products slow
GROUP_SCORES = 2**18  # scores computed at once on a CPU, so that they stay in its cache


@dataclass(frozen=True)
class BlockGroup:
    """Blocks that are computed at once, with the biases of their scores, one per chunk of keys; None: no bias."""

    blocks: int
    biases: tuple[Tensor | None, ...]  # each broadcastable to (blocks, queries, keys of the chunk)
    any_visible: Tensor | None = None  # (blocks, queries, 1): 0 for queries without a visible key; None: no such query


@dataclass(frozen=True)
class KeyChunk:
    """Keys and values of one head: one set for all blocks, or one set per block."""

    k: Tensor  # (blocks, head_width, keys), or shared (head_width, keys)
    v: Tensor  # (blocks, keys, head_width), or shared (keys, head_width)


def attend_blocks(q: Tensor, chunks: Sequence[KeyChunk], groups: Sequence[BlockGroup]) -> Tensor:
    """The output of all blocks of one head. `q` (blocks, queries, head_width) is scaled already."""
    sizes = [group.blocks for group in groups]
    # Not by index: the gradient of each index is as large as all blocks together.
    parts = [(split_groups(chunk.k, sizes), split_groups(chunk.v, sizes)) for chunk in chunks]
    outputs = []
    for number, (group, own) in enumerate(zip(groups, torch.split(q, sizes), strict=True)):
        scores = [matmul_add(own, k[number], bias) for (k, _), bias in zip(parts, group.biases, strict=True)]
        weights = (scores[0] if len(scores) == 1 else torch.cat(scores, -1)).softmax(-1)
        shares = torch.split(weights, [each.size(-1) for each in scores], -1)
        out = matmul_add(shares[0], parts[0][1][number])
        for share, (_, v) in zip(shares[1:], parts[1:], strict=True):
            out = out + matmul_add(share, v[number])
        outputs.append(out if group.any_visible is None else out * group.any_visible)
    return torch.cat(outputs)


def split_groups(x: Tensor, sizes: list[int]) -> Sequence[Tensor]:
    """The parts of a tensor of three dimensions; one of two dimensions is shared by all."""
    return torch.split(x, sizes) if x.dim() == 3 else [x] * len(sizes)


def matmul_add(x: Tensor, y: Tensor, bias: Tensor | None = None) -> Tensor:
    """A batched matrix product; the second factor may be shared, and a bias added."""
    if y.dim() == 2:
        out = torch.unflatten(x.flatten(0, 1) @ y, 0, x.shape[:2])
        return out if bias is None else out + bias
    return torch.bmm(x, y) if bias is None else torch.baddbmm(bias.expand(x.size(0), x.size(1), -1), x, y)


def group_sizes(blocks: int, scores: int, device: torch.device) -> list[int]:
    """How many blocks, each with `scores` scores, to compute at once. A GPU takes all: kernel launches cost most."""
    most = max(GROUP_SCORES // scores, 1) if device.type == "cpu" else blocks
    return [min(most, blocks - done) for done in range(0, blocks, most)]


def to_blocks(x: Tensor, block: int, fill: int = 0) -> Tensor:
    """(rows, tokens) -> (rows, blocks, block)."""
    return torch.unflatten(F.pad(x, (0, -x.size(1) % block), value=fill), 1, (-1, block))


def to_context_blocks(x: Tensor, block: int, before: int, after: int, fill: int) -> Tensor:
    """(rows, tokens) -> (rows, blocks, before + block + after): each block with the tokens around it."""
    extra = -x.size(1) % block
    return F.pad(x, (before, after + extra), value=fill).unfold(1, before + block + after, block)


def heads_to_blocks(x: Tensor, block: int) -> Tensor:
    """(batch, heads, tokens, head_width) -> (batch, heads, blocks, block, head_width)."""
    extra = -x.size(2) % block
    return torch.unflatten(F.pad(x, (0, 0, 0, extra)) if extra else x, 2, (-1, block))


def heads_to_context_blocks(x: Tensor, block: int, before: int, after: int) -> Tensor:
    """Views of each block with the tokens around it: (batch, heads, blocks, head_width, before + block + after)."""
    extra = -x.size(2) % block
    return F.pad(x, (0, 0, before, after + extra)).unfold(2, before + block + after, block)


def key_chunks(k: Tensor, v: Tensor, heads: int) -> list[list[KeyChunk]]:
    """The chunk of every row and query head; key heads shared by several query heads repeat."""
    times = heads // k.size(1)
    return [
        [KeyChunk(*head) for head in zip(one.unbind(0), other.unbind(0), strict=True) for _ in range(times)]
        for one, other in zip(k.unbind(0), v.unbind(0), strict=True)
    ]


def visibility_biases(visible: Sequence[Tensor], dtype: torch.dtype) -> tuple[tuple[Tensor, ...], Tensor | None]:
    """Turn the visibility of every chunk, (blocks, queries, keys) bool, into biases and `BlockGroup.any_visible`.

    A query without a visible key attends to all keys here, and its output is multiplied by zero: gradients are finite.
    """
    all_hidden = ~reduce(or_, [each.any(-1) for each in visible])
    needed = all_hidden.device.type != "cpu" or torch.compiler.is_compiling() or bool(all_hidden.any())
    zero = torch.zeros((), dtype=dtype, device=all_hidden.device)
    hidden = [~each & ~all_hidden[..., None] if needed else ~each for each in visible]
    biases = tuple(zero.masked_fill(each, -torch.inf) for each in hidden)
    return biases, (~all_hidden)[..., None].to(dtype) if needed else None
