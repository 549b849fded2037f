"""BERT (1810.04805): a bidirectional encoder; small heads on top predict masked words, classes or tags.

A text is encoded between START and END, which are BERT's [CLS] and [SEP]. In a pair of texts, `token_types` names the
one each token belongs to. Masked words need a tokenizer with a mask token (`train_tokenizer(…, control=(MASK,))`).
"""

import math
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from ..config.types import Base, Count, Positive, Share
from ..parts import Dropout, Encoded, Inputs, Layer, Residual, Stack, slots
from ..parts.feed import ACTIVATIONS
from ..parts.init import initialize, normal, ones, unchanged, zeros
from ..parts.inputs import TensorKind
from ..parts.pooling import Pooling, pool
from .spec import TOKENS, ModelSpec

Attention = Annotated[
    slots.Dense | slots.Window | slots.Blocks | slots.Favor | slots.Lowrank | slots.Additive,
    Field(discriminator="kind"),
]
Positions = Annotated[slots.Learned | slots.Sinusoid | slots.Rotary, Field(discriminator="kind")]
Feed = Annotated[slots.Feed | slots.Gated | slots.Convolution, Field(discriminator="kind")]
Norm = Annotated[slots.LayerNorm | slots.RMSNorm, Field(discriminator="kind")]


SCALE = 20.0  # of the cosines of sentence embeddings


class EncoderConfig(Base):
    """Settings of an encoder with heads on top. The defaults are BERT's; Longformer and BigBird override some."""

    family: str
    size: str = "small"
    vocab: Count = 0  # 0: the tokenizer's size
    token_types: Positive = 2  # texts that a row may hold; data.next_sentence of task masked needs two
    width: Positive = 512
    heads: Positive = 8
    layers: Positive = 4
    inner: Positive = 2048
    dropout: Share = 0.1
    prenorm: bool = False  # true: norm before each sub-layer; false: after it, as published
    head: Literal["none", "words", "class", "tag"] = "none"
    labels: Count = 0  # of the heads class and tag; the task sets it
    next_sentence: bool = False  # a further head: whether the second text follows the first; the task sets it
    pooled: bool = False  # a map of the first token; the heads class and next_sentence always have it
    pooling: Pooling = "first"  # of the states, before the class head; in the paper the first token
    tied: bool = True  # the head of masked words shares the embedding table
    attention: Attention = slots.Dense(dropout=0.1)
    positions: Positions = slots.Learned()
    feed: Feed = slots.Feed(act="gelu")
    norm: Norm = slots.LayerNorm(eps=1e-12)
    pool_with_act: ClassVar[bool] = False  # the head class pools with the activation of `feed` instead of tanh

    @model_validator(mode="after")
    def _check_shape(self) -> Self:
        slots.check_widths(self.width, self.heads, self.positions)
        slots.check_layer_lists(self.attention, self.layers)
        return self


class Config(EncoderConfig):
    """The settings of a BERT."""

    family: Literal["bert"] = "bert"


SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"width": 128, "heads": 2, "layers": 2, "inner": 512},
    "mini": {"width": 256, "heads": 4, "layers": 4, "inner": 1024},
    "small": {"width": 512, "heads": 8, "layers": 4, "inner": 2048},
    "base": {"width": 768, "heads": 12, "layers": 12, "inner": 3072},
    "large": {"width": 1024, "heads": 16, "layers": 24, "inner": 4096},
}


SPEC = ModelSpec(
    TOKENS,
    frozenset({"masked", "label", "tags", "embedding"}),
    head_modules=("words", "pooler", "next", "classes"),
    label_modules=("classes",),
)


class MaskedLMHead(nn.Module):
    """Logits of the word at each position: one more layer, then a score for every entry of the vocabulary."""

    def __init__(self, c: EncoderConfig) -> None:
        super().__init__()
        self.into, self.norm, self.out = nn.Linear(c.width, c.width), c.norm.build(c.width), nn.Linear(c.width, c.vocab)
        self.act = c.feed.act

    def forward(self, states: Tensor) -> Tensor:
        scores: Tensor = self.out(self.norm(ACTIVATIONS[self.act](self.into(states))))
        return scores


