"""Towers: encoders of one modality that give one vector for an image, a recording or a text."""

from functools import partial
from typing import Annotated, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from ..config.types import Base, Count, Positive, Share
from ..parts import Dropout, Encoded, Inputs, Layer, Mask, Positions, Residual, Stack, slots
from ..parts.attention import fuse_projections
from ..parts.inputs import TensorKind
from ..parts.media.frames import FrameConvolutions
from ..parts.media.patches import (
    LearnedGrid,
    PartialPatches,
    PatchEmbedding,
    check_patches,
    random_images,
    read_patches,
)
from ..parts.pooling import pool

Feed = Annotated[slots.Feed | slots.Gated, Field(discriminator="kind")]
Norm = Annotated[slots.LayerNorm | slots.RMSNorm, Field(discriminator="kind")]
TextPositions = Annotated[slots.Learned | slots.Sinusoid | slots.Rotary, Field(discriminator="kind")]


class TowerConfig(Base):
    """The layers of a tower."""

    width: Positive = 128
    heads: Positive = 4
    layers: Positive = 3
    inner: Positive = 512
    dropout: Share = 0.0
    depth_dropout: Share = 0.0  # stochastic depth: how often the last layer is skipped; earlier ones in proportion
    attention: slots.Dense = slots.Dense()
    feed: Feed = slots.Feed(act="quick_gelu")
    norm: Norm = slots.LayerNorm()

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        slots.check_widths(self.width, self.heads, None)
        return self


class TextTowerConfig(TowerConfig):
    """The settings of a tower of texts."""

    layers: Count = 3  # 0: words do not change each other; with pool=mean, the vector of a text is a sum over its words
    positions: TextPositions = slots.Learned(tokens=77)
    causal: bool = True  # a token attends to those before it; false: to all
    pool: Literal["last", "mean", "first"] = "last"  # first or last (END) token, or the mean

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        slots.check_widths(self.width, self.heads, self.positions)
        return self


class ImageTowerConfig(TowerConfig):
    """The settings of a tower of images."""

    kind: Literal["image"] = "image"
    image: Positive = 224  # side of the images in pixels; others are read with interpolated positions
    patch: Positive = 16
    channels: Positive = 3
    stem: tuple[Positive, ...] = ()  # channels of convolutions before the patches, each of which halves the sides
    partial_patches: PartialPatches = "pad"  # of images that are not whole patches; drop: the image loses them
    pool: Literal["first", "mean"] = "first"  # first: a class token; mean: the mean of all patches

    @model_validator(mode="after")
    def _check_patches(self) -> Self:
        check_patches(self.image, self.patch, self.stem, self.partial_patches, "model.source.image")
        return self

    def build(self, bins: int) -> "Tower":
        """A tower with these settings."""
        return ImageTower(self)


class SoundTowerConfig(TowerConfig):
    """The settings of a tower of sound."""

    kind: Literal["audio"] = "audio"
    channels: Positive = 32  # of the convolutions
    feed: Feed = slots.Feed()

    def build(self, bins: int) -> "Tower":
        """A tower with these settings."""
        return SoundTower(self, bins)


class SharedTextConfig(Base):
    """Both sides are texts, and one tower reads them."""

    kind: Literal["text"] = "text"

    def build(self, bins: int) -> None:
        """None: the tower of the texts reads both sides."""


class Tower(nn.Module):
    """An encoder and how its states become one vector."""

    modality: TensorKind
    width: int
    encoder: Stack
    pooling: Literal["first", "mean", "last"]

    def encode(self, inputs: Inputs) -> Encoded:
        raise NotImplementedError

    def forward(self, inputs: Inputs) -> Tensor:
        encoded = self.encode(inputs)
        return pool(encoded.states, encoded.valid, self.pooling)  # (batch, width)

    def random_inputs(self, rows: int) -> Inputs:
        """Noise, to probe the model with."""
        raise NotImplementedError


