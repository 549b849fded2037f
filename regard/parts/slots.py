"""Slot values: small frozen dataclasses, each with only its own settings, that build a part of a model.

A family's config lists the kinds it allows as a union of these; `model.attention.kind=window` selects one.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeVar, Unpack

from torch import nn

from . import efficient, feed, kernels, positions
from .attention import Attention, Projections, uneven_heads_message
from .feed import Activation
from .media import resnet
from .mixer import SequenceMixer

Slot = TypeVar("Slot")

FORBID: dict[str, Any] = {"extra": "forbid"}  # read by pydantic: refuse misspelled settings


def check_share(value: float, key: str) -> None:
    """Refuse a value outside 0 … 1."""
    if not 0 <= value < 1:
        raise ValueError(f"{key} is {value}; expected at least 0 and less than 1")


def check_at_least(least: int, value: int, key: str) -> None:
    """Refuse a value below a bound."""
    if value < least:
        raise ValueError(f"{key} is {value}; expected at least {least}")


def check_widths(width: int, heads: int, scheme: object, head_width: int = 0) -> None:
    """Refuse a width that the heads or the positional scheme cannot divide."""
    if not head_width and width % heads:
        raise ValueError(f"{uneven_heads_message(width, heads)} (model.width)")
    if isinstance(scheme, Sinusoid) and width % 2:
        raise ValueError(f"sinusoidal positions need an even width, not {width}; use {width + 1} (model.width)")
    if isinstance(scheme, Rotary) and (head_width or width // heads) % 2:
        other = (
            f"{head_width + 1} (model.head_width)"
            if head_width
            else f"model.width={width + heads} or other model.heads"
        )
        raise ValueError(
            f"rotary positions need an even width per head, not {head_width or width // heads}; use {other}"
        )


def check_causal(attention: object, scheme: object) -> None:
    """Refuse an attention that cannot be causal, or one without scores for positions that add to scores."""
    if isinstance(attention, Window) and (attention.globals or attention.named):
        raise ValueError(
            f"model.attention.globals is {attention.globals}, and global tokens attend to later ones; expected 0"
            if attention.globals
            else "model.attention.named is true, and global tokens attend to later ones; expected false"
        )
    if isinstance(scheme, Buckets) and isinstance(attention, Window | Favor):
        raise ValueError(
            f"model.positions.kind=buckets adds to scores, of which model.attention.kind={attention.kind} has none; "
            "use rotary, learned or sinusoid"
        )


def check_layer_lists(attention: object, layers: int) -> None:
    """Refuse a list of numbers per layer whose length is not the number of layers."""
    for name in ("radius", "dilation"):
        value = getattr(attention, name, None)
        if isinstance(value, tuple) and len(value) != layers:
            raise ValueError(f"model.attention.{name} lists {len(value)} numbers for {layers} layers; give {layers}")


def for_layer(attention: Slot, index: int) -> Slot:
    """The slot value of one layer: a window takes its entry of each list, blocks get their own seed."""
    if isinstance(attention, Blocks):
        return replace(attention, seed=attention.seed + index)
    if not isinstance(attention, Window):
        return attention
    lists = {name: getattr(attention, name) for name in ("radius", "dilation")}
    return replace(attention, **{name: value[index] for name, value in lists.items() if isinstance(value, tuple)})


@dataclass(frozen=True, kw_only=True)
class Dense:
    """Softmax attention over all keys. `scaled=false` leaves out the 1/√head_width."""

    kind: Literal["dense"] = "dense"
    scaled: bool = True  # products are divided by √head_width
    dropout: float = 0.0  # of the attention weights
    __pydantic_config__: ClassVar[Any] = FORBID

    def __post_init__(self) -> None:
        check_share(self.dropout, "model.attention.dropout")

    def build(self, width: int, heads: int, **linear: Unpack[Projections]) -> Attention:
        return Attention(width, heads, kernels.SoftmaxKernel(self.dropout, None if self.scaled else 1.0), **linear)


@dataclass(frozen=True, kw_only=True)
class Additive:
    """Bahdanau's additive scores: a small network instead of a dot product."""

    kind: Literal["additive"] = "additive"
    dropout: float = 0.0  # of the attention weights
    __pydantic_config__: ClassVar[Any] = FORBID

    def __post_init__(self) -> None:
        check_share(self.dropout, "model.attention.dropout")

    def build(self, width: int, heads: int, **linear: Unpack[Projections]) -> Attention:
        head_width = linear.get("head_width") or width // heads
        return Attention(width, heads, kernels.AdditiveKernel(head_width, self.dropout), **linear)


