"""Attention block by block in plain torch: each block of queries looks at its own few keys, and nobody builds the rest.

Neighbouring blocks share most of their keys; these are views of one tensor, never copies.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

import torch
from torch import Tensor
from torch.nn import functional as F

BLOCK = 64  # queries; fewer would waste less of what a block sees at its rim, and make the products slow
TABLE = 2**18  # scores at once on a CPU, which then stay near it


@dataclass(frozen=True)
class BlockGroup:
    """Blocks that are mixed at once. What is added to their scores, for every piece of their keys; None: nothing."""

    blocks: int
    biases: tuple[Tensor | None, ...]  # each broadcastable to (blocks, queries, keys of the piece)
    open: Tensor | None = None  # (blocks, queries, 1): 0 where a query sees nothing; None: all see something


@dataclass(frozen=True)
class KeyChunk:
    """Keys of one head: a few that all blocks share, (keys, head_width), or each block's own."""

    k: Tensor  # (blocks, head_width, keys), or shared (head_width, keys)
    v: Tensor  # (blocks, keys, head_width), or shared (keys, head_width)


def mixed(q: Tensor, pieces: Sequence[KeyChunk], groups: Sequence[BlockGroup]) -> Tensor:
    """What all blocks of one head see. `q` (blocks, queries, head_width) is scaled already."""
    sizes = [group.blocks for group in groups]
    # Not by index: that gradient is as large as all blocks together, for every group.
    parts = [(split(piece.k, sizes), split(piece.v, sizes)) for piece in pieces]
    found = []
    for number, (group, own) in enumerate(zip(groups, torch.split(q, sizes), strict=True)):
        scores = [product(own, k[number], bias) for (k, _), bias in zip(parts, group.biases, strict=True)]
        weights = (scores[0] if len(scores) == 1 else torch.cat(scores, -1)).softmax(-1)
        shares = torch.split(weights, [each.size(-1) for each in scores], -1)
        out = product(shares[0], parts[0][1][number])
        for share, (_, v) in zip(shares[1:], parts[1:], strict=True):
            out = out + product(share, v[number])
        found.append(out if group.open is None else out * group.open)
    return torch.cat(found)


def split(x: Tensor, sizes: list[int]) -> Sequence[Tensor]:
    return torch.split(x, sizes) if x.dim() == 3 else [x] * len(sizes)


def product(x: Tensor, y: Tensor, bias: Tensor | None = None) -> Tensor:
    if y.dim() == 2:
        made = torch.unflatten(x.flatten(0, 1) @ y, 0, x.shape[:2])
        return made if bias is None else made + bias
    return torch.bmm(x, y) if bias is None else torch.baddbmm(bias.expand(x.size(0), x.size(1), -1), x, y)


def group_sizes(blocks: int, scores: int, device: torch.device) -> list[int]:
    """How many blocks, each with so many scores, are mixed at once. A GPU takes all: starting work is what costs."""
    most = max(TABLE // scores, 1) if device.type == "cpu" else blocks
    return [min(most, blocks - done) for done in range(0, blocks, most)]


def cut(x: Tensor, block: int, fill: int = 0) -> Tensor:
    """(rows, tokens) in blocks: (rows, blocks, block)."""
    return torch.unflatten(F.pad(x, (0, -x.size(1) % block), value=fill), 1, (-1, block))


def around(x: Tensor, block: int, before: int, after: int, fill: int) -> Tensor:
    """(rows, tokens): each block with so many before and after it, (rows, blocks, before + block + after)."""
    extra = -x.size(1) % block
    return F.pad(x, (before, after + extra), value=fill).unfold(1, before + block + after, block)


def cut_heads(x: Tensor, block: int) -> Tensor:
    """(batch, heads, tokens, head_width) in blocks: (batch, heads, blocks, block, head_width)."""
    extra = -x.size(2) % block
    return torch.unflatten(F.pad(x, (0, 0, 0, extra)) if extra else x, 2, (-1, block))


def around_heads(x: Tensor, block: int, before: int, after: int) -> Tensor:
    """Views of each block with what is around it: (batch, heads, blocks, head_width, before + block + after)."""
    extra = -x.size(2) % block
    return F.pad(x, (0, 0, before, after + extra)).unfold(2, before + block + after, block)


def pieces(k: Tensor, v: Tensor, heads: int) -> list[list[KeyChunk]]:
    """Of every row and query head; keys that serve several heads come as often."""
    times = heads // k.size(1)
    return [
        [KeyChunk(*head) for head in zip(one.unbind(0), other.unbind(0), strict=True) for _ in range(times)]
        for one, other in zip(k.unbind(0), v.unbind(0), strict=True)
    ]


def biases(seen: Sequence[Tensor], dtype: torch.dtype) -> tuple[tuple[Tensor, ...], Tensor | None]:
    """What may be seen of every piece, (blocks, queries, keys) bool, as what is added to scores, and who sees anything.

    A query that sees nothing may see all of it here and is multiplied by zero after: so its gradient is finite.
    """
    blind = ~reduce(or_, [each.any(-1) for each in seen])
    look = blind.device.type != "cpu" or torch.compiler.is_compiling() or bool(blind.any())
    nothing = torch.zeros((), dtype=dtype, device=blind.device)
    hidden = [~each & ~blind[..., None] if look else ~each for each in seen]
    made = tuple(nothing.masked_fill(each, -torch.inf) for each in hidden)
    return made, (~blind)[..., None].to(dtype) if look else None
