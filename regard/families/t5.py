"""T5 (1910.10683): every task is text to text. Bucketed relative positions, RMS norm, no biases, unscaled scores."""

from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from torch import Tensor, nn

from ..config.types import Base, Count, Positive, Share
from ..parts import Cache, Cross, Dropout, Encoded, Inputs, Layer, Mask, Residual, Stack, slots
from ..parts.init import Rule, initialize, normal, ones, zeros
from .base import Seq2Seq, encode_tokens
from .seq2seq import Attention, Feed
from .spec import SEQ2SEQ

Positions = Annotated[slots.Buckets | slots.Sinusoid | slots.Learned | slots.Rotary, Field(discriminator="kind")]
Norm = Annotated[slots.RMSNorm | slots.LayerNorm, Field(discriminator="kind")]


class Config(Base):
    """The defaults are T5 1.1. The first T5 has `feed.kind=plain` and `tied`."""

    family: Literal["t5"] = "t5"
    size: str = "small"
    vocab: Count = 0  # of the source; 0: the tokenizer's size
    target_vocab: Count = 0  # 0: source and target share one vocabulary and one embedding table
    width: Positive = 512
    heads: Positive = 6
    head_width: Positive = 64  # need not be width / heads
    layers: Positive = 8
    decoder_layers: Count = 0  # 0: equal to `layers`
    inner: Positive = 1024
    dropout: Share = 0.1
    tied: bool = False  # the head shares the target embeddings and scales its input by width^-½
    attention: Attention = slots.Dense(scaled=False, dropout=0.1)
    positions: Positions = slots.Buckets()
    feed: Feed = slots.Gated(act="gelu_tanh", dropout=0.1)
    norm: Norm = slots.RMSNorm()

    @model_validator(mode="after")
    def _check_shape(self) -> "Config":
        slots.check_widths(self.width, self.heads, self.positions, self.head_width)
        return self


SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"width": 128, "heads": 4, "head_width": 32, "layers": 2, "inner": 256},
    "small": {"width": 512, "heads": 6, "layers": 8, "inner": 1024},
    "base": {"width": 768, "heads": 12, "layers": 12, "inner": 2048},
    "large": {"width": 1024, "heads": 16, "layers": 24, "inner": 2816},
    "small-1.0": {
        "width": 512, "heads": 8, "layers": 6, "inner": 2048, "tied": True,
        "feed": {"kind": "plain", "act": "relu", "dropout": 0.1},
    },
}  # fmt: skip


SPEC = SEQ2SEQ


class Model(Seq2Seq):
    """T5 (1910.10683): encoder and decoder with bucketed relative positions."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.source = nn.Embedding(c.vocab, c.width)
        self.target = nn.Embedding(c.target_vocab, c.width) if c.target_vocab else self.source
        self.dropout = Dropout(c.dropout)
        norm = partial(c.norm.build, c.width)
        residual = lambda: Residual(norm(), dropout=c.dropout)  # noqa: E731
        attend = partial(c.attention.build, c.width, c.heads, head_width=c.head_width, bias=False)
        feed = partial(c.feed.build, c.width, c.inner, bias=False)
        positions = partial(c.positions.build, c.width, c.heads, head_width=c.head_width)
        self.encoder = Stack(
            [Layer(attend(), feed(), residual) for _ in range(c.layers)],
            norm(),
            positions(causal=False),
        )
        self.decoder = Stack(
            [Layer(attend(), feed(), residual, cross=attend()) for _ in range(c.decoder_layers or c.layers)],
            norm(),
            positions(causal=True),
            causal=True,
        )
        self.head = nn.Linear(c.width, self.target.num_embeddings, bias=False)
        initialize(self, initial(c))
        self.head_scale = c.width**-0.5 if c.tied else 1.0
        if c.tied:
            self.head.weight = self.target.weight

    def encode(self, source: Inputs) -> Encoded:
        encoded = encode_tokens(self, source)
        return replace(encoded, states=self.dropout(encoded.states))

    def _decode(self, tokens: Tensor, mask: Mask, cross: Cross | None = None, cache: Cache | None = None) -> Tensor:
        states: Tensor = self.dropout(super()._decode(tokens, mask, cross, cache))
        return states

    def logits(self, states: Tensor) -> Tensor:
        return super().logits(states * self.head_scale)


def initial(c: Config) -> dict[str, Rule]:
    """Initial values. Scores are unscaled, so the queries start small instead."""
    return {
        r".*norm\.weight": ones,
        r".*bias": zeros,  # only LayerNorm has one
        r"source\.weight|target\.weight": normal(1.0),
        r".*query\.weight": normal((c.width * c.head_width) ** -0.5),
        r".*(attention|cross)\.out\.weight": normal((c.heads * c.head_width) ** -0.5),
        r".*feed\.out\.weight": normal(c.inner**-0.5),
        r".*score\.weight": normal(c.head_width**-0.5),
        r".*\.weight": normal(c.width**-0.5),
    }
