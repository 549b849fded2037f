"""FlexAttention (2412.05496) on a GPU, in compiled code: blocks of keys that no token of a block may see are skipped.

Packed rows use it, windows and random blocks. It says nothing that the mask does not say: everywhere else other code
gives the same numbers.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from .masks import Mask

BLOCK = 128  # tokens


def serves(mask: Mask, device: torch.device) -> bool:
    """Is this a packed row that compiled code is looking at? Interpreted, FlexAttention would be slow."""
    others = mask.exclude_self or any(
        word is not None for word in (mask.window, mask.key_positions, mask.key_valid, mask.beam_ancestry)
    )
    return mask.segments is not None and not others and device.type == "cuda" and torch.compiler.is_compiling()


def mixed(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None) -> Tensor:
    blocks = blocked(mask, q.size(2), k.size(2), q.device)
    found: Tensor = flex_attention(q, k, v, block_mask=blocks, scale=scale, enable_gqa=q.size(1) != k.size(1))
    return found


def blocked(mask: Mask, queries: int, keys: int, device: torch.device) -> Any:
    """The block mask; one serves all layers of a stack."""
    return mask.cached(("flex", queries, keys), lambda: _blocked(mask, queries, keys, device))


def _blocked(mask: Mask, queries: int, keys: int, device: torch.device) -> Any:
    segments = mask.segments
    assert segments is not None
    others = segments if mask.key_segments is None else mask.key_segments
    at, keys_at = mask.query_key_positions(queries, keys, device)
    at, keys_at = at.expand(len(segments), -1), keys_at.expand(len(segments), -1)
    causal = mask.causal

    def visible(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        same = segments[row, query] == others[row, key]
        return same & (at[row, query] >= keys_at[row, key]) if causal else same

    return create_block_mask(visible, len(segments), None, queries, keys, device=device)


# --- patterns that are known by their blocks: no table of all pairs is ever looked at ---------------------------------


def compiling(device: torch.device) -> bool:
    """Interpreted, FlexAttention would be slow."""
    return device.type == "cuda" and torch.compiler.is_compiling()


def attend(q: Tensor, k: Tensor, v: Tensor, blocks: Any, score: Any = None) -> Tensor:
    found: Tensor = flex_attention(q, k, v, score_mod=score, block_mask=blocks, enable_gqa=q.size(1) != k.size(1))
    return found


def blocks(tokens: int) -> int:
    return -(-tokens // BLOCK)


def any_in_blocks(words: Tensor) -> Tensor:
    """(batch, tokens) bool: in which blocks something is true, (batch, blocks)."""
    return torch.unflatten(F.pad(words, (0, -words.size(1) % BLOCK)), 1, (-1, BLOCK)).any(-1)


def alike(words: Tensor) -> tuple[Tensor, Tensor]:
    """(batch, tokens) whole numbers: in which two blocks some may be equal, and in which all are; (batch, 1, blocks,
    blocks) each."""
    extra, most = (0, -words.size(1) % BLOCK), torch.iinfo(words.dtype).max
    low, high = (torch.unflatten(F.pad(words, extra, value=value), 1, (-1, BLOCK)) for value in (most, -most))
    low, high = low.amin(-1)[:, None], high.amax(-1)[:, None]
    met = (low[..., None] <= high[..., None, :]) & (low[..., None, :] <= high[..., None])
    return met, (low[..., None] == high[..., None, :]) & (low[..., None, :] == high[..., None])


def coarse(seen: Tensor, size: int, tokens: int) -> Tensor:
    """(…, n, n) by blocks of `size` tokens: in which of our blocks, larger or smaller, something is seen."""
    begin = torch.arange(blocks(tokens), device=seen.device) * BLOCK
    low, high = begin // size, (begin + BLOCK - 1).clamp(max=tokens - 1) // size
    for axis in (-1, -2):
        sums = F.pad(seen.transpose(-1, axis).int().cumsum(-1), (1, 0))
        seen = (sums[..., high + 1] > sums[..., low]).transpose(-1, axis)
    return seen


def sparse(part: Tensor, full: Tensor, visible: Any, tokens: int) -> BlockMask:
    """`part` and `full` (batch or 1, heads or 1, blocks, blocks): where `visible` is asked, where all is visible."""

    def listed(chosen: Tensor) -> tuple[Tensor, Tensor]:
        chosen = chosen.contiguous()  # with gradients, FlexAttention reads the lists as if they were, whatever they are
        order = chosen.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)
        return chosen.sum(-1, dtype=torch.int32), order.to(torch.int32)

    whole = torch.arange(part.size(-1), device=part.device) < tokens // BLOCK  # the last block may be cut off
    full = full & whole[:, None] & whole[None]
    return BlockMask.from_kv_blocks(
        *listed(part & ~full), *listed(part & full), BLOCK, visible, seq_lengths=(tokens, tokens)
    )
