"""The conditional masked language model of Mask-Predict (1904.09324): it fills in all masked target tokens at once.

The encoder predicts the length of the target. The decoder reads a target in both directions, with some or all of its
tokens masked.
"""

from functools import partial
from typing import Literal

from pydantic import model_validator
from torch import Tensor, nn

from ..config.decode import MaskPredictDecode
from ..config.losses import MaskPredictLoss
from ..config.types import Positive
from ..parts import Dropout, Encoded, Layer, Residual, Stack, slots
from ..parts.init import initialize, normal
from ..parts.parallel.length import LengthHead
from .base import EncoderDecoder, encode_tokens
from .seq2seq import INITIAL, SIZES, Attention, Feed, Norm, Positions, Seq2SeqConfig
from .spec import TOKENS, ModelSpec

__all__ = ["SIZES", "SPEC", "Config", "Model"]


class Config(Seq2SeqConfig):
    """The settings of a conditional masked language model."""

    family: Literal["cmlm"] = "cmlm"
    max_length: Positive = 256  # tokens of a target, without END
    attention: Attention = slots.Dense()
    positions: Positions = slots.Sinusoid()
    feed: Feed = slots.Feed()
    norm: Norm = slots.LayerNorm()

    @model_validator(mode="after")
    def _check_shape(self) -> "Config":
        slots.check_widths(self.width, self.heads, self.positions)
        return self


SPEC = ModelSpec(
    TOKENS,
    frozenset({"mask_predict"}),
    settings={"translate": {"decode": MaskPredictDecode, "train.objective": MaskPredictLoss}},
)


class Model(EncoderDecoder):
    """CMLM (1904.09324): the decoder fills in the masked tokens of a target of known length."""

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
            c.positions.build(c.width, c.heads, causal=False),
        )
        self.length = LengthHead(c.width, c.max_length)
        self.head = nn.Linear(c.width, self.target.num_embeddings, bias=False)
        initialize(self, INITIAL | {r"(source|target|head|length\.\w+|.*table)\.weight": normal(c.width**-0.5)})
        if c.tied:
            self.head.weight = self.target.weight

    def length_logits(self, encoded: Encoded) -> Tensor:
        """From the mean of the states; the paper has a token LENGTH before the source instead."""
        logits: Tensor = self.length(encoded.states, encoded.valid)
        return logits  # (batch, max_length + 1)
