"""A residual, a layer of two or three of them, and a stack of layers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from . import unpadded
from .cache.base import Cache, LayerCache
from .dropout import Dropout
from .masks import Mask
from .positions import Positions, PositionTerms


class Residual(nn.Module):
    """x + f(norm(x)) with the norm first; norm(x + f(x)) as first published."""

    def __init__(self, norm: nn.Module, first: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm, self.first, self.dropout = norm, first, Dropout(dropout)

    def forward(self, x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        if self.first:
            x = x + self.dropout(change(self.norm(x)))
            return x
        x = self.norm(x + self.dropout(change(x)))
        return x


@dataclass(frozen=True)
class Cross:
    """The other sequence a decoder looks at. Defaults are plain values: a compiled step cannot trace objects there."""

    source: Tensor | None  # (batch, keys, width); None once its keys are remembered
    mask: Mask
    position_terms: PositionTerms | None = None
    layer_caches: tuple[LayerCache, ...] = ()  # one per layer

    def layer_cache(self, layer: int) -> LayerCache | None:
        return self.layer_caches[layer] if self.layer_caches else None

    def select(self, rows: Tensor) -> "Cross":
        for memory in self.layer_caches:
            memory.select(rows)
        return replace(self, mask=self.mask.select(rows))


class Layer(nn.Module):
    """Self-attention, cross-attention where there is another sequence, feed-forward; each inside its residual.

    Recurrence and convolution stand in the place of self-attention, and do without a feed-forward.
    """

    def __init__(
        self,
        attention: nn.Module,
        feed: nn.Module | None,
        residual: Callable[[], Residual],
        cross: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.attention: Any = attention  # whatever a slot built: it has the verbs of Attention
        self.feed: Any = feed
        self.attention_residual: Residual = residual()
        self.feed_residual: Residual | None = residual() if feed is not None else None
        self.cross: Any = cross
        self.cross_residual: Residual | None = residual() if cross is not None else None

    def forward(
        self,
        x: Tensor,
        mask: Mask,
        where: PositionTerms,
        memory: LayerCache | None = None,
        cross: Cross | None = None,
        number: int = 0,
    ) -> Tensor:
        """`number` is the layer's place in its stack: which of the cross memories is its own."""
        x = self.attention_residual(x, lambda y: self.attention(y, y, y, mask, where, memory))
        if self.cross_residual is not None and cross is not None:
            x = self.cross_residual(x, lambda y: self.look(y, cross, number))
        if self.feed_residual is not None:
            x = self.feed_residual(x, lambda y: self.feed(y, mask))
        return x

    def look(self, x: Tensor, cross: Cross, number: int) -> Tensor:
        seen: Tensor = self.cross(
            x, cross.source, cross.source, cross.mask, cross.position_terms, cross.layer_cache(number)
        )
        return seen