def stack_layers(c: TowerConfig, positions: Positions | None = None, causal: bool = False) -> Stack:
    """The layers of a tower, each with the norm first."""
    norm = partial(c.norm.build, c.width)
    layers = [
        Layer(
            c.attention.build(c.width, c.heads),
            c.feed.build(c.width, c.inner, bias=True),
            partial(new_residual, c, c.depth_dropout * number / max(c.layers - 1, 1)),
        )
        for number in range(c.layers)
    ]
    return Stack(layers, norm(), positions, causal)


def new_residual(c: TowerConfig, skipped: float) -> Residual:
    """A residual with the norm first; training skips its branch with the probability `skipped`."""
    return Residual(c.norm.build(c.width), True, c.dropout, skipped)


class TextTower(Tower):
    """Token embeddings with positions, and a stack that may be causal."""

    modality = "tokens"

    def __init__(self, c: TextTowerConfig, vocab: int) -> None:
        super().__init__()
        self.pooling, self.width = c.pool, c.width
        self.embed, self.dropout = nn.Embedding(vocab, c.width), Dropout(c.dropout)
        self.encoder = stack_layers(c, c.positions.build(c.width, c.heads, causal=c.causal), c.causal)

    def encode(self, inputs: Inputs) -> Encoded:
        x = self.encoder.add_positions(self.embed(inputs.values), inputs.positions)
        states: Tensor = self.encoder(self.dropout(x), inputs.mask())
        return Encoded(states, inputs.valid)

    def random_inputs(self, rows: int) -> Inputs:
        tokens = min(8, self.encoder.context or 8)
        ids = torch.randint(self.embed.num_embeddings, (rows, tokens), generator=torch.Generator().manual_seed(1))
        return Inputs("tokens", ids.to(self.embed.weight.device))


class ImageTower(Tower):
    """ViT with a norm before the first layer."""

    modality = "pixels"
    no_decay = ("first",)

    def __init__(self, c: ImageTowerConfig) -> None:
        super().__init__()
        self.pooling, self.image, self.width = c.pool, c.image, c.width
        self.patches = PatchEmbedding(c.channels, c.width, c.patch, False, c.stem, c.partial_patches)
        self.first = nn.Parameter(torch.zeros(c.width)) if c.pool == "first" else None  # the class token
        self.positions = LearnedGrid(c.image // c.patch, c.width, int(self.first is not None))
        self.norm, self.dropout = c.norm.build(c.width), Dropout(c.dropout)
        self.encoder = stack_layers(c)
        fuse_projections(self.encoder)  # all patches are read at once

    def encode(self, inputs: Inputs) -> Encoded:
        x, valid = read_patches(inputs, self.patches, self.positions, self.first)
        states: Tensor = self.encoder(self.dropout(self.norm(x)), Mask(key_valid=valid))
        return Encoded(states, valid)

    def random_inputs(self, rows: int) -> Inputs:
        return random_images(rows, self.patches.first_weight, self.image)


class SoundTower(Tower):
    """Frames through two strided convolutions; the mean of all states represents a recording."""

    modality = "frames"
    pooling = "mean"

    def __init__(self, c: SoundTowerConfig, bins: int) -> None:
        super().__init__()
        self.bins, self.width = bins, c.width
        self.front, self.dropout = FrameConvolutions(bins, c.channels, c.width), Dropout(c.dropout)
        self.encoder = stack_layers(c, slots.Sinusoid().build(c.width, c.heads, causal=False))

    def encode(self, inputs: Inputs) -> Encoded:
        x, valid = self.front(inputs.values, inputs.valid)
        states: Tensor = self.encoder(self.dropout(self.encoder.add_positions(x)), Mask(key_valid=valid))
        return Encoded(states, valid)

    def random_inputs(self, rows: int) -> Inputs:
        frames = torch.randn(rows, 64, self.bins, generator=torch.Generator().manual_seed(1))
        return Inputs("frames", frames.to(self.front.first.weight))
