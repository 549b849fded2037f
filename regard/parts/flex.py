"""Dense attention over packed rows on a GPU: FlexAttention skips the blocks where no query may see any key."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from .masks import Mask

_compiled: Any = torch.compile(flex_attention)


def serves(q: Tensor, mask: Mask, bias: Tensor | None, dropout: float) -> bool:
    """Packed rows whose keys are described by segments, on CUDA, without scores to add and without dropout."""
    plain = bias is None and not dropout and mask.keys is None and mask.kin is None and mask.reach is None
    return q.is_cuda and mask.segments is not None and plain and not mask.others


def mixed(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None) -> Tensor:
    blocks = blocked(mask, q.size(2), k.size(2), q.device)
    attend = flex_attention if torch.compiler.is_compiling() else _compiled
    out: Tensor = attend(q, k, v, block_mask=blocks, scale=scale)
    return out


def blocked(mask: Mask, queries: int, keys: int, device: torch.device) -> BlockMask:
    """The mask as FlexAttention takes it, made once for all layers."""
    return mask.form(("flex", queries, keys), lambda: _blocked(mask, queries, keys, device))


def _blocked(mask: Mask, queries: int, keys: int, device: torch.device) -> BlockMask:
    assert mask.segments is not None
    own = mask.segments
    other = own if mask.keys_segments is None else mask.keys_segments
    at, keys_at = (places.expand(len(own), -1) for places in mask.places(queries, keys, device))

    def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        same = own[batch, query] == other[batch, key]
        return same & (at[batch, query] >= keys_at[batch, key]) if mask.causal else same

    return create_block_mask(seen, len(own), None, queries, keys, device=device)
