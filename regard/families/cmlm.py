"""The conditional masked language model of Mask-Predict (1904.09324): it fills in all masked target tokens at once.

The encoder predicts the length of the target. The decoder reads a target in both directions, with some or all of its
tokens masked.
"""

from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from torch import Tensor, nn

from ..config.decode import MaskPredictDecode
from ..config.types import Base, Count, Positive, Share
from ..parts import Dropout, Encoded, Layer, Residual, Stack, slots
from ..parts.init import glorot, initialize, normal, ones, zeros
from ..parts.parallel.length import LengthHead
from .base import EncoderDecoder, encode_tokens
from .spec import TOKENS, ModelSpec

Attention = Annotated[slots.Dense | slots.Additive, Field(discriminator="kind")]
Positions = Annotated[slots.Sinusoid | slots.Learned | slots.Rotary | slots.Buckets, Field(discriminator="kind")]
Feed = Annotated[slots.Feed | slots.Gated, Field(discriminator="kind")]
Norm = Annotated[slots.LayerNorm | slots.RMSNorm, Field(discriminator="kind")]


class Config(Base):
    """The settings of a conditional masked language model."""

    family: Literal["cmlm"] = "cmlm"
    size: str = "small"
    vocab: Count = 0  # of the source; 0: the tokenizer's size
    target_vocab: Count = 0  # 0: source and target share one vocabulary and one embedding table
    width: Positive = 512
    heads: Positive = 8
    layers: Positive = 6
    decoder_layers: Count = 0  # 0: equal to `layers`
    inner: Positive = 2048
    dropout: Share = 0.1
    prenorm: bool = False  # the norm comes first; in the paper last
    tied: bool = True  # the head shares the target embeddings
    scaled: bool = True  # embeddings × √width
    max_length: Positive = 256  # tokens of a target, without END
    attention: Attention = slots.Dense()
    positions: Positions = slots.Sinusoid()
    feed: Feed = slots.Feed()
    norm: Norm = slots.LayerNorm()

    @model_validator(mode="after")
    def _check_shape(self) -> "Config":
        slots.check_widths(self.width, self.heads, self.positions)
        return self


SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"width": 128, "heads": 4, "layers": 2, "inner": 256},
    "small": {"width": 256, "heads": 4, "layers": 3, "inner": 1024},
    "base": {"width": 512, "heads": 8, "layers": 6, "inner": 2048},
    "big": {"width": 1024, "heads": 16, "layers": 6, "inner": 4096, "dropout": 0.3},
}
SPEC = ModelSpec(TOKENS, frozenset({"mask_predict"}), settings={"translate": {"decode": MaskPredictDecode}})


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


INITIAL = {
    r".*norm\.weight": ones,
    r".*bias": zeros,
    r".*(query|key|value|out|into|gate|score)\.weight": glorot,
}
