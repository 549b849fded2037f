"""Multi-head attention: project, rotate, cache, mix, project back. All families use this class."""

from typing import TypedDict

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .cache.base import CacheLayout, CrossCache, LayerCache, LayoutSpec
from .kernels import Kernel, SoftmaxKernel
from .masks import Mask
from .mixer import SequenceMixer
from .positions import NO_POSITIONS, PositionTerms
from .recording import current_recorder

ALL_VISIBLE = Mask()
FUSED_DEVICES = ("cuda",)  # where one large product is faster than three; elsewhere it only copies the weights


class Projections(TypedDict, total=False):
    """Optional arguments of Attention: the shapes of its projections."""

    key_heads: int
    head_width: int
    bias: bool
    key_bias: bool | None


class Attention(SequenceMixer):
    """Multi-head attention: projections, rotation, cache, kernel, output projection."""

    fused = False  # one product for query, key and value of self-attention: for inputs of many tokens

    def __init__(
        self,
        width: int,
        heads: int,
        kernel: Kernel | None = None,
        *,
        key_heads: int = 0,
        head_width: int = 0,
        bias: bool = True,
        key_bias: bool | None = None,
        out: bool = True,
    ) -> None:
        """`key_heads` (2305.13245): fewer key and value heads than query heads, each shared by a group of them."""
        super().__init__()
        if not head_width and width % heads:
            raise ValueError(uneven_heads_message(width, heads))
        self.heads, self.head_width, self.key_heads = heads, head_width or width // heads, key_heads or heads
        if heads % self.key_heads:
            raise ValueError(f"{heads} heads cannot share {self.key_heads} key heads evenly; use a divisor of {heads}")
        inner, shared = heads * self.head_width, self.key_heads * self.head_width
        self.query = nn.Linear(width, inner, bias=bias)
        self.key = nn.Linear(width, shared, bias=bias if key_bias is None else key_bias)
        self.value = nn.Linear(width, shared, bias=bias)
        self.out = nn.Linear(inner, width, bias=bias) if out else nn.Identity()
        self.kernel = kernel or SoftmaxKernel()
        self.kept: Tensor | None
        self.register_buffer("kept", None, persistent=False)  # the numbers of the heads that pruning has left

    def forward(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        mask: Mask,
        position_terms: PositionTerms | None = None,
        layer_cache: LayerCache | None = None,
    ) -> Tensor:
        """Inputs (batch, tokens, width). A `CrossCache` already holds all keys and values: then both are None."""
        terms = position_terms or NO_POSITIONS
        if isinstance(layer_cache, CrossCache):
            q, k, v = self.split_heads(self.query(query)), layer_cache.k, layer_cache.v
            bias = terms.bias(q)
        else:
            assert key is not None and value is not None
            query, key = terms.add_to_query_key(query, key)
            if layer_cache is not None:
                key, value = layer_cache.extend_inputs(key, value)
            q, k, v = (self.split_heads(x) for x in self.project_qkv(query, key, value))
            if len(q) == len(k) == 1 < len(v):  # all rows share queries and keys, such as those of positions
                q, k = q.expand(len(v), -1, -1, -1), k.expand(len(v), -1, -1, -1)
            bias = terms.bias(q)
            q, k = terms.rotate(q, k)
            if layer_cache is not None:
                k, v = layer_cache.append(k, v)  # now all keys that `mask` describes
        if bias is not None and self.kept is not None and bias.size(1) > self.heads:  # a table for all heads
            bias = bias[:, self.kept]
        mask = ALL_VISIBLE if terms.includes_mask else mask
        if (record := current_recorder()) is not None:
            record(self, q, k, mask, bias)
        mixed = self.kernel(q, k, v, mask, bias, layer_cache)  # (batch, heads, queries, head_width)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out

    def weights(self, q: Tensor, k: Tensor, mask: Mask, bias: Tensor | None) -> Tensor:
        """The weights that a recorder gets: (batch, heads, queries, keys)."""
        return self.kernel.weights(q, k, mask, bias)

    def project_qkv(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The queries, keys and values, split into heads."""
        if self.fused and query is key and key is value and query.device.type in FUSED_DEVICES and self._plain_maps():
            maps = self.query, self.key, self.value
            weight = torch.cat([linear.weight for linear in maps])
            bias = None if self.query.bias is None else torch.cat([linear.bias for linear in maps])
            q, k, v = torch.split(F.linear(query, weight, bias), [linear.out_features for linear in maps], -1)
            return q, k, v
        return self.query(query), self.key(key), self.value(value)

    def _plain_maps(self) -> bool:
        """True if the maps are linear layers as they were built: no precision, no LoRA branches."""
        maps = self.query, self.key, self.value
        plain = all(type(linear) is nn.Linear and not linear._forward_hooks for linear in maps)
        return plain and len({linear.bias is None for linear in maps}) == 1

    @property
    def unpadded(self) -> bool:
        """True if it accepts rows without padding. Subclasses must opt in."""
        return type(self) is Attention and self.kernel.unpadded

    def split_heads(self, x: Tensor) -> Tensor:
        """(batch, tokens, width) -> (batch, heads, tokens, width of a head)"""
        heads = torch.unflatten(x, -1, (-1, self.head_width))
        return heads.transpose(1, 2)  # (batch, heads, tokens, head_width)

    def project_source(self, source: Tensor) -> CrossCache:
        """Keys and values of a source, (batch, tokens, width), for cross-attention."""
        k, v = self.split_heads(self.key(source)), self.split_heads(self.value(source))
        return CrossCache(k.contiguous(), v.contiguous())  # every later step reads them

    def prepare(self, mask: Mask, queries: int, keys: int, device: torch.device) -> None:
        self.kernel.prepare(mask, queries, keys, device)

    def cache_layout(self, capacity: int | None) -> LayoutSpec:
        return self.kernel.cache_layout(capacity)

    def layer_cache(self, layout: CacheLayout, rows: int) -> LayerCache:
        return self.kernel.layer_cache(layout, rows, self.key_heads, self.head_width, self.query.weight)


def fuse_projections(model: nn.Module) -> None:
    """Let every attention of the model compute query, key and value by one product, where that is faster."""
    for part in model.modules():
        if isinstance(part, Attention):
            part.fused = True


def uneven_heads_message(width: int, heads: int) -> str:
    """The message for heads that do not divide the width."""
    near = max(width // heads, 1) * heads
    return f"width {width} does not divide into {heads} heads; use {near} or {near + heads}"
