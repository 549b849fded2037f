"""A predecessor of the Transformer: gated convolutions (1612.08083) in an encoder and in a decoder that attends to the
source in every layer (1705.03122). All tokens are read at once; the depth bounds how far each one reads.
"""

from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator
from torch import nn

from ..config.types import Positive
from ..parts import Layer, Residual, Stack, slots
from ..parts.init import Rule, glorot, normal, ones, zeros
from ..parts.recurrent import GatedConvolution
from . import generic
from .generic import SPEC

__all__ = ["SIZES", "SPEC", "Config", "Model"]

Attention = Annotated[slots.Dense | slots.Additive, Field(discriminator="kind")]
Positions = Annotated[slots.Sinusoid | slots.Learned, Field(discriminator="kind")]


class Config(generic.BaseConfig):
    """The settings of a convolutional model."""

    family: Literal["cnn"] = "cnn"
    size: str = "small"
    kernel_size: Positive = 3  # tokens that a convolution reads; in a decoder the current one and those before it
    layers: Positive = 5
    attention: Attention = slots.Dense()  # of the decoder, over the source
    positions: Positions = slots.Sinusoid()

    @field_validator("kernel_size")
    @classmethod
    def _check_odd(cls, value: int) -> int:
        if value % 2 == 0:
            raise ValueError(
                f"model.kernel_size is {value}; expected an odd number, so that both sides have as many neighbors"
            )
        return value

    @model_validator(mode="after")
    def _check_shape(self) -> "Config":
        slots.check_widths(self.width, self.heads if self.head == "target" else 1, self.positions)
        return self


SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"width": 128, "heads": 4, "layers": 3},
    "small": {"width": 256, "heads": 4, "layers": 5},  # with 8,000 tokens the size of the multi30k Transformer
    "base": {"width": 512, "heads": 8, "layers": 8},
}


def encoder(c: Config) -> Stack:
    """A stack that reads in both directions."""
    layers = [Layer(GatedConvolution(c.width, c.kernel_size), None, partial(residual, c)) for _ in range(c.layers)]
    return Stack(layers, nn.LayerNorm(c.width), c.positions.build(c.width, c.heads, causal=False))


def decoder(c: Config, cross: bool) -> Stack:
    """A causal stack, with cross-attention if there is a source."""
    layers = [
        Layer(
            GatedConvolution(c.width, c.kernel_size, causal=True),
            None,
            partial(residual, c),
            cross=c.attention.build(c.width, c.heads) if cross else None,
        )
        for _ in range(c.decoder_layers or c.layers)
    ]
    return Stack(layers, nn.LayerNorm(c.width), c.positions.build(c.width, c.heads, causal=True), causal=True)


def residual(c: Config) -> Residual:
    """A sub-layer with its residual connection."""
    return Residual(nn.LayerNorm(c.width), norm_first=True, dropout=c.dropout)


def initial(c: Config) -> dict[str, Rule]:
    """The initialization table."""
    return {
        r".*norm\.weight": ones,
        r".*bias": zeros,
        r"(source|target|embed|head|.*table)\.weight": normal(c.width**-0.5),
        r".*\.weight": glorot,
    }


def Model(c: Config) -> generic.GenericModel:
    """The model for the head of the task."""
    return generic.StackBuilder(encoder, decoder, initial(c), c.width**0.5)(c)