class Model(nn.Module):
    """BERT (1810.04805): a bidirectional encoder with a head for labels, tags or masked tokens."""

    log_scale: Tensor

    def __init__(self, c: EncoderConfig) -> None:
        super().__init__()
        self.head, self.pooling = c.head, c.pooling
        self.pool_act = ACTIVATIONS[c.feed.act] if c.pool_with_act and c.head == "class" else torch.tanh
        self.embed, self.kinds = nn.Embedding(c.vocab, c.width), nn.Embedding(c.token_types, c.width)
        norm = partial(c.norm.build, c.width)
        self.norm, self.dropout = norm(), Dropout(c.dropout)
        self.encoder = Stack(
            [
                Layer(
                    slots.for_layer(c.attention, number).build(c.width, c.heads),
                    c.feed.build(c.width, c.inner),
                    lambda: Residual(norm(), c.prenorm, c.dropout),
                )
                for number in range(c.layers)
            ],
            norm() if c.prenorm else None,
            c.positions.build(c.width, c.heads, causal=False),
        )
        self.words = MaskedLMHead(c) if c.head == "words" else None
        self.pooler = nn.Linear(c.width, c.width) if c.pooled or c.next_sentence or c.head == "class" else None
        self.next = nn.Linear(c.width, 2) if c.next_sentence else None
        self.classes = nn.Linear(c.width, c.labels) if c.head in ("class", "tag") else None
        # The scale of cosines, as sentence embeddings are trained: no weight, so that folders need not hold it.
        self.register_buffer("log_scale", torch.tensor([math.log(SCALE)]), persistent=False)
        initialize(self, INITIAL)
        if self.words is not None and c.tied:
            self.words.out.weight = self.embed.weight

    @property
    def context(self) -> int | None:
        return self.encoder.context  # the longest text in tokens; None: any length

    def encode(self, text: Inputs) -> Encoded:
        kinds = self.kinds.weight[0] if text.token_types is None else self.kinds(text.token_types)
        x = self.encoder.add_positions(self.embed(text.values) + kinds, text.positions)
        states: Tensor = self.encoder(self.dropout(self.norm(x)), text.mask())
        return Encoded(states, text.valid, text.segments)

    def vectors(self, inputs: Inputs) -> Tensor:
        """Sentence embeddings (1908.10084): the mean of the states, of length 1; (batch, width)."""
        encoded = self.encode(inputs)
        return pool(encoded.states.float(), encoded.valid, "mean", normalized=True)

    def reader(self, modality: TensorKind) -> nn.Module:
        """All of it: it reads texts alone."""
        return self

    def logits(self, states: Tensor) -> Tensor:
        assert self.words is not None, "model.head is not words"
        logits: Tensor = self.words(states)
        return logits  # (…, vocab)

    def pool(self, encoded: Encoded, how: Pooling = "first") -> Tensor:
        """The pooled states through a dense layer."""
        assert self.pooler is not None, "model.pooled is false"
        return self.pool_act(self.pooler(pool(encoded.states, encoded.valid, how)))  # (batch, width)

    def next_sentence_logits(self, encoded: Encoded) -> Tensor:
        assert self.next is not None, "model.next_sentence is false"
        logits: Tensor = self.next(self.pool(encoded))
        return logits  # (batch, 2): logits of yes and no

    def label_logits(self, encoded: Encoded) -> Tensor:
        """Logits of the heads class and tag."""
        assert self.classes is not None, "model.head is neither class nor tag"
        x = self.pool(encoded, self.pooling) if self.head == "class" else encoded.states
        logits: Tensor = self.classes(self.dropout(x))
        return logits  # (batch, labels); for tags (batch, tokens, labels)

    def forward(self, text: Inputs) -> Tensor:
        encoded = self.encode(text)
        if self.head == "none":
            return encoded.states
        return self.logits(encoded.states) if self.head == "words" else self.label_logits(encoded)


INITIAL = {
    r".*norm\.weight": ones,
    r".*bias": zeros,
    r".*kernel\.(keys|values)\.weight": unchanged,  # means over neighbors
    r".*\.weight": normal(0.02),
}
