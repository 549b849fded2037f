"""The teaching language model: the Transformer's *encoder* layers under a causal mask, predicting the next token.

With the same weights it equals `torch.nn.TransformerEncoder`, post-norm as first published (1706.03762).
"""

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from torch import nn

from ..config.types import Base, Count, Positive, Share
from ..parts import Dropout, FeedForward, Layer, Residual, SinusoidPositions, Stack, slots
from ..parts.init import glorot, initialize, normal, ones, zeros
from .base import LanguageModel
from .spec import CAUSAL

Attention = Annotated[slots.Dense | slots.Window | slots.Favor, Field(discriminator="kind")]


class Config(Base):
    """The settings of a small causal language model."""

    family: Literal["lm"] = "lm"
    size: str = "base"
    vocab: Count = 0  # 0: the tokenizer's size
    width: Positive = 256
    heads: Positive = 8
    layers: Positive = 4
    inner: Positive = 512
    dropout: Share = 0.1  # of embeddings, attention weights, the feed-forward's inner layer and every residual
    tied: bool = True  # the head shares the embedding table
    attention: Attention = slots.Dense()

    @model_validator(mode="after")
    def _check_shape(self) -> "Config":
        slots.check_widths(self.width, self.heads, slots.Sinusoid())
        slots.check_causal(self.attention, slots.Sinusoid())
        slots.check_layer_lists(self.attention, self.layers)
        if isinstance(self.attention, slots.Dense) and self.attention.dropout:
            raise ValueError(
                f"model.attention.dropout is {self.attention.dropout}, but in family lm model.dropout covers attention "
                "weights too; set model.dropout instead"
            )
        return self

    def layer_attention(self) -> slots.Dense | slots.Window | slots.Favor:
        """The attention of a layer; a dense one has the model's dropout."""
        attention = self.attention
        return replace(attention, dropout=self.dropout) if isinstance(attention, slots.Dense) else attention


SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"width": 128, "heads": 4, "layers": 2, "inner": 256},
    "base": {"width": 256, "heads": 8, "layers": 4, "inner": 512},
}


SPEC = CAUSAL


class Model(LanguageModel):
    """A causal stack that predicts the next token."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.scale = c.width**0.5
        self.embed = nn.Embedding(c.vocab, c.width)
        self.dropout = Dropout(c.dropout)
        layers = [
            Layer(
                slots.for_layer(c.layer_attention(), number).build(c.width, c.heads),
                FeedForward(c.width, c.inner, "relu", dropout=c.dropout),
                lambda: Residual(nn.LayerNorm(c.width), norm_first=False, dropout=c.dropout),
            )
            for number in range(c.layers)
        ]
        self.stack = Stack(layers, positions=SinusoidPositions(c.width), causal=True)
        self.head = nn.Linear(c.width, c.vocab)
        initialize(self, INITIAL | {r"(embed|head)\.weight": normal(c.width**-0.5)})
        if c.tied:
            self.head.weight = self.embed.weight


INITIAL = {
    r".*norm\.weight": ones,
    r".*bias": zeros,
    r"stack\..*\.weight": glorot,
}
