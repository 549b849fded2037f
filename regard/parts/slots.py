"""The values that fill a slot: small, frozen, each with only its own settings, and each able to build its part.

A family's config lists the kinds it allows as a union of these; `model.attention.kind=window` picks one by its `kind`.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from torch import nn

from . import efficient, feed, kernels, positions
from .attention import Attention, uneven_heads
from .feed import Activation

FORBID: dict[str, Any] = {"extra": "forbid"}  # read by pydantic: a misspelt setting is a mistake, not a default


def share(value: float, key: str) -> None:
    if not 0 <= value < 1:
        raise ValueError(f"{key} is {value}; expected at least 0 and less than 1")


def at_least(least: int, value: int, key: str) -> None:
    if value < least:
        raise ValueError(f"{key} is {value}; expected at least {least}")


def refuse_uneven(width: int, heads: int, places: Any, head_width: int = 0) -> None:
    """A width that its heads, or these positions, cannot divide."""
    if not head_width and width % heads:
        raise ValueError(f"{uneven_heads(width, heads)} (model.width)")
    if isinstance(places, Sinusoid) and width % 2:
        raise ValueError(f"sinusoidal positions need an even width, not {width}; use {width + 1} (model.width)")
    if isinstance(places, Rotary) and (head_width or width // heads) % 2:
        other = (
            f"{head_width + 1} (model.head_width)"
            if head_width
            else f"model.width={width + heads} or other model.heads"
        )
        raise ValueError(
            f"rotary positions need an even width per head, not {head_width or width // heads}; use {other}"
        )


def refuse_unseemly(attention: Any, places: Any) -> None:
    """Where nothing later may be seen: an attention that sees it, or has no scores for these positions to add to."""
    if isinstance(attention, Window) and (attention.globals or attention.named):
        raise ValueError(
            f"model.attention.globals is {attention.globals}, and global tokens see later ones; expected 0"
            if attention.globals
            else "model.attention.named is true, and global tokens see later ones; expected false"
        )
    if isinstance(places, Buckets) and isinstance(attention, Window | Favor):
        raise ValueError(
            f"model.positions.kind=buckets adds to scores, of which model.attention.kind={attention.kind} has none; "
            "use rotary, learned or sinusoid"
        )


def refuse_layers(attention: Any, layers: int) -> None:
    """A list with a number for each layer, of which there are more or fewer."""
    for name in ("radius", "dilation"):
        value = getattr(attention, name, None)
        if isinstance(value, tuple) and len(value) != layers:
            raise ValueError(f"model.attention.{name} lists {len(value)} numbers for {layers} layers; give {layers}")


def in_layer(attention: Any, number: int) -> Any:
    """The value that a slot has in one layer: of a window's lists, the number that is for it; blocks are drawn anew."""
    if isinstance(attention, Blocks):
        return replace(attention, seed=attention.seed + number)
    if not isinstance(attention, Window):
        return attention
    own = {name: getattr(attention, name) for name in ("radius", "dilation")}
    return replace(attention, **{name: value[number] for name, value in own.items() if isinstance(value, tuple)})


@dataclass(frozen=True, kw_only=True)
class Dense:
    """Ordinary attention. `scaled=false` leaves out the 1/√head_width."""

    kind: Literal["dense"] = "dense"
    scaled: bool = True
    dropout: float = 0.0
    __pydantic_config__: ClassVar[Any] = FORBID

    def __post_init__(self) -> None:
        share(self.dropout, "model.attention.dropout")

    def build(self, width: int, heads: int, **linear: Any) -> nn.Module:
        return Attention(width, heads, kernels.SoftmaxKernel(self.dropout, None if self.scaled else 1.0), **linear)


@dataclass(frozen=True, kw_only=True)
class Additive:
    """Bahdanau's scores: a small network instead of a product."""

    kind: Literal["additive"] = "additive"
    dropout: float = 0.0
    __pydantic_config__: ClassVar[Any] = FORBID

    def __post_init__(self) -> None:
        share(self.dropout, "model.attention.dropout")

    def build(self, width: int, heads: int, **linear: Any) -> nn.Module:
        head_width = linear.get("head_width") or width // heads
        return Attention(width, heads, kernels.AdditiveKernel(head_width, self.dropout), **linear)


