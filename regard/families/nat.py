"""The non-autoregressive Transformer (1711.02281): it writes all target tokens at once.

The encoder predicts the fertility of every source token: how many target tokens it gives. The decoder reads each source
token that many times, and replaces all copies together.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from ..config.data.texts import AlignedPairData
from ..config.decode import FertilityDecode
from ..config.losses import FertilityLoss
from ..config.types import Positive
from ..parts import (
    Attention,
    Cross,
    Dropout,
    Encoded,
    FeedForward,
    Inputs,
    Layer,
    LayerCache,
    Mask,
    PositionTerms,
    Residual,
    SinusoidPositions,
    Stack,
    slots,
)
from ..parts.init import initialize, normal
from ..parts.parallel.length import LengthHead
from .base import EncoderDecoder, encode_tokens
from .seq2seq import INITIAL, SIZES, Feed, Norm, Seq2SeqConfig
from .seq2seq import Attention as AttentionSlot
from .spec import TOKENS, ModelSpec

__all__ = ["SIZES", "SPEC", "Config", "CopyConfig", "CopyTransformer", "Model"]

Positions = Annotated[slots.Sinusoid | slots.Learned, Field(discriminator="kind")]


class CopyConfig(Seq2SeqConfig):
    """The settings of a Transformer that writes all target tokens at once, in place of copies of source tokens."""

    positional: bool = True  # decoder layers have positional attention
    attention: AttentionSlot = slots.Dense()
    positions: Positions = slots.Sinusoid()
    feed: Feed = slots.Feed()
    norm: Norm = slots.LayerNorm()

    @model_validator(mode="after")
    def _check_shape(self) -> "CopyConfig":
        slots.check_widths(self.width, self.heads, self.positions)
        return self


class Config(CopyConfig):
    """The settings of a non-autoregressive Transformer."""

    family: Literal["nat"] = "nat"
    fertilities: bool = True  # false: the encoder predicts only the length; source tokens are copied evenly
    max_fertility: Positive = 50  # copies of a source token
    max_length: Positive = 256  # tokens of a target, without END, if fertilities is false


SPEC = ModelSpec(
    TOKENS,
    frozenset({"fertility"}),
    settings={"translate": {"data": AlignedPairData, "decode": FertilityDecode, "train.objective": FertilityLoss}},
)


class PositionalLayer(Layer):
    """A decoder layer with positional attention: queries and keys are position vectors, values are hidden states."""

    def __init__(
        self,
        attention: Attention,
        feed: FeedForward,
        residual: Callable[[], Residual],
        cross: Attention,
        order: Attention,
        width: int,
    ) -> None:
        super().__init__(attention, feed, residual, cross)
        self.order, self.order_residual, self.vectors = order, residual(), SinusoidPositions(width)

    def forward(
        self,
        x: Tensor,
        mask: Mask,
        position_terms: PositionTerms,
        layer_cache: LayerCache | None = None,
        cross: Cross | None = None,
        index: int = 0,
    ) -> Tensor:
        assert cross is not None and self.cross_residual is not None and self.feed_residual is not None
        x = self.attention_residual(x, lambda y: self.attention(y, y, y, mask, position_terms))
        places = mask.query_key_positions(x.size(1), x.size(1), x.device)[0]
        vectors = mask.cached("order vectors", lambda: self.vectors.vectors(places).to(x.dtype))  # (batch or 1, …)
        whole = mask.cached("order mask", lambda: mask.replace(exclude_self=False).memoized())
        x = self.order_residual(x, lambda y: self.order(vectors, vectors, y, whole))
        x = self.cross_residual(x, lambda y: self.cross_attend(y, cross, index))
        x = self.feed_residual(x, lambda y: self.feed_forward(y, mask))
        return x


class CopyTransformer(EncoderDecoder):
    """An encoder, and a decoder that replaces copies of source tokens."""

    encode = encode_tokens

    def __init__(self, c: CopyConfig, heads: Mapping[str, nn.Module]) -> None:
        """`heads` predict from the states of the encoder how often source tokens are copied."""
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
        layer: Callable[[], Layer] = lambda: Layer(attend(), feed(), residual, attend())  # noqa: E731
        if c.positional:
            layer = lambda: PositionalLayer(attend(), feed(), residual, attend(), attend(), c.width)  # noqa: E731
        self.decoder = Stack(
            [layer() for _ in range(c.decoder_layers or c.layers)],
            norm() if c.prenorm else None,
            c.positions.build(c.width, c.heads, causal=False),
        )
        for name, head in heads.items():
            self.add_module(name, head)
        self.head = nn.Linear(c.width, self.target.num_embeddings, bias=False)
        embeddings = r"(source|target|head|fertility|length\.\w+|.*table)\.weight"
        initialize(self, INITIAL | {embeddings: normal(c.width**-0.5)})
        if c.tied:
            self.head.weight = self.target.weight

    def decode(self, copies: Inputs, encoded: Encoded, shown: Tensor | None = None) -> Tensor:
        x = self.source(copies.values)
        if shown is not None:
            x = torch.where((shown >= 0)[..., None], self.target(shown.clamp(min=0)), x)
        x = self.decoder.add_positions(self.scaled(x), copies.positions)
        states: Tensor = self.decoder(self.dropout(x), copies.mask().replace(exclude_self=True), encoded.cross(copies))
        return states  # (batch, copies, width)


class Model(CopyTransformer):
    """NAT (1711.02281): the decoder reads each source token as often as its fertility says."""

    fertility: nn.Linear
    length: LengthHead

    def __init__(self, c: Config) -> None:
        by_token = {"fertility": nn.Linear(c.width, c.max_fertility + 1)} if c.fertilities else {}
        super().__init__(c, by_token or {"length": LengthHead(c.width, c.max_length)})
        self.fertilities = c.fertilities

    def fertility_logits(self, encoded: Encoded) -> Tensor:
        logits: Tensor = self.fertility(encoded.states)
        return logits  # (batch, source, max_fertility + 1)

    def length_logits(self, encoded: Encoded) -> Tensor:
        logits: Tensor = self.length(encoded.states, encoded.valid)
        return logits  # (batch, max_length + 1)
