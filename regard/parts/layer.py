"""A residual connection, a layer of two or three of them, and a stack of layers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from . import unpadded
from .attention import Attention
from .cache.base import Cache, CacheLayout, CrossCache, LayerCache, LayoutSpec, put_rows
from .dropout import Dropout, RowDropout
from .feed import FeedForward
from .masks import Mask
from .mixer import SequenceMixer
from .positions import Positions, PositionTerms
from .recording import current_state_recorder


class Residual(nn.Module):
    """x + f(norm(x)) with the norm first; norm(x + f(x)) as first published.

    `skipped` is stochastic depth (1603.09382): how often training leaves f out for a row.
    """

    def __init__(self, norm: nn.Module, norm_first: bool = True, dropout: float = 0.0, skipped: float = 0.0) -> None:
        super().__init__()
        self.norm, self.norm_first = norm, norm_first
        self.dropout = nn.Sequential(Dropout(dropout), RowDropout(skipped)) if skipped else Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        if self.norm_first:
            x = x + self.dropout(sublayer(self.norm(x)))
            return x
        x = self.norm(x + self.dropout(sublayer(x)))
        return x


@dataclass(frozen=True)
class Cross:
    """The source sequence for cross-attention. Defaults are plain values: compiled code cannot trace objects there."""

    source: Tensor | None  # (batch, keys, width); None if `layer_caches` hold its keys and values
    mask: Mask
    position_terms: PositionTerms | None = None
    layer_caches: tuple[CrossCache, ...] = ()  # one per layer, or none
    owns_mask: bool = False  # no one else holds the mask, so that it can change in place

    def layer_cache(self, index: int) -> CrossCache | None:
        """The projected source of one layer."""
        return self.layer_caches[index] if self.layer_caches else None

    def select(self, rows: Tensor) -> "Cross":
        """The source of some rows."""
        for layer_cache in self.layer_caches:
            layer_cache.select(rows)
        return replace(self, mask=self.mask.select(rows))

    def put(self, rows: Tensor, other: "Cross", origin: Tensor) -> "Cross":
        """Replace these rows, in place, by the rows `origin` of another source; the shorter one gets padding."""
        keys = max(state.layer_caches[0].k.size(2) for state in (self, other))
        valid, theirs = self._padded(keys), other._padded(keys)
        for mine, cache in zip(self.layer_caches, other.layer_caches, strict=True):
            mine.put(rows, cache, origin)
        valid = valid if self.owns_mask else valid.clone()
        put_rows(valid, rows, theirs, origin)
        return replace(self, mask=self.mask.replace(key_valid=valid), owns_mask=True)

    def _padded(self, keys: int) -> Tensor:
        """Pad the source to that many keys; return which are valid, (rows, keys)."""
        rows, _, size, _ = self.layer_caches[0].k.shape
        valid = self.mask.key_valid
        if valid is None:
            valid = torch.ones(rows, size, dtype=torch.bool, device=self.layer_caches[0].k.device)
        if len(valid) < rows:  # one row serves all
            valid = valid.repeat(rows, 1)
        for layer_cache in self.layer_caches:
            layer_cache.pad(keys)
        return valid if size == keys else F.pad(valid, (0, keys - size))


class Layer(nn.Module):
    """Self-attention, optional cross-attention and feed-forward, each inside its residual.

    Recurrence or convolution may take the place of self-attention; such layers have no feed-forward.
    """

    def __init__(
        self,
        attention: SequenceMixer,
        feed: FeedForward | None,
        residual: Callable[[], Residual],
        cross: Attention | None = None,
    ) -> None:
        super().__init__()
        self.attention: SequenceMixer = attention
        self.feed: FeedForward | None = feed
        self.attention_residual: Residual = residual()
        self.feed_residual: Residual | None = residual() if feed is not None else None
        self.cross: Attention | None = cross
        self.cross_residual: Residual | None = residual() if cross is not None else None

    def forward(
        self,
        x: Tensor,
        mask: Mask,
        position_terms: PositionTerms,
        layer_cache: LayerCache | None = None,
        cross: Cross | None = None,
        index: int = 0,
    ) -> Tensor:
        """`index` is the layer's index in its stack; it selects the layer's own cache of the source."""
        x = self.attention_residual(x, lambda y: self.attention(y, y, y, mask, position_terms, layer_cache))
        if self.cross_residual is not None and cross is not None:
            x = self.cross_residual(x, lambda y: self.cross_attend(y, cross, index))
        if self.feed_residual is not None:
            x = self.feed_residual(x, lambda y: self.feed_forward(y, mask))
        return x

    def feed_forward(self, x: Tensor, mask: Mask) -> Tensor:
        """The feed-forward sub-layer."""
        assert self.feed is not None
        out: Tensor = self.feed(x, mask)
        return out

    def cross_attend(self, x: Tensor, cross: Cross, index: int) -> Tensor:
        """The cross-attention sub-layer.

        Rows of x that share one source become queries of one row: its keys and values are computed once.
        """
        assert self.cross is not None
        if cross.source is not None and len(cross.source) == 1 < len(x):
            return self.cross_attend(x.flatten(0, 1)[None], cross, index)[0].view_as(x)
        out: Tensor = self.cross(
            x, cross.source, cross.source, cross.mask, cross.position_terms, cross.layer_cache(index)
        )
        return out


class Stack(nn.Module):
    """A sequence of layers. It owns the positions: one scheme for all layers, or a list with one per layer.

    A decoder's stack is causal by construction, and the constructor refuses parts that cannot be causal.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        norm: nn.Module | None = None,
        positions: Positions | Sequence[Positions] | None = None,
        causal: bool = False,
    ) -> None:
        super().__init__()
        self.layers = cast("Sequence[Layer]", nn.ModuleList(layers))  # ModuleList does not declare its item type
        self.norm, self.causal = norm or nn.Identity(), causal
        scheme = positions or Positions()
        self.positions = scheme if isinstance(scheme, Positions) else nn.ModuleList(scheme)
        self.schemes = [scheme] * len(layers) if isinstance(scheme, Positions) else list(scheme)  # one per layer
        check_compatible(self)
        share_across_layers(self)

    @property
    def context(self) -> int | None:
        """The longest text, in tokens, that positions and kernels support; None: unlimited."""
        limits = (getattr(part, "context", None) for part in self.modules() if part is not self)
        return min((limit for limit in limits if limit is not None), default=None)

    def add_positions(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """Add position vectors to the input. The family calls this where its paper does."""
        return self.schemes[0].add_to_input(x, positions) if self.schemes else x

    def forward(
        self,
        x: Tensor,
        mask: Mask,
        cross: Cross | None = None,
        cache: Cache | None = None,
        position_terms: PositionTerms | None = None,
    ) -> Tensor:
        plain = cross is None and cache is None and position_terms is None
        if plain and unpadded.supports_unpadded(x, mask) and self._supports_unpadded():
            rows = unpadded.Unpadded(mask)
            # `self.forward`, not `self`: hooks have run already.
            return rows.restore_padding(self.forward(rows.remove_padding(x), rows.mask))
        last = x
        for last in self.layer_outputs(x, mask, cross, cache, position_terms):  # noqa: B007
            pass
        out: Tensor = self.norm(last)
        if record := current_state_recorder():
            record(self, len(self.layers), out)
        return out

    def _supports_unpadded(self) -> bool:
        unbiased = not any(scheme.biased for scheme in self.schemes)  # a bias has rows and columns of padded texts
        mixers = (layer.attention for layer in self.layers)
        return not self.causal and unbiased and all(getattr(mixer, "unpadded", False) for mixer in mixers)

    def layer_outputs(
        self,
        x: Tensor,
        mask: Mask,
        cross: Cross | None = None,
        cache: Cache | None = None,
        position_terms: PositionTerms | None = None,
    ) -> Iterator[Tensor]:
        """Yield the output of every layer, before the final norm. DETR's auxiliary losses need them all."""
        mask = mask.replace(causal=True) if self.causal else mask
        masks, terms = self._masks_and_terms(x, mask, cache, position_terms)
        if cross is None and cache is not None:
            cross = cache.cross
        if cross is not None:
            cross = replace(cross, mask=cross.mask.memoized())
        record = current_state_recorder()
        if record:
            record(self, 0, x)
        for i, layer in enumerate(self.layers):
            x = layer(x, masks[i], terms[i], cache.layers[i] if cache is not None else None, cross, i)
            if record:
                record(self, i + 1, x)
            yield x

    def _masks_and_terms(
        self, x: Tensor, mask: Mask, cache: Cache | None, position_terms: PositionTerms | None
    ) -> tuple[list[Mask], list[PositionTerms]]:
        """The mask and the position terms of every layer, built once for all layers that share them."""
        pairs = cache.advance(mask) if cache is not None else [(mask, mask)] * len(self.layers)
        memoized: dict[int, Mask] = {}
        built: dict[tuple[int, int], PositionTerms] = {}
        masks, terms = [], []
        for layer, scheme, (new_mask, visible) in zip(self.layers, self.schemes, pairs, strict=True):
            visible_mask = memoized.setdefault(id(visible), visible.memoized())
            key = id(scheme), id(visible)
            if key not in built:
                built[key] = position_terms if position_terms is not None else scheme.terms(x, new_mask, visible_mask)
            if not built[key].includes_mask:
                keys = x.size(1) if visible_mask.key_positions is None else visible_mask.key_positions.size(1)
                layer.attention.prepare(visible_mask, x.size(1), keys, x.device)
            masks.append(visible_mask)
            terms.append(built[key])
        return masks, terms

    def cache(self, rows: int, capacity: int | None = None, cross: Cross | None = None) -> Cache:
        """An empty cache; with `cross` it already holds every layer's projection of the source."""
        device = next(self.parameters()).device
        built: dict[LayoutSpec, CacheLayout] = {}
        layouts, layer_caches = [], []
        for layer in self.layers:
            spec = layer.attention.cache_layout(capacity)
            if spec not in built:
                built[spec] = spec[0](rows, device, *spec[1:])
            layouts.append(built[spec])
            layer_caches.append(layer.attention.layer_cache(built[spec], rows))
        cache = Cache(rows, device, layer_caches, layouts, capacity is not None)
        cache.context, cache.tokens_read = self.context, 0 if capacity is None else None
        if cross is not None and (source := cross.source) is not None:
            projected = (layer.cross.project_source(source) for layer in self.layers if layer.cross is not None)
            cache.cross = replace(cross, source=None, layer_caches=tuple(projected))
        return cache


def smallest_context(model: nn.Module) -> int | None:
    """The longest text, in tokens, that every stack of a model supports; encoder and decoder limits may differ."""
    limits = [part.context for part in model.modules() if isinstance(part, Stack) and part.context is not None]
    return min(limits, default=None)


def share_across_layers(stack: Stack) -> None:
    """Let parts with a `share_with` method share the modules of the first part of their class."""
    first: dict[type, nn.Module] = {}
    for part in stack.modules():
        if share_with := getattr(part, "share_with", None):
            share_with(first.setdefault(type(part), part))


def check_compatible(stack: Stack) -> None:
    """Refuse parts that do not fit each other."""
    biased = [part for part in stack.modules() if isinstance(part, Positions) and part.biased]
    unbiasable = [part for part in stack.modules() if not getattr(part, "biasable", True)]
    sublayers = [part for layer in stack.layers for part in (layer.attention, layer.feed) if part is not None]
    modules = [part for sublayer in sublayers for part in sublayer.modules()]
    acausal = [part for part in modules if not getattr(part, "causal", True)]
    if stack.causal and acausal:
        raise ValueError(f"{type(acausal[0]).__name__} reads later tokens and cannot be causal; use it in an encoder")
    if biased and unbiasable:
        raise ValueError(
            f"{type(unbiasable[0]).__name__} has no scores that {type(biased[0]).__name__} could add to; "
            "use learned, sinusoid or rotary positions"
        )
