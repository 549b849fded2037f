"""The predecessor of the Transformer: recurrent layers, and a decoder with additive attention to the source.

Scores are Bahdanau's (1409.0473). The context is added after the recurrence, as in Luong (1508.04025), and not fed into
the next input. So every layer reads a whole target in one fused LSTM call; higher layers still get earlier contexts.
Residuals, norms and optional multiple heads follow RNMT+ (1804.09849).
"""

from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from torch import nn

from ..config.types import Positive
from ..parts import Layer, Residual, Stack, slots
from ..parts.init import Rule, forget_gate_ones, glorot, normal, ones, orthogonal, zeros
from ..parts.recurrent import Cell, Recurrence, odd_width_message
from . import generic
from .generic import SPEC

__all__ = ["SIZES", "SPEC", "Config", "Model"]

Attention = Annotated[slots.Additive | slots.Dense, Field(discriminator="kind")]


class Config(generic.BaseConfig):
    """The settings of a recurrent model."""

    family: Literal["rnn"] = "rnn"
    size: str = "small"
    cell: Cell = "lstm"  # the recurrent layer
    heads: Positive = 1  # as in Bahdanau
    attention: Attention = slots.Additive()  # of the decoder, over the source
    carry_state: bool = True  # a language model carries its state from one window of a text to the next

    @model_validator(mode="after")
    def _check_shape(self) -> "Config":
        if self.head == "target":
            slots.check_widths(self.width, self.heads, None)
        if self.head != "next" and self.width % 2:
            raise ValueError(f"{odd_width_message(self.width)} (model.width)")
        return self


SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"width": 128, "heads": 1, "layers": 2},
    "small": {"width": 352, "heads": 1, "layers": 2},  # with 8,000 tokens the size of the multi30k Transformer
    "base": {"width": 640, "heads": 4, "layers": 4},
}


def encoder(c: Config) -> Stack:
    """Bidirectional layers."""
    layers = [
        Layer(Recurrence(c.width, c.cell, bidirectional=True), None, partial(residual, c)) for _ in range(c.layers)
    ]
    return Stack(layers, nn.LayerNorm(c.width))


def decoder(c: Config, cross: bool) -> Stack:
    """A recurrent stack, with cross-attention if there is a source."""
    layers = [
        Layer(
            Recurrence(c.width, c.cell),
            None,
            partial(residual, c),
            cross=c.attention.build(c.width, c.heads) if cross else None,
        )
        for _ in range(c.decoder_layers or c.layers)
    ]
    return Stack(layers, nn.LayerNorm(c.width), causal=True)


def residual(c: Config) -> Residual:
    """A sub-layer with its residual connection."""
    return Residual(nn.LayerNorm(c.width), norm_first=True, dropout=c.dropout)


def initial(c: Config) -> dict[str, Rule]:
    """The initialization table."""
    return {
        r".*norm\.weight": ones,
        r".*weight_ih_l0": glorot,
        r".*weight_hh_l0": orthogonal,
        r".*bias_hh_l0": forget_gate_ones if c.cell == "lstm" else zeros,
        r".*bias.*": zeros,
        r"(source|target|embed|head)\.weight": normal(c.width**-0.5),
        r".*\.weight": glorot,
    }


def Model(c: Config) -> generic.GenericModel:
    """The model for the head of the task."""
    return generic.StackBuilder(encoder, decoder, initial(c), carry_state=c.carry_state)(c)
