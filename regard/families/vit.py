"""ViT (2010.11929): an image is cut into patches, and an encoder reads them as a sequence.

A class token before the patches (`pool=first`) or the mean of all patches (`pool=mean`) represents the image.
"""

from functools import partial
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from ..config.types import Base, Count, Positive, Share
from ..parts import Dropout, Encoded, Inputs, Layer, Mask, Residual, Stack, slots
from ..parts.attention import fuse_projections
from ..parts.init import Rule, fan_in, fan_in_relu, glorot, initialize, normal, ones, zeros
from ..parts.media.patches import (
    LearnedGrid,
    PartialPatches,
    PatchEmbedding,
    SinusoidGrid,
    check_patches,
    random_images,
    read_patches,
)
from ..parts.pooling import pool
from .spec import ModelSpec

Attention = Annotated[slots.Dense | slots.Favor, Field(discriminator="kind")]
Feed = Annotated[slots.Feed | slots.Gated, Field(discriminator="kind")]
Norm = Annotated[slots.LayerNorm | slots.RMSNorm, Field(discriminator="kind")]


class Config(Base):
    """The settings of a Vision Transformer."""

    family: Literal["vit"] = "vit"
    size: str = "S/16"
    image: Positive = 224  # side of the images in pixels; others are read with interpolated positions
    patch: Positive = 16
    channels: Positive = 3
    stem: tuple[Positive, ...] = ()  # channels of convolutions before the patches, each of which halves the sides
    partial_patches: PartialPatches = "pad"  # of images that are not whole patches; drop: the image loses them
    width: Positive = 384
    heads: Positive = 6
    layers: Positive = 12
    inner: Positive = 1536
    dropout: Share = 0.0
    depth_dropout: Share = (
        0.0  # stochastic depth: how often the last layer is skipped; earlier ones less, in proportion
    )
    head: Literal["none", "class"] = "none"
    labels: Count = 0
    pooled: bool = False  # a map of the pooled vector, as in transformers' ViTModel
    pool: Literal["first", "mean"] = "first"  # first: a class token; mean: the mean of all patches
    positions: Literal["learned", "sinusoid"] = "learned"  # of the patches
    attention: Attention = slots.Dense()
    feed: Feed = slots.Feed(act="gelu")
    norm: Norm = slots.LayerNorm(eps=1e-12)

    @model_validator(mode="after")
    def _check_shape(self) -> Self:
        slots.check_widths(self.width, self.heads, None)
        check_patches(self.image, self.patch, self.stem, self.partial_patches, "model.image")
        if self.positions == "sinusoid" and self.width % 4:
            raise ValueError(f"sinusoidal positions of a grid need a width that 4 divides, not {self.width}")
        return self


SHAPES = {
    "Ti": {"width": 192, "heads": 3, "layers": 12, "inner": 768},
    "S": {"width": 384, "heads": 6, "layers": 12, "inner": 1536},
    "B": {"width": 768, "heads": 12, "layers": 12, "inner": 3072},
    "L": {"width": 1024, "heads": 16, "layers": 24, "inner": 4096},
}
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"width": 64, "heads": 2, "layers": 2, "inner": 128, "patch": 4, "image": 32},
    **{f"{name}/{patch}": {**shape, "patch": patch} for name, shape in SHAPES.items() for patch in (8, 16, 32)},
}
SPEC = ModelSpec(
    frozenset({"pixels"}),
    frozenset({"label"}),
    head_modules=("pooler", "classes"),
    label_modules=("classes",),
)


class Model(nn.Module):
    """ViT (2010.11929): an image as a sequence of patches."""

    no_decay = ("first",)

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.pooling, self.image = c.pool, c.image
        self.patches = PatchEmbedding(c.channels, c.width, c.patch, stem=c.stem, partial=c.partial_patches)
        self.first = nn.Parameter(torch.zeros(1, 1, c.width)) if c.pool == "first" else None  # the class token
        learned = c.positions == "learned"
        before = int(self.first is not None)
        self.positions = LearnedGrid(c.image // c.patch, c.width, before) if learned else SinusoidGrid(c.width)
        self.dropout = Dropout(c.dropout)
        norm = partial(c.norm.build, c.width)
        self.encoder = Stack(
            [
                Layer(
                    c.attention.build(c.width, c.heads),
                    c.feed.build(c.width, c.inner),
                    partial(self._residual, c, norm, c.depth_dropout * number / max(c.layers - 1, 1)),
                )
                for number in range(c.layers)
            ],
            norm(),
        )
        fuse_projections(self.encoder)  # all patches are read at once, never token by token
        self.pooler = nn.Linear(c.width, c.width) if c.pooled else None
        self.classes = nn.Linear(c.width, c.labels) if c.head == "class" else None
        initialize(self, INITIAL)

    @staticmethod
    def _residual(c: Config, norm: Any, skipped: float) -> Residual:
        return Residual(norm(), True, c.dropout, skipped)

    @property
    def context(self) -> int | None:
        return None

    def random_inputs(self, rows: int) -> list[Inputs]:
        """Images of noise, to probe the model with."""
        return [random_images(rows, self.patches.first_weight, self.image)]

    def patch_grid(self, height: int, width: int) -> tuple[int, int]:
        """The rows and columns of patches of an image."""
        return self.patches.patch_grid(height, width)

    def encode(self, image: Inputs) -> Encoded:
        x, valid = read_patches(image, self.patches, self.positions, self.first)
        states: Tensor = self.encoder(self.dropout(x), Mask(key_valid=valid))
        return Encoded(states, valid)

    def pool(self, encoded: Encoded) -> Tensor:
        """The vector of every image: (batch, width)."""
        vectors = pool(encoded.states, encoded.valid, self.pooling)
        return vectors if self.pooler is None else torch.tanh(self.pooler(vectors))

    def label_logits(self, encoded: Encoded) -> Tensor:
        assert self.classes is not None, "model.head is not class"
        logits: Tensor = self.classes(pool(encoded.states, encoded.valid, self.pooling))
        return logits  # (batch, labels)

    def forward(self, image: Inputs) -> Tensor:
        encoded = self.encode(image)
        return encoded.states if self.classes is None else self.label_logits(encoded)


INITIAL: dict[str, Rule] = {
    r".*norm\.weight": ones,
    r".*bias": zeros,
    r"classes\.weight": zeros,
    r"(first|positions\.table)": normal(0.02),
    r"patches\.stem\..*\.weight": fan_in_relu,  # positions are added without a norm: patches must not be smaller
    r"patches\..*\.weight": fan_in,
    r".*\.weight": glorot,
}