@dataclass(frozen=True, kw_only=True)
class Window:
    """Longformer: `radius` neighbors on each side; with a `dilation` of d, only every d-th token. The first `globals`
    tokens attend to and are visible from everywhere. `radius` and `dilation` may be lists with a number per layer.

    Global tokens have query, key and value projections of their own. `named` adds these projections even if `globals`
    is 0, for global positions that a caller passes.
    """

    kind: Literal["window"] = "window"
    radius: int | tuple[int, ...] = 256  # neighbors on each side; a list has a number per layer
    dilation: int | tuple[int, ...] = 1  # only every so manieth token; a list has a number per layer
    globals: int = 0  # first tokens that attend to, and are visible from, everywhere
    named: bool = False  # projections of global tokens even if globals is 0
    __pydantic_config__: ClassVar[Any] = FORBID

    def __post_init__(self) -> None:
        for name in ("radius", "dilation"):
            for value in _as_tuple(getattr(self, name)):
                check_at_least(1, value, f"model.attention.{name}")
        check_at_least(0, self.globals, "model.attention.globals")

    def build(self, width: int, heads: int, **linear: Unpack[Projections]) -> SequenceMixer:
        radius, dilation = self.radius, self.dilation
        if not isinstance(radius, int) or not isinstance(dilation, int):
            raise ValueError("a list has a number per layer, and the layer is unknown; call `slots.for_layer` first")
        if self.globals or self.named:
            return efficient.GlobalAttention(width, heads, radius, self.globals, dilation, **linear)
        return Attention(width, heads, efficient.WindowKernel(radius, dilation), **linear)


