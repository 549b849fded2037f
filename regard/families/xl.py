"""Transformer-XL (1901.02860): every segment of a text attends to the layer inputs of the segment before.

Positions are relative, so remembered inputs need no absolute position. During generation the memory is the KV cache:
keys older than `memory` tokens are dropped, so a text has no maximum length.
"""

from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from torch import Tensor, nn

from ..config.types import Base, Count, Positive, Share
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
from .base import LanguageModel
from .spec import CAUSAL

Norm = Annotated[slots.LayerNorm | slots.RMSNorm, Field(discriminator="kind")]
Feed = Annotated[slots.Feed | slots.Gated, Field(discriminator="kind")]


class Config(Base):
    """The settings of a Transformer-XL."""

    family: Literal["xl"] = "xl"
    size: str = "base"
    vocab: Count = 0  # 0: the tokenizer's size
    width: Positive = 410
    heads: Positive = 10
    layers: Positive = 16
    inner: Positive = 2100
    memory: Count = 150  # tokens before a segment that it attends to; 0: none, only the relative positions remain
    same_length: bool = False  # every token attends to `memory` tokens with itself; else later ones attend to more
    dropout: Share = 0.1  # of the embeddings, of every residual, and of the output
    prenorm: bool = False  # the norm comes first; in the paper last
    tied: bool = True  # the head shares the embedding table
    attention: slots.Dense = slots.Dense()
    norm: Norm = slots.LayerNorm()
    feed: Feed = slots.Feed()

    @model_validator(mode="after")
    def _check_shape(self) -> "Config":
        slots.check_widths(self.width, self.heads, slots.Sinusoid())
        if not self.attention.scaled:
            raise ValueError(
                "model.attention.scaled is false, but relative positions scale their scores; set it to true"
            )
        if self.same_length and not self.memory:
            raise ValueError(
                "model.same_length is true and model.memory is 0; set model.memory, the length that it fixes"
            )
        return self


SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"width": 128, "heads": 4, "layers": 2, "inner": 256, "memory": 64},
    "small": {"width": 256, "heads": 8, "layers": 4, "inner": 512},
    "base": {"width": 410, "heads": 10, "layers": 16, "inner": 2100},
    "large": {"width": 1024, "heads": 16, "layers": 18, "inner": 4096, "memory": 384, "dropout": 0.2},
}


SPEC = CAUSAL


class Model(LanguageModel):
    """Transformer-XL (1901.02860): relative positions and a memory of earlier segments."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.memory, self.window, self.scale = c.memory, c.memory - 1 if c.same_length else None, c.width**0.5
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
        positions = [RelativePositions(c.width, c.heads) for _ in range(c.layers)]  # distances are projected per layer
        self.stack = Stack(layers, norm() if c.prenorm else None, positions, causal=True)
        self.head = nn.Linear(c.width, c.vocab)
        initialize(self, INITIAL)
        if c.tied:
            self.head.weight = self.embed.weight

    def _decode(self, tokens: Tensor, mask: Mask, cache: Cache | None) -> Tensor:
        states: Tensor = self.dropout(super()._decode(tokens, mask.replace(window=self.window), cache))
        return states

    def new_memory(self, rows: int) -> Cache | None:
        """An empty memory for reading texts segment by segment: layer inputs without gradient."""
        if not self.memory:
            return None
        device, layers = self.embed.weight.device, len(self.stack.layers)
        layout = InputLayout(rows, device, self.memory)
        return Cache(rows, device, [InputCache(self.memory) for _ in range(layers)], [layout] * layers)


INITIAL = {
    r".*norm\.weight": ones,
    r".*bias": zeros,
    r".*": normal(0.02),  # also the paper's u and v
}
