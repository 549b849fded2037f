"""The Transformer (1706.03762): an encoder reads the source; a decoder attends to it and predicts the target."""

from functools import partial
from typing import Literal

from pydantic import model_validator
from torch import nn

from ..parts import Dropout, Layer, Residual, Stack, slots
from ..parts.init import initialize, normal
from .base import Seq2Seq, encode_tokens
from .seq2seq import INITIAL, SIZES, Attention, Feed, Norm, Positions, Seq2SeqConfig
from .spec import SEQ2SEQ

__all__ = ["SIZES", "SPEC", "Config", "Model"]


class Config(Seq2SeqConfig):
    """The settings of a Transformer."""

    family: Literal["transformer"] = "transformer"
    biased: bool = False  # the head has a bias
    attention: Attention = slots.Dense()
    positions: Positions = slots.Sinusoid()
    feed: Feed = slots.Feed()
    norm: Norm = slots.LayerNorm()

    @model_validator(mode="after")
    def _check_shape(self) -> "Config":
        slots.check_widths(self.width, self.heads, self.positions)
        return self


SPEC = SEQ2SEQ


class Model(Seq2Seq):
    """The Transformer (1706.03762): encoder and decoder."""

    encode = encode_tokens

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.scale = c.width**0.5 if c.scaled else 1.0
        self.source = nn.Embedding(c.vocab, c.width)
        self.target = nn.Embedding(c.target_vocab, c.width) if c.target_vocab else self.source
        self.dropout = Dropout(c.dropout)
        norm = partial(c.norm.build, c.width)
        residual = lambda: Residual(norm(), c.prenorm, c.dropout)  # noqa: E731
        attend, feed = partial(c.attention.build, c.width, c.heads), partial(c.feed.build, c.width, c.inner)
        self.encoder = Stack(
            [Layer(attend(), feed(), residual) for _ in range(c.layers)],
            norm() if c.prenorm else None,
            c.positions.build(c.width, c.heads, causal=False),
        )
        self.decoder = Stack(
            [Layer(attend(), feed(), residual, cross=attend()) for _ in range(c.decoder_layers or c.layers)],
            norm() if c.prenorm else None,
            c.positions.build(c.width, c.heads, causal=True),
            causal=True,
        )
        self.head = nn.Linear(c.width, self.target.num_embeddings, bias=c.biased)
        initialize(self, INITIAL | {r"(source|target|head|.*table)\.weight": normal(c.width**-0.5)})
        if c.tied:
            self.head.weight = self.target.weight
