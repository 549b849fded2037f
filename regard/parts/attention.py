"""Multi-head attention: project, turn, remember, mix, project back. Every family uses this one."""

from typing import Any

import torch
from torch import Tensor, nn

from .cache.base import CrossCache, LayerCache
from .kernels import Kernel, SoftmaxKernel
from .masks import Mask
from .positions import NO_POSITIONS, PositionTerms

EVERYTHING = Mask()


class Attention(nn.Module):
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
        """`key_heads` (2305.13245): fewer heads of keys and values, each shared by a group of query heads."""
        super().__init__()
        if not head_width and width % heads:
            raise ValueError(uneven_heads(width, heads))
        self.heads, self.head_width, self.key_heads = heads, head_width or width // heads, key_heads or heads
        if heads % self.key_heads:
            raise ValueError(f"{heads} heads cannot share {self.key_heads} key heads evenly")
        inner, shared = heads * self.head_width, self.key_heads * self.head_width
        self.query = nn.Linear(width, inner, bias=bias)
        self.key = nn.Linear(width, shared, bias=bias if key_bias is None else key_bias)
        self.value = nn.Linear(width, shared, bias=bias)
        self.out = nn.Linear(inner, width, bias=bias) if out else nn.Identity()
        self.kernel = kernel or SoftmaxKernel()

    def forward(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        mask: Mask,
        where: PositionTerms | None = None,
        memory: LayerCache | None = None,
    ) -> Tensor:
        """Inputs (batch, tokens, width). A `Fixed` memory holds all keys and values already: then both are None."""
        where = where or NO_POSITIONS
        if isinstance(memory, CrossCache):
            q, k, v = self.split(self.query(query)), memory.k, memory.v
            bias = where.bias(q)
        else:
            assert key is not None and value is not None
            query, key = where.add_to_query_key(query, key)
            if memory is not None:
                key, value = memory.extend_inputs(key, value)
            q, k, v = (self.split(each) for each in self.project_all(query, key, value))
            bias = where.bias(q)
            q, k = where.rotate(q, k)
            if memory is not None:
                k, v = memory.append(k, v)  # now all the keys that `mask` describes
        mask = EVERYTHING if where.includes_mask else mask
        mixed = self.kernel(q, k, v, mask, bias, memory)  # (batch, heads, queries, head_width)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out

    def project_all(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The three maps."""
        return self.query(query), self.key(key), self.value(value)

    @property
    def unpadded(self) -> bool:
        """Does it know texts laid end to end? Whoever adds to what attention does speaks for itself."""
        return type(self) is Attention and self.kernel.unpadded

    def project(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        return self.split(self.key(key)), self.split(self.value(value))

    def split(self, x: Tensor) -> Tensor:
        heads = torch.unflatten(x, -1, (-1, self.head_width))
        return heads.transpose(1, 2)  # (batch, heads, tokens, head_width)

    def project_source(self, source: Tensor) -> CrossCache:
        k, v = self.project(source, source)
        return CrossCache(k.contiguous(), v.contiguous())  # read at every step to come

    def prepare(self, mask: Mask, queries: int, keys: int, device: torch.device) -> None:
        self.kernel.prepare(mask, queries, keys, device)

    def cache_layout(self, capacity: int | None) -> tuple[Any, ...]:
        return self.kernel.cache_layout(capacity)

    def layer_cache(self, book: Any, rows: int) -> LayerCache:
        return self.kernel.layer_cache(book, rows, self.key_heads, self.head_width, self.query.weight)


def uneven_heads(width: int, heads: int) -> str:
    near = max(width // heads, 1) * heads
    return f"width {width} does not divide into {heads} heads; use {near} or {near + heads}"
