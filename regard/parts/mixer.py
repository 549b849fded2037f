"""The interface between a layer and the module that mixes its tokens: attention, recurrence or convolution."""

import torch
from torch import Tensor, nn

from .cache.base import CacheLayout, LayerCache, LayoutSpec
from .masks import Mask
from .positions import PositionTerms


class SequenceMixer(nn.Module):
    """The sublayer of a `Layer` that moves information between tokens.

    Self-attention receives the same tensor as query, key and value. Recurrence and convolution read the query only.
    """

    causal = True  # False: its output depends on later tokens, so it cannot serve a causal stack

    def forward(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        mask: Mask,
        position_terms: PositionTerms | None = None,
        layer_cache: LayerCache | None = None,
    ) -> Tensor:
        raise NotImplementedError

    @property
    def unpadded(self) -> bool:
        """True if it accepts rows without padding (`Mask.length_runs`)."""
        return False

    def prepare(self, mask: Mask, queries: int, keys: int, device: torch.device) -> None:
        """Build the forms of `mask` that all layers of a stack share."""

    def cache_layout(self, capacity: int | None) -> LayoutSpec:
        """The layout class for its cache and the settings of that layout. Layers with equal answers share a layout."""
        return (CacheLayout,)

    def layer_cache(self, layout: CacheLayout, rows: int) -> LayerCache:
        """An empty cache for this layer."""
        return LayerCache()