def _as_tuple(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return value if isinstance(value, tuple) else (value,)


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """BigBird: blocks of `size` tokens attend to neighboring blocks, to the first and the last block, and to `random`
    others that `seed` draws once. With `drawn` false, these are all the first block, as in transformers at inference.
    """

    kind: Literal["blocks"] = "blocks"
    size: int = 64  # tokens of a block
    random: int = 3  # further blocks that a block attends to
    seed: int = 0  # draws these blocks, once
    drawn: bool = True  # false: they are all the first block, as in transformers at inference
    __pydantic_config__: ClassVar[Any] = FORBID

    def __post_init__(self) -> None:
        check_at_least(1, self.size, "model.attention.size")
        check_at_least(0, self.random, "model.attention.random")
        check_at_least(0, self.seed, "model.attention.seed")

    def build(self, width: int, heads: int, **linear: Unpack[Projections]) -> Attention:
        return Attention(
            width, heads, efficient.BlockSparseKernel(self.size, self.random, self.seed, self.drawn), **linear
        )


@dataclass(frozen=True, kw_only=True)
class Favor:
    """Performer's random features, redrawn every `redraw` training steps (0: never)."""

    kind: Literal["favor"] = "favor"
    features: int = 256  # number of random features
    redraw: int = 1000  # training steps between draws; 0: never
    __pydantic_config__: ClassVar[Any] = FORBID

    def __post_init__(self) -> None:
        check_at_least(1, self.features, "model.attention.features")
        check_at_least(0, self.redraw, "model.attention.redraw")

    def build(self, width: int, heads: int, **linear: Unpack[Projections]) -> Attention:
        head_width = linear.get("head_width") or width // heads
        kernel = efficient.RandomFeatureKernel(head_width, self.features, redraw=self.redraw)
        return Attention(width, heads, kernel, **linear)


@dataclass(frozen=True, kw_only=True)
class Lowrank:
    """Linformer: project the keys of at most `tokens` tokens to `rank` vectors before attention."""

    kind: Literal["lowrank"] = "lowrank"
    rank: int = 128  # vectors that the keys are projected to
    tokens: int = 512  # maximum length of a row
    sharing: efficient.lowrank.Sharing = "heads"  # what shares a projection
    dropout: float = 0.0  # of the attention weights
    __pydantic_config__: ClassVar[Any] = FORBID

    def __post_init__(self) -> None:
        check_at_least(1, self.rank, "model.attention.rank")
        check_at_least(1, self.tokens, "model.attention.tokens")
        check_share(self.dropout, "model.attention.dropout")

    def build(self, width: int, heads: int, **linear: Unpack[Projections]) -> Attention:
        key_heads = linear.get("key_heads") or heads
        kernel = efficient.LowRankKernel(key_heads, self.rank, self.tokens, self.sharing, self.dropout)
        return Attention(width, heads, kernel, **linear)


@dataclass(frozen=True, kw_only=True)
class Sinusoid:
    """Sinusoidal positions."""

    kind: Literal["sinusoid"] = "sinusoid"
    layout: positions.SinusoidLayout = "interleaved"  # order of sines and cosines
    __pydantic_config__: ClassVar[Any] = FORBID

    def build(self, width: int, heads: int, causal: bool, head_width: int = 0) -> positions.Positions:
        return positions.SinusoidPositions(width, self.layout)


@dataclass(frozen=True, kw_only=True)
class Learned:
    """Learned positions."""

    kind: Literal["learned"] = "learned"
    tokens: int = 512  # maximum length of a row
    __pydantic_config__: ClassVar[Any] = FORBID

    def __post_init__(self) -> None:
        check_at_least(1, self.tokens, "model.positions.tokens")

    def build(self, width: int, heads: int, causal: bool, head_width: int = 0) -> positions.Positions:
        return positions.LearnedPositions(self.tokens, width)


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """Rotary positions (2104.09864)."""

    kind: Literal["rotary"] = "rotary"
    base: float = 10000.0  # of the wavelengths
    __pydantic_config__: ClassVar[Any] = FORBID

    def build(self, width: int, heads: int, causal: bool, head_width: int = 0) -> positions.Positions:
        return positions.RotaryPositions(head_width or width // heads, self.base)


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """T5's learned scores per distance bucket."""

    kind: Literal["buckets"] = "buckets"
    buckets: int = 32  # number of distance buckets
    far: int = 128  # longer distances share the last bucket
    __pydantic_config__: ClassVar[Any] = FORBID

    def __post_init__(self) -> None:
        check_at_least(4, self.buckets, "model.positions.buckets")
        check_at_least(self.buckets, self.far, "model.positions.far")

    def build(self, width: int, heads: int, causal: bool, head_width: int = 0) -> positions.Positions:
        return positions.BucketPositions(heads, self.buckets, self.far, causal)


@dataclass(frozen=True, kw_only=True)
class LayerNorm:
    """Layer normalization."""

    kind: Literal["layer"] = "layer"
    eps: float = 1e-5  # added to the variance
    __pydantic_config__: ClassVar[Any] = FORBID

    def build(self, width: int) -> nn.Module:
        return nn.LayerNorm(width, self.eps)


@dataclass(frozen=True, kw_only=True)
class RMSNorm:
    """Normalization by the root mean square."""

    kind: Literal["rms"] = "rms"
    eps: float = 1e-6  # added to the mean square
    __pydantic_config__: ClassVar[Any] = FORBID

    def build(self, width: int) -> nn.Module:
        return nn.RMSNorm(width, self.eps)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Group norm after convolutions, for training from scratch; `groups` or fewer, as they divide the channels."""

    kind: Literal["group"] = "group"
    groups: int = 32  # of channels, at most
    eps: float = 1e-5  # added to the variance
    __pydantic_config__: ClassVar[Any] = FORBID

    def __post_init__(self) -> None:
        check_at_least(1, self.groups, "model.backbone_norm.groups")

    def build(self, channels: int) -> resnet.ConvolutionNorm:
        groups = next(number for number in range(min(self.groups, channels), 0, -1) if channels % number == 0)
        return resnet.MaskedGroupNorm(groups, channels, self.eps)


@dataclass(frozen=True, kw_only=True)
class Frozen:
    """Batch norm after convolutions with the statistics and weights of a trained model, which never change."""

    kind: Literal["frozen"] = "frozen"
    eps: float = 1e-5  # added to the variance
    __pydantic_config__: ClassVar[Any] = FORBID

    def build(self, channels: int) -> resnet.ConvolutionNorm:
        return resnet.FrozenBatchNorm(channels, self.eps)


@dataclass(frozen=True, kw_only=True)
class Feed:
    """A feed-forward of two linear maps."""

    kind: Literal["plain"] = "plain"
    act: Activation = "relu"  # activation
    dropout: float = 0.0  # inside the feed-forward
    __pydantic_config__: ClassVar[Any] = FORBID

    def __post_init__(self) -> None:
        check_share(self.dropout, "model.feed.dropout")

    def build(self, width: int, inner: int, bias: bool = True) -> feed.FeedForward:
        return feed.FeedForward(width, inner, self.act, bias, self.dropout)


@dataclass(frozen=True, kw_only=True)
class Gated:
    """A feed-forward with a gate."""

    kind: Literal["gated"] = "gated"
    act: Activation = "silu"  # activation of the gate
    dropout: float = 0.0  # inside the feed-forward
    __pydantic_config__: ClassVar[Any] = FORBID

    def __post_init__(self) -> None:
        check_share(self.dropout, "model.feed.dropout")

    def build(self, width: int, inner: int, bias: bool = False) -> feed.FeedForward:
        return feed.GatedFeedForward(width, inner, self.act, bias, self.dropout)


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """A convolution over `size` tokens, with neighbors on both sides: for encoders only."""

    kind: Literal["conv"] = "conv"
    size: int = 3  # tokens that it reads: an odd number
    act: Activation = "relu"  # activation
    dropout: float = 0.0  # inside the feed-forward
    __pydantic_config__: ClassVar[Any] = FORBID

    def __post_init__(self) -> None:
        check_share(self.dropout, "model.feed.dropout")
        check_at_least(1, self.size, "model.feed.size")
        if self.size % 2 == 0:
            raise ValueError(
                f"model.feed.size is {self.size}; expected an odd number, with as many neighbors on each side"
            )

    def build(self, width: int, inner: int) -> feed.FeedForward:
        return feed.ConvFeedForward(width, inner, self.size, self.act, self.dropout)
