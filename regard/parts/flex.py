"""Packed rows on a GPU by FlexAttention (2412.05496), in compiled code: blocks that no token may see are skipped.

It says nothing that the mask does not say: everywhere else, and for every other mask, SDPA gives the same numbers.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from .masks import Mask


def serves(mask: Mask, device: torch.device) -> bool:
    """Is this a packed row that compiled code is looking at? Interpreted, FlexAttention would be slow."""
    others = mask.others or any(word is not None for word in (mask.reach, mask.keys_at, mask.keys, mask.kin))
    return mask.segments is not None and not others and device.type == "cuda" and torch.compiler.is_compiling()


def mixed(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None) -> Tensor:
    blocks = blocked(mask, q.size(2), k.size(2), q.device)
    found: Tensor = flex_attention(q, k, v, block_mask=blocks, scale=scale, enable_gqa=q.size(1) != k.size(1))
    return found


def blocked(mask: Mask, queries: int, keys: int, device: torch.device) -> Any:
    """The block mask; one serves all layers of a stack."""
    return mask.form(("flex", queries, keys), lambda: _blocked(mask, queries, keys, device))


def _blocked(mask: Mask, queries: int, keys: int, device: torch.device) -> Any:
    segments = mask.segments
    assert segments is not None
    others = segments if mask.keys_segments is None else mask.keys_segments
    at, keys_at = mask.places(queries, keys, device)
    at, keys_at = at.expand(len(segments), -1), keys_at.expand(len(segments), -1)
    causal = mask.causal

    def visible(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        same = segments[row, query] == others[row, key]
        return same & (at[row, query] >= keys_at[row, key]) if causal else same

    return create_block_mask(visible, len(segments), None, queries, keys, device=device)
