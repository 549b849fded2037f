"""GPT-2 (Radford et al. 2019): a causal stack predicts the next token at every position at once.

Other slot values make it a modern decoder: rotary positions, RMS norm, a gated feed-forward and key heads shared by
groups of query heads (size `modern`). `formats/huggingface/gpt2.py` and `llama.py` hold the names of public weights.
"""

from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from torch import Tensor, nn

from ..config.types import Base, Count, Positive, Share
from ..parts import Cache, Dropout, Layer, Mask, Residual, Stack, slots
from ..parts.attention import Projections
from ..parts.init import Rule, initialize, normal, ones, zeros
from .base import LanguageModel
from .spec import CAUSAL

Attention = Annotated[slots.Dense | slots.Window | slots.Favor | slots.Additive, Field(discriminator="kind")]
Positions = Annotated[slots.Learned | slots.Sinusoid | slots.Rotary | slots.Buckets, Field(discriminator="kind")]
Norm = Annotated[slots.LayerNorm | slots.RMSNorm, Field(discriminator="kind")]
Feed = Annotated[slots.Feed | slots.Gated, Field(discriminator="kind")]


class Config(Base):
    """The settings of a GPT; Llama is one with other slot values."""

    family: Literal["gpt"] = "gpt"
    size: str = "small"
    vocab: Count = 0  # 0: the tokenizer's size
    width: Positive = 768
    heads: Positive = 12
    key_heads: Count = 0  # key/value heads, each shared by a group of query heads; 0: same as heads
    head_width: Count = 0  # 0: width / heads
    layers: Positive = 12
    inner: Positive = 3072
    dropout: Share = 0.1  # of the embeddings and of every residual
    head_dropout: Share = 0.0  # of the head's input: GPT-2 has none, small word-level models gain by it
    tied: bool = True  # the head shares the embedding table
    biased: bool = True  # linear maps have a bias
    attention: Attention = slots.Dense()
    positions: Positions = slots.Learned(tokens=1024)
    norm: Norm = slots.LayerNorm()
    feed: Feed = slots.Feed(act="gelu_tanh")

    @model_validator(mode="after")
    def _check_shape(self) -> "Config":
        slots.check_widths(self.width, self.heads, self.positions, self.head_width)
        slots.check_causal(self.attention, self.positions)
        slots.check_layer_lists(self.attention, self.layers)
        if self.key_heads and self.heads % self.key_heads:
            raise ValueError(
                f"{self.heads} heads cannot share {self.key_heads} key heads evenly; use a divisor (model.key_heads)"
            )
        return self


SHORT = {"positions": {"kind": "learned", "tokens": 256}}
MODERN = {"positions": "rotary", "norm": "rms", "feed": "gated", "biased": False, "dropout": 0.0}
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"width": 128, "heads": 4, "layers": 2, "inner": 512} | SHORT,
    "small": {"width": 384, "heads": 6, "layers": 6, "inner": 1536} | SHORT,
    "gpt2": {"width": 768, "heads": 12, "layers": 12, "inner": 3072},
    "gpt2-medium": {"width": 1024, "heads": 16, "layers": 24, "inner": 4096},
    "gpt2-large": {"width": 1280, "heads": 20, "layers": 36, "inner": 5120},
    "gpt2-xl": {"width": 1600, "heads": 25, "layers": 48, "inner": 6400},
    "modern-tiny": {"width": 128, "heads": 4, "key_heads": 2, "layers": 2, "inner": 384} | MODERN,
    "modern": {"width": 768, "heads": 12, "key_heads": 4, "layers": 12, "inner": 2048} | MODERN,
}


SPEC = CAUSAL


class Model(LanguageModel):
    """GPT: a causal stack that predicts the next token."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.embed = nn.Embedding(c.vocab, c.width)
        self.dropout, self.head_dropout = Dropout(c.dropout), Dropout(c.head_dropout)
        norm = partial(c.norm.build, c.width)
        shape: Projections = {"key_heads": c.key_heads, "head_width": c.head_width, "bias": c.biased}
        layers = [
            Layer(
                slots.for_layer(c.attention, number).build(c.width, c.heads, **shape),
                c.feed.build(c.width, c.inner, bias=c.biased),
                lambda: Residual(norm(), norm_first=True, dropout=c.dropout),
            )
            for number in range(c.layers)
        ]
        positions = c.positions.build(c.width, c.heads, causal=True, head_width=c.head_width)
        self.stack = Stack(layers, norm(), positions, causal=True)
        self.head = nn.Linear(c.width, c.vocab, bias=False)
        initialize(self, initial(c.layers))
        if c.tied:
            self.head.weight = self.embed.weight

    def _decode(self, tokens: Tensor, mask: Mask, cache: Cache | None) -> Tensor:
        states: Tensor = self.head_dropout(super()._decode(tokens, mask, cache))
        return states


def initial(layers: int) -> dict[str, Rule]:
    """The initialization table of a model of this depth."""
    return {
        r".*norm\.weight": ones,
        r".*bias": zeros,
        r".*\.out\.weight": normal(0.02 / (2 * layers) ** 0.5),  # each layer adds two of them to the residual stream
        r".*\.weight": normal(0.02),
    }
