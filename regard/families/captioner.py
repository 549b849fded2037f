"""A ViT encoder and a GPT-2 decoder that attends to the image: what transformers calls a VisionEncoderDecoderModel.

The settings of the encoder are under `encoder`, those of the decoder are the family's own. If their widths differ, a
linear map comes between them.
"""

from functools import partial
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import nn

from ..config.types import Base, Count, Positive, Share
from ..parts import Dropout, Encoded, Inputs, Layer, Residual, Stack, slots
from ..parts.init import Rule, glorot, initialize, normal, ones, unchanged, zeros
from ..parts.media.patches import PartialPatches
from . import gpt, vit
from .base import Seq2Seq
from .spec import ModelSpec

Positions = Annotated[slots.Learned | slots.Sinusoid | slots.Rotary, Field(discriminator="kind")]


class ImageEncoder(Base):
    """The settings of a ViT without a head."""

    image: Positive = 224  # side of the images in pixels; others are read with interpolated positions
    patch: Positive = 16
    channels: Positive = 3
    stem: tuple[Positive, ...] = ()  # channels of convolutions before the patches, each of which halves the sides; []:
    # none
    partial_patches: PartialPatches = "pad"  # of images that are not whole patches; drop: the image loses them
    width: Positive = 768  # a linear map follows if it differs from that of the decoder
    heads: Positive = 12
    layers: Positive = 12
    inner: Positive = 3072
    dropout: Share = 0.0
    depth_dropout: Share = 0.0  # stochastic depth: how often the last layer is skipped; earlier ones less, in
    # proportion
    pool: Literal["first", "mean"] = "first"  # first: with a class token, which the decoder attends to as well; mean:
    # patches alone
    positions: Literal["learned", "sinusoid"] = "learned"  # of the patches; with sinusoid, small models learn places
    # faster
    attention: slots.Dense = slots.Dense()
    feed: vit.Feed = slots.Feed(act="gelu")
    norm: vit.Norm = slots.LayerNorm(eps=1e-12)

    @model_validator(mode="after")
    def _check_shape(self) -> Self:
        self.vit()
        return self

    def vit(self) -> vit.Config:
        """The same settings as those of a Vision Transformer."""
        return vit.Config(**dict(self))


class Config(Base):
    """The settings of a captioner: those of its decoder, and under `encoder` those of its ViT."""

    family: Literal["captioner"] = "captioner"
    size: str = "base"
    encoder: ImageEncoder = ImageEncoder()
    vocab: Count = 0  # 0: the tokenizer's size
    width: Positive = 768
    heads: Positive = 12
    layers: Positive = 12
    inner: Positive = 3072
    dropout: Share = 0.1  # of the embeddings and of every residual of the decoder
    tied: bool = True  # the head shares the embedding table
    attention: slots.Dense = slots.Dense()
    positions: Positions = slots.Learned(tokens=1024)
    norm: gpt.Norm = slots.LayerNorm()
    feed: gpt.Feed = slots.Feed(act="gelu_tanh")

    @model_validator(mode="after")
    def _check_shape(self) -> Self:
        slots.check_widths(self.width, self.heads, self.positions)
        return self


SIZES: dict[str, dict[str, Any]] = {
    "tiny": {
        "width": 64, "heads": 2, "layers": 2, "inner": 128, "positions": {"kind": "learned", "tokens": 128},
        "encoder": {"image": 32, "patch": 4, "stem": [], "width": 64, "heads": 2, "layers": 2, "inner": 128},
    },
    "small": {
        "width": 384, "heads": 6, "layers": 6, "inner": 1536, "positions": {"kind": "learned", "tokens": 256},
        "encoder": {"image": 224, "patch": 16, "stem": [], "width": 384, "heads": 6, "layers": 12, "inner": 1536},
    },
    "base": {"encoder": {"image": 224, "patch": 16, "stem": []}},
}  # fmt: skip
SPEC = ModelSpec(
    frozenset({"pixels"}),
    frozenset({"target"}),
    head_modules=("target", "head"),
    image=lambda c: c.encoder,
)


class Model(Seq2Seq):
    """A ViT whose states a causal decoder attends to, which predicts the next token of a caption."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.encoder = vit.Model(c.encoder.vit())
        same = c.encoder.width == c.width
        self.project: nn.Module = nn.Identity() if same else nn.Linear(c.encoder.width, c.width)
        self.target = nn.Embedding(c.vocab, c.width)
        self.dropout = Dropout(c.dropout)
        norm = partial(c.norm.build, c.width)
        attend = partial(c.attention.build, c.width, c.heads)
        self.decoder = Stack(
            [
                Layer(
                    attend(),
                    c.feed.build(c.width, c.inner),
                    lambda: Residual(norm(), norm_first=True, dropout=c.dropout),
                    cross=attend(),
                )
                for _ in range(c.layers)
            ],
            norm(),
            c.positions.build(c.width, c.heads, causal=True),
            causal=True,
        )
        self.head = nn.Linear(c.width, c.vocab, bias=False)
        initialize(self, initial(c))
        if c.tied:
            self.head.weight = self.target.weight

    def random_inputs(self, rows: int) -> list[Inputs]:
        """Images of noise and random tokens, to probe the model with."""
        tokens = torch.randint(self.target.num_embeddings, (rows, 8), generator=torch.Generator().manual_seed(1))
        return [*self.encoder.random_inputs(rows), Inputs("tokens", tokens.to(self.target.weight.device))]

    def patch_grid(self, height: int, width: int) -> tuple[int, int]:
        """The rows and columns of patches of an image."""
        return self.encoder.patch_grid(height, width)

    def encode(self, source: Inputs) -> Encoded:
        encoded = self.encoder.encode(source)
        return Encoded(self.project(encoded.states), encoded.valid)


def initial(c: Config) -> dict[str, Rule]:
    """The maps that add to the residual stream of the decoder are small, so that they do not drown the embeddings."""
    return {
        r"encoder\..*": unchanged,  # ViT initializes itself
        r".*norm\.weight": ones,
        r".*bias": zeros,
        r"decoder\..*\.out\.weight": normal(0.02 / (3 * c.layers) ** 0.5),  # a layer adds three of them
        r"(target|head|.*table)\.weight": normal(c.width**-0.5),
        r".*weight": glorot,
    }
