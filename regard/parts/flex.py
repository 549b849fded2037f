"""FlexAttention (2412.05496) in compiled code on a GPU: it skips blocks of keys that no query of a block attends to.

Packed rows, windows and block-sparse attention use it. The results equal those of the other kernels.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from .masks import Mask

BLOCK = 128  # tokens
MaskRule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # (row, head, query, key) -> visible
ScoreRule = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]  # (score, row, head, query, key) -> score


def supports_packed(mask: Mask, device: torch.device) -> bool:
    """True for packed rows in compiled code on a GPU, without other rules. Without compilation it would be slow."""
    packed = mask.segments is not None and mask.only("causal", "positions", "segments", "key_segments")
    return packed and device.type == "cuda" and torch.compiler.is_compiling()


def attend_packed(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None) -> Tensor:
    """Attention within the texts of packed rows."""
    blocks = packed_block_mask(mask, q.size(2), k.size(2), q.device)
    out: Tensor = flex_attention(q, k, v, block_mask=blocks, scale=scale, enable_gqa=q.size(1) != k.size(1))
    return out


def packed_block_mask(mask: Mask, queries: int, keys: int, device: torch.device) -> BlockMask:
    """The block mask of packed rows; one serves all layers of a stack."""
    return mask.cached(("flex", queries, keys), lambda: _packed_block_mask(mask, queries, keys, device))


def _packed_block_mask(mask: Mask, queries: int, keys: int, device: torch.device) -> BlockMask:
    segments = mask.segments
    assert segments is not None
    key_segments = segments if mask.key_segments is None else mask.key_segments
    positions, key_positions = mask.query_key_positions(queries, keys, device)
    positions, key_positions = positions.expand(len(segments), -1), key_positions.expand(len(segments), -1)
    causal = mask.causal

    def visible(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        same = segments[row, query] == key_segments[row, key]
        return same & (positions[row, query] >= key_positions[row, key]) if causal else same

    return create_block_mask(visible, len(segments), None, queries, keys, device=device)


# --- patterns known block by block: no table of all pairs is ever built -----------------------------------------------


def is_compiling(device: torch.device) -> bool:
    """True in compiled code on a GPU. Without compilation FlexAttention would be slow."""
    return device.type == "cuda" and torch.compiler.is_compiling()


def attend(q: Tensor, k: Tensor, v: Tensor, blocks: BlockMask, score: ScoreRule | None = None) -> Tensor:
    """Attention by FlexAttention, with the rule of a mask."""
    out: Tensor = flex_attention(q, k, v, score_mod=score, block_mask=blocks, enable_gqa=q.size(1) != k.size(1))
    return out


def block_count(tokens: int) -> int:
    """The number of blocks that cover the tokens."""
    return -(-tokens // BLOCK)


def any_in_blocks(flags: Tensor) -> Tensor:
    """(batch, tokens) bool -> (batch, blocks): which blocks contain a true value."""
    return torch.unflatten(F.pad(flags, (0, -flags.size(1) % BLOCK)), 1, (-1, BLOCK)).any(-1)


def block_equality(values: Tensor) -> tuple[Tensor, Tensor]:
    """(batch, tokens) integers -> for each pair of blocks, whether some values may be equal, and whether all are;
    (batch, 1, blocks, blocks) each."""
    padding, most = (0, -values.size(1) % BLOCK), torch.iinfo(values.dtype).max
    low, high = (torch.unflatten(F.pad(values, padding, value=value), 1, (-1, BLOCK)) for value in (most, -most))
    low, high = low.amin(-1)[:, None], high.amax(-1)[:, None]
    some = (low[..., None] <= high[..., None, :]) & (low[..., None, :] <= high[..., None])
    return some, (low[..., None] == high[..., None, :]) & (low[..., None, :] == high[..., None])


def coarsen(visible: Tensor, size: int, tokens: int) -> Tensor:
    """(…, n, n) visibility between blocks of `size` tokens -> which pairs of our blocks have a visible part."""
    begin = torch.arange(block_count(tokens), device=visible.device) * BLOCK
    low, high = begin // size, (begin + BLOCK - 1).clamp(max=tokens - 1) // size
    for axis in (-1, -2):
        sums = F.pad(visible.transpose(-1, axis).int().cumsum(-1), (1, 0))
        visible = (sums[..., high + 1] > sums[..., low]).transpose(-1, axis)
    return visible


def build_block_mask(partial: Tensor, full: Tensor, visible: MaskRule, tokens: int) -> BlockMask:
    """`partial` and `full` (batch or 1, heads or 1, blocks, blocks): block pairs to check with `visible`, and block
    pairs that are visible entirely."""

    def listed(chosen: Tensor) -> tuple[Tensor, Tensor]:
        chosen = chosen.contiguous()  # with gradients, FlexAttention assumes contiguous lists
        order = chosen.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)
        return chosen.sum(-1, dtype=torch.int32), order.to(torch.int32)

    whole = torch.arange(partial.size(-1), device=partial.device) < tokens // BLOCK  # the last block may be cut off
    full = full & whole[:, None] & whole[None]
    return BlockMask.from_kv_blocks(
        *listed(partial & ~full), *listed(partial & full), BLOCK, visible, seq_lengths=(tokens, tokens)
    )