@dataclass(frozen=True, kw_only=True)
class Window:
    """Longformer's: `radius` neighbours on each side, with a `dilation` of d only every d-th token; and the first
    `globals` tokens see and are seen everywhere. `radius` and `dilation` may be lists, with a number for each layer.

    Global tokens ask with projections of their own. With `named` there are such projections even if `globals` is 0: for
    positions that a caller names.
    """

    kind: Literal["window"] = "window"
    radius: int | tuple[int, ...] = 256
    dilation: int | tuple[int, ...] = 1
    globals: int = 0
    named: bool = False
    __pydantic_config__: ClassVar[Any] = FORBID

    def __post_init__(self) -> None:
        for name in ("radius", "dilation"):
            for value in _listed(getattr(self, name)):
                at_least(1, value, f"model.attention.{name}")
        at_least(0, self.globals, "model.attention.globals")

    def build(self, width: int, heads: int, **linear: Any) -> nn.Module:
        radius, dilation = self.radius, self.dilation
        if not isinstance(radius, int) or not isinstance(dilation, int):
            raise ValueError("a list has a number for each layer, and nobody said which this is; use `in_layer` before")
        if self.globals or self.named:
            return efficient.GlobalAttention(width, heads, radius, self.globals, dilation, **linear)
        return Attention(width, heads, efficient.WindowKernel(radius, dilation), **linear)


