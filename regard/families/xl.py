"""Transformer-XL (1901.02860): every segment of a text looks back into the layer inputs of the one before.

Positions are relative, so that what is remembered need not be told where it stood. While it writes, what it remembers
is the cache: keys older than `memory` tokens are forgotten, and a text may go on for ever.
"""

from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from torch import Tensor, nn

from ..config.schema import Base, Count, Positive, Share
from ..parts import (
    Attention,
    Cache,
    Dropout,
    InputCache,
    InputLayout,
    Layer,
    Mask,
    RelativePositions,
    Residual,
    RollingSoftmaxKernel,
    SoftmaxKernel,
    Stack,
    slots,
)
from ..parts.init import initialize, normal, ones, zeros

Norm = Annotated[slots.LayerNorm | slots.RMSNorm, Field(discriminator="kind")]
Feed = Annotated[slots.Feed | slots.Gated, Field(discriminator="kind")]


class Config(Base):
    family: Literal["xl"] = "xl"
    size: str = "base"
    vocab: Count = 0  # 0: as many as the tokenizer learns
    width: Positive = 410
    heads: Positive = 10
    layers: Positive = 16
    inner: Positive = 2100
    memory: Count = 150  # tokens before a segment that it still sees; 0: none, an ordinary model with these positions
    same_length: bool = (
        False  # every token sees exactly `memory` tokens, itself counted; else later ones of a segment see more
    )
    dropout: Share = 0.1  # of embedded tokens, of every residual, and of the output
    prenorm: bool = False  # norm first; the paper's is last
    tied: bool = True  # the output's table is the input's
    attention: slots.Dense = slots.Dense()
    norm: Norm = slots.LayerNorm()
    feed: Feed = slots.Feed()

    @model_validator(mode="after")
    def _fits(self) -> "Config":
        slots.refuse_uneven(self.width, self.heads, slots.Sinusoid())
        if not self.attention.scaled:
            raise ValueError(
                "model.attention.scaled is false, and relative positions scale their scores; leave it true"
            )
        if self.same_length and not self.memory:
            raise ValueError(
                "model.same_length says how much every token sees, and model.memory is 0; set model.memory"
            )
        return self


SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"width": 128, "heads": 4, "layers": 2, "inner": 256, "memory": 64},
    "small": {"width": 256, "heads": 8, "layers": 4, "inner": 512},
    "base": {"width": 410, "heads": 10, "layers": 16, "inner": 2100},
    "large": {"width": 1024, "heads": 16, "layers": 18, "inner": 4096, "memory": 384, "dropout": 0.2},
}


class Model(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.memory, self.reach, self.scale = c.memory, c.memory - 1 if c.same_length else None, c.width**0.5
        self.embed = nn.Embedding(c.vocab, c.width)
        self.dropout = Dropout(c.dropout)
        norm = partial(c.norm.build, c.width)
        kernel = partial(RollingSoftmaxKernel, c.memory) if c.memory else SoftmaxKernel
        layers = [
            Layer(
                Attention(c.width, c.heads, kernel(c.attention.dropout), bias=False),
                c.feed.build(c.width, c.inner),
                lambda: Residual(norm(), c.prenorm, c.dropout),
            )
            for _ in range(c.layers)
        ]
        positions = [
            RelativePositions(c.width, c.heads) for _ in range(c.layers)
        ]  # each layer projects distances by itself
        self.stack = Stack(layers, norm() if c.prenorm else None, positions, causal=True)
        self.head = nn.Linear(c.width, c.vocab)
        initialize(self, INITIAL)
        if c.tied:
            self.head.weight = self.embed.weight

    @property
    def context(self) -> int | None:
        """How many tokens a text may have; None: any number."""
        return self.stack.context

    def decode(self, tokens: Tensor, mask: Mask = Mask(), cache: Cache | None = None) -> Tensor:
        x = self.dropout(self.embed(tokens) * self.scale)
        return self.dropout(self.stack(x, mask.replace(window=self.reach), cache=cache))  # (batch, tokens, width)

    def logits(self, states: Tensor) -> Tensor:
        return self.head(states)  # (…, vocab)

    def forward(self, tokens: Tensor, mask: Mask = Mask(), cache: Cache | None = None) -> Tensor:
        return self.logits(self.decode(tokens, mask, cache))

    def new_memory(self, rows: int) -> Cache | None:
        """An empty memory for reading texts segment by segment: layer inputs, without their gradient."""
        if not self.memory:
            return None
        device, layers = self.embed.weight.device, len(self.stack.layers)
        book = InputLayout(rows, device, self.memory)
        return Cache(rows, device, [InputCache(self.memory) for _ in range(layers)], [book] * layers)

    def start(self, rows: int, capacity: int | None = None) -> Cache:
        """The same memory for writing: of the last tokens it holds keys and values, so that nothing is done twice."""
        return self.stack.cache(rows, capacity)

    def step(self, tokens: Tensor, cache: Cache, valid: Tensor | None = None) -> Tensor:
        return self(tokens, cache.next_mask(tokens, valid), cache)


INITIAL = {
    r".*norm\.weight": ones,
    r".*bias": zeros,
    r".*": normal(0.02),  # the paper's u and v too
}
