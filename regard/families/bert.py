"""BERT (1810.04805): an encoder reads a text from both sides; small heads on top say masked words, classes or tags.

Texts stand between START and END, which are BERT's [CLS] and [SEP]; `kinds` says of a pair of texts which of the two
a token is in. Masked words need a tokenizer whose `mask` is a number (`learn(…, control=(MASK,))`).
"""

from functools import partial
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from ..config import Base
from ..parts import Layer, Mask, Residual, Stack, initialise, normal, ones, slots, zeros
from ..parts.feed import ACTIVATIONS

Attention = Annotated[slots.Dense | slots.Window | slots.Favor | slots.Additive, Field(discriminator="kind")]
Positions = Annotated[slots.Learned | slots.Sinusoid | slots.Rotary, Field(discriminator="kind")]
Feed = Annotated[slots.Feed | slots.Gated | slots.Convolution, Field(discriminator="kind")]
Norm = Annotated[slots.LayerNorm | slots.RMSNorm, Field(discriminator="kind")]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]


class Config(Base):
    family: Literal["bert"] = "bert"
    size: str = "small"
    vocab: Count = 0  # 0: as many as the tokenizer learns
    kinds: Positive = 2  # of texts that a row may hold
    width: Positive = 512
    heads: Positive = 8
    layers: Positive = 4
    inner: Positive = 2048
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    prenorm: bool = False  # norm first; the paper's is last
    head: Literal["none", "words", "class", "tag"] = "none"
    labels: Count = 0  # of the heads class and tag
    follow: bool = False  # does the second text follow the first? a further head
    pooled: bool = False  # a map of the first token; the heads class and follow have it anyway
    tied: bool = True  # masked words are told by the table of the embeddings
    attention: Attention = slots.Dense(dropout=0.1)
    positions: Positions = slots.Learned()
    feed: Feed = slots.Feed(act="gelu")
    norm: Norm = slots.LayerNorm(eps=1e-12)

    @model_validator(mode="after")
    def _fits(self) -> "Config":
        slots.refuse_uneven(self.width, self.heads, self.positions)
        return self


SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"width": 128, "heads": 2, "layers": 2, "inner": 512},
    "mini": {"width": 256, "heads": 4, "layers": 4, "inner": 1024},
    "small": {"width": 512, "heads": 8, "layers": 4, "inner": 2048},
    "base": {"width": 768, "heads": 12, "layers": 12, "inner": 3072},
    "large": {"width": 1024, "heads": 16, "layers": 24, "inner": 4096},
}


class Words(nn.Module):
    """What stands at a place: one more layer, then a score for every word of the table."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.into, self.norm, self.out = nn.Linear(c.width, c.width), c.norm.build(c.width), nn.Linear(c.width, c.vocab)
        self.act = c.feed.act

    def forward(self, states: Tensor) -> Tensor:
        scores: Tensor = self.out(self.norm(ACTIVATIONS[self.act](self.into(states))))
        return scores


class Model(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.head, self.context = c.head, getattr(c.positions, "tokens", None)  # the most positions; None: any number
        self.embed, self.kinds = nn.Embedding(c.vocab, c.width), nn.Embedding(c.kinds, c.width)
        norm = partial(c.norm.build, c.width)
        self.norm, self.dropout = norm(), nn.Dropout(c.dropout)
        self.encoder = Stack(
            [
                Layer(
                    c.attention.build(c.width, c.heads),
                    c.feed.build(c.width, c.inner),
                    lambda: Residual(norm(), c.prenorm, c.dropout),
                )
                for _ in range(c.layers)
            ],
            norm() if c.prenorm else None,
            c.positions.build(c.width, c.heads, causal=False),
        )
        self.words = Words(c) if c.head == "words" else None
        self.pooler = nn.Linear(c.width, c.width) if c.pooled or c.follow or c.head == "class" else None
        self.next = nn.Linear(c.width, 2) if c.follow else None
        self.classes = nn.Linear(c.width, c.labels) if c.head in ("class", "tag") else None
        initialise(self, INITIAL)
        if self.words is not None and c.tied:
            self.words.out.weight = self.embed.weight

    def encode(self, tokens: Tensor, mask: Mask = Mask(), kinds: Tensor | None = None) -> Tensor:
        x = self.embed(tokens) + (self.kinds.weight[0] if kinds is None else self.kinds(kinds))
        x = self.dropout(self.norm(self.encoder.place(x, mask.at)))
        return self.encoder(x, mask)  # (batch, tokens, width)

    def logits(self, states: Tensor) -> Tensor:
        assert self.words is not None, "model.head is not words"
        return self.words(states)  # (…, vocab)

    def pool(self, states: Tensor) -> Tensor:
        assert self.pooler is not None, "model.pooled is false"
        return torch.tanh(self.pooler(states[:, 0]))  # (batch, width)

    def follows(self, states: Tensor) -> Tensor:
        assert self.next is not None, "model.follow is false"
        return self.next(self.pool(states))  # (batch, 2): the first means yes

    def label(self, states: Tensor) -> Tensor:
        assert self.classes is not None, "model.head is neither class nor tag"
        x = self.pool(states) if self.head == "class" else states
        return self.classes(self.dropout(x))  # (batch, labels), or of tags (batch, tokens, labels)

    def forward(self, tokens: Tensor, mask: Mask = Mask(), kinds: Tensor | None = None) -> Tensor:
        states = self.encode(tokens, mask, kinds)
        if self.head == "none":
            return states
        return self.logits(states) if self.head == "words" else self.label(states)


HEADS = ("words", "pooler", "next", "classes")  # modules that another task has otherwise, or not at all

INITIAL = {r".*norm\.weight": ones, r".*bias": zeros, r".*\.weight": normal(0.02)}