def _listed(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return value if isinstance(value, tuple) else (value,)


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """BigBird's: tokens in blocks of `size` see the neighbouring blocks, the first and the last one, and `random`
    others, which `seed` draws for good. With `drawn` false these are all the first block again, as transformers reads.
    """

    kind: Literal["blocks"] = "blocks"
    size: int = 64
    random: int = 3
    seed: int = 0
    drawn: bool = True
    __pydantic_config__: ClassVar[Any] = FORBID

    def __post_init__(self) -> None:
        at_least(1, self.size, "model.attention.size")
        at_least(0, self.random, "model.attention.random")
        at_least(0, self.seed, "model.attention.seed")

    def build(self, width: int, heads: int, **linear: Any) -> nn.Module:
        return Attention(
            width, heads, efficient.BlockSparseKernel(self.size, self.random, self.seed, self.drawn), **linear
        )


@dataclass(frozen=True, kw_only=True)
class Favor:
    """Performer's random features, drawn anew every `redraw` updates of a training (0: never)."""

    kind: Literal["favor"] = "favor"
    features: int = 256
    redraw: int = 1000
    __pydantic_config__: ClassVar[Any] = FORBID

    def __post_init__(self) -> None:
        at_least(1, self.features, "model.attention.features")
        at_least(0, self.redraw, "model.attention.redraw")

    def build(self, width: int, heads: int, **linear: Any) -> nn.Module:
        head_width = linear.get("head_width") or width // heads
        kernel = efficient.RandomFeatureKernel(head_width, self.features, redraw=self.redraw)
        return Attention(width, heads, kernel, **linear)


@dataclass(frozen=True, kw_only=True)
class Lowrank:
    """Linformer's: texts of at most `tokens` are mapped to `rank` places before they are looked at."""

    kind: Literal["lowrank"] = "lowrank"
    rank: int = 128
    tokens: int = 512
    sharing: efficient.lowrank.Sharing = "heads"
    dropout: float = 0.0
    __pydantic_config__: ClassVar[Any] = FORBID

    def __post_init__(self) -> None:
        at_least(1, self.rank, "model.attention.rank")
        at_least(1, self.tokens, "model.attention.tokens")
        share(self.dropout, "model.attention.dropout")

    def build(self, width: int, heads: int, **linear: Any) -> nn.Module:
        heads_of_keys = linear.get("key_heads") or heads
        kernel = efficient.LowRankKernel(heads_of_keys, self.rank, self.tokens, self.sharing, self.dropout)
        return Attention(width, heads, kernel, **linear)


@dataclass(frozen=True, kw_only=True)
class Sinusoid:
    kind: Literal["sinusoid"] = "sinusoid"
    layout: positions.Layout = "interleaved"
    __pydantic_config__: ClassVar[Any] = FORBID

    def build(self, width: int, heads: int, causal: bool, head_width: int = 0) -> positions.Positions:
        return positions.SinusoidPositions(width, self.layout)


@dataclass(frozen=True, kw_only=True)
class Learned:
    kind: Literal["learned"] = "learned"
    tokens: int = 512
    __pydantic_config__: ClassVar[Any] = FORBID

    def __post_init__(self) -> None:
        at_least(1, self.tokens, "model.positions.tokens")

    def build(self, width: int, heads: int, causal: bool, head_width: int = 0) -> positions.Positions:
        return positions.LearnedPositions(self.tokens, width)


@dataclass(frozen=True, kw_only=True)
class Rotary:
    kind: Literal["rotary"] = "rotary"
    base: float = 10000.0
    __pydantic_config__: ClassVar[Any] = FORBID

    def build(self, width: int, heads: int, causal: bool, head_width: int = 0) -> positions.Positions:
        return positions.RotaryPositions(head_width or width // heads, self.base)


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """T5's learned scores by distance."""

    kind: Literal["buckets"] = "buckets"
    buckets: int = 32
    far: int = 128
    __pydantic_config__: ClassVar[Any] = FORBID

    def __post_init__(self) -> None:
        at_least(4, self.buckets, "model.positions.buckets")
        at_least(self.buckets, self.far, "model.positions.far")

    def build(self, width: int, heads: int, causal: bool, head_width: int = 0) -> positions.Positions:
        return positions.BucketPositions(heads, self.buckets, self.far, causal)


@dataclass(frozen=True, kw_only=True)
class LayerNorm:
    kind: Literal["layer"] = "layer"
    eps: float = 1e-5
    __pydantic_config__: ClassVar[Any] = FORBID

    def build(self, width: int) -> nn.Module:
        return nn.LayerNorm(width, self.eps)


@dataclass(frozen=True, kw_only=True)
class RMSNorm:
    kind: Literal["rms"] = "rms"
    eps: float = 1e-6
    __pydantic_config__: ClassVar[Any] = FORBID

    def build(self, width: int) -> nn.Module:
        return nn.RMSNorm(width, self.eps)


@dataclass(frozen=True, kw_only=True)
class Feed:
    kind: Literal["plain"] = "plain"
    act: Activation = "relu"
    dropout: float = 0.0
    __pydantic_config__: ClassVar[Any] = FORBID

    def __post_init__(self) -> None:
        share(self.dropout, "model.feed.dropout")

    def build(self, width: int, inner: int, **linear: Any) -> nn.Module:
        return feed.FeedForward(width, inner, self.act, dropout=self.dropout, **linear)


@dataclass(frozen=True, kw_only=True)
class Gated:
    kind: Literal["gated"] = "gated"
    act: Activation = "silu"
    dropout: float = 0.0
    __pydantic_config__: ClassVar[Any] = FORBID

    def __post_init__(self) -> None:
        share(self.dropout, "model.feed.dropout")

    def build(self, width: int, inner: int, **linear: Any) -> nn.Module:
        return feed.GatedFeedForward(width, inner, self.act, dropout=self.dropout, **linear)


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """Sees `size` tokens, the neighbours on both sides: for encoders."""

    kind: Literal["conv"] = "conv"
    size: int = 3
    act: Activation = "relu"
    dropout: float = 0.0
    __pydantic_config__: ClassVar[Any] = FORBID

    def __post_init__(self) -> None:
        share(self.dropout, "model.feed.dropout")
        at_least(1, self.size, "model.feed.size")
        if self.size % 2 == 0:
            raise ValueError(f"model.feed.size is {self.size}; expected an odd number, as many neighbours on each side")

    def build(self, width: int, inner: int) -> nn.Module:
        return feed.ConvFeedForward(width, inner, self.size, self.act, self.dropout)