class Stack(nn.Module):
    """Layers in a row. It owns the positions: one scheme for all layers, or a list with one for each.

    A decoder's stack is causal by construction: nobody can forget the word, and nonsense is refused before any call.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        norm: nn.Module | None = None,
        positions: Positions | Sequence[Positions] | None = None,
        causal: bool = False,
    ) -> None:
        super().__init__()
        self.layers: Any = nn.ModuleList(layers)
        self.norm, self.causal = norm or nn.Identity(), causal
        one = positions or Positions()
        self.positions = one if isinstance(one, Positions) else nn.ModuleList(one)
        self.schemes = [one] * len(layers) if isinstance(one, Positions) else list(one)
        check_compatible(self)
        self.unpadded = True  # may rows be read without their padding, where all parts can?
        join_layers(self)

    @property
    def context(self) -> int | None:
        """How many tokens a text may have, by what positions and kernels know; None: any number."""
        known = (getattr(part, "context", None) for part in self.modules() if part is not self)
        return min((tokens for tokens in known if tokens is not None), default=None)

    def add_positions(self, x: Tensor, at: Tensor | None = None) -> Tensor:
        """What the positions add to the input; the family calls it where its paper does."""
        return self.schemes[0].add_to_input(x, at) if self.schemes else x

    def forward(
        self,
        x: Tensor,
        mask: Mask,
        cross: Cross | None = None,
        cache: Cache | None = None,
        where: PositionTerms | None = None,
    ) -> Tensor:
        plain = cross is None and cache is None and where is None
        if self.unpadded and plain and unpadded.serves(x, mask) and self._knows_flat():
            rows = unpadded.Unpadded(mask)
            return rows.back(self.forward(rows.laid(x), rows.mask))  # hooks have run
        last = x
        for last in self.layer_outputs(x, mask, cross, cache, where):  # noqa: B007
            pass
        out: Tensor = self.norm(last)
        return out

    def _knows_flat(self) -> bool:
        plain = not any(scheme.biased for scheme in self.schemes)  # a bias is of rows and columns
        return not self.causal and plain and all(getattr(layer.attention, "unpadded", False) for layer in self.layers)

    def layer_outputs(
        self,
        x: Tensor,
        mask: Mask,
        cross: Cross | None = None,
        cache: Cache | None = None,
        where: PositionTerms | None = None,
    ) -> Iterator[Tensor]:
        """The output of every layer in turn: DETR's auxiliary losses, and whoever else looks inside."""
        mask = mask.replace(causal=True) if self.causal else mask
        sights, wheres = self._views(x, mask, cache, where)
        if cross is None and cache is not None:
            cross = cache.cross
        if cross is not None:
            cross = replace(cross, mask=cross.mask.memoized())
        for i, layer in enumerate(self.layers):
            x = layer(x, sights[i], wheres[i], cache.layers[i] if cache is not None else None, cross, i)
            yield x

    def _views(
        self, x: Tensor, mask: Mask, cache: Cache | None, where: PositionTerms | None
    ) -> tuple[list[Mask], list[PositionTerms]]:
        """Every layer's mask and positions, made once for all that share them."""
        pairs = cache.advance(mask) if cache is not None else [(mask, mask)] * len(self.layers)
        once: dict[int, Mask] = {}
        asked: dict[tuple[int, int], PositionTerms] = {}
        sights, wheres = [], []
        for layer, scheme, (handed, seen) in zip(self.layers, self.schemes, pairs, strict=True):
            sight = once.setdefault(id(seen), seen.memoized())
            key = id(scheme), id(seen)
            if key not in asked:
                asked[key] = where if where is not None else scheme.terms(x, handed, sight)
            if not asked[key].includes_mask:
                keys = x.size(1) if sight.key_positions is None else sight.key_positions.size(1)
                layer.attention.prepare(sight, x.size(1), keys, x.device)
            sights.append(sight)
            wheres.append(asked[key])
        return sights, wheres

    def cache(self, rows: int, capacity: int | None = None, source: Tensor | None = None, mask: Mask = Mask()) -> Cache:
        """An empty cache; with `source` it already holds every layer's projection of it."""
        device = next(self.parameters()).device
        made: dict[tuple[Any, ...], Any] = {}
        books, memories = [], []
        for layer in self.layers:
            kind = layer.attention.cache_layout(capacity)
            if kind not in made:
                made[kind] = kind[0](rows, device, *kind[1:])
            books.append(made[kind])
            memories.append(layer.attention.layer_cache(made[kind], rows))
        cache = Cache(rows, device, memories, books, capacity is not None)
        cache.context, cache.read = self.context, 0 if capacity is None else None
        if source is not None:
            cache.cross = Cross(
                None, mask, layer_caches=tuple(layer.cross.project_source(source) for layer in self.layers)
            )
        return cache


def least_context(model: nn.Module) -> int | None:
    """How many tokens a text may have anywhere in a model: an encoder and a decoder may know unlike numbers."""
    known = [part.context for part in model.modules() if isinstance(part, Stack) and part.context is not None]
    return min(known, default=None)


def join_layers(stack: Stack) -> None:
    """Some parts have something in common with those of their kind in other layers: they take it from the first."""
    first: dict[type, Any] = {}
    for part in stack.modules():
        if join := getattr(part, "join", None):
            join(first.setdefault(type(part), part))


def check_compatible(stack: Stack) -> None:
    biased = [part for part in stack.modules() if isinstance(part, Positions) and part.biased]
    deaf = [part for part in stack.modules() if not getattr(part, "biasable", True)]
    sides = [side for layer in stack.layers for side in (layer.attention, layer.feed) if side is not None]
    own = [part for side in sides for part in side.modules()]
    blind = [part for part in own if not getattr(part, "causal", True)]
    if stack.causal and blind:
        raise ValueError(f"{type(blind[0]).__name__} sees later tokens and cannot be causal; use it in an encoder")
    if biased and deaf:
        raise ValueError(
            f"{type(deaf[0]).__name__} has no scores that {type(biased[0]).__name__} could add to; "
            "use learned, sinusoid or rotary positions"
        )
