"""KV caches: one `Cache` per decoder stack, one `LayerCache` per layer, and layouts that assign slots to tokens.

What a search does with the rows of a cache belongs to `decode`.
"""

from .base import Cache, CacheLayout, CrossCache, FeatureSums, InputCache, InputLayout, LayerCache, LayoutSpec
from .slots import DenseCache, DenseLayout, RollingCache, RollingLayout, SlotCache, SlotLayout

__all__ = [
    "Cache",
    "CacheLayout",
    "CrossCache",
    "DenseCache",
    "DenseLayout",
    "FeatureSums",
    "InputCache",
    "InputLayout",
    "LayerCache",
    "LayoutSpec",
    "RollingCache",
    "RollingLayout",
    "SlotCache",
    "SlotLayout",
]
