"""The teaching language model: the Transformer's *encoder* layers under a causal mask, predicting the next token.

With the same weights it equals `torch.nn.TransformerEncoder`, norms last as first published (1706.03762).
"""

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from torch import Tensor, nn

from ..config.schema import Base, Count, Positive, Share
from ..parts import Cache, Dropout, FeedForward, Layer, Mask, Residual, SinusoidPositions, Stack, slots
from ..parts.init import glorot, initialize, normal, ones, zeros

Attention = Annotated[slots.Dense | slots.Window | slots.Favor, Field(discriminator="kind")]


class Config(Base):
    family: Literal["lm"] = "lm"
    size: str = "base"
    vocab: Count = 0  # 0: as many as the tokenizer learns
    width: Positive = 256
    heads: Positive = 8
    layers: Positive = 4
    inner: Positive = 512
    dropout: Share = 0.1  # of embedded tokens, attention weights, inside the feed-forward, and of every residual
    tied: bool = True  # the output's table is the input's
    attention: Attention = slots.Dense()

    @model_validator(mode="after")
    def _fits(self) -> "Config":
        slots.refuse_uneven(self.width, self.heads, slots.Sinusoid())
        slots.refuse_unseemly(self.attention, slots.Sinusoid())
        slots.refuse_layers(self.attention, self.layers)
        if isinstance(self.attention, slots.Dense) and self.attention.dropout:
            raise ValueError(
                f"model.attention.dropout is {self.attention.dropout}, and here model.dropout is of attention weights, "
                "too; set that one instead"
            )
        return self

    def looking(self) -> slots.Dense | slots.Window | slots.Favor:
        """The attention of a layer, with its dropout where it has weights to drop."""
        own = self.attention
        return replace(own, dropout=self.dropout) if isinstance(own, slots.Dense) else own


SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"width": 128, "heads": 4, "layers": 2, "inner": 256},
    "base": {"width": 256, "heads": 8, "layers": 4, "inner": 512},
}


class Model(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.scale = c.width**0.5
        self.embed = nn.Embedding(c.vocab, c.width)
        self.dropout = Dropout(c.dropout)
        layers = [
            Layer(
                slots.in_layer(c.looking(), number).build(c.width, c.heads),
                FeedForward(c.width, c.inner, "relu", dropout=c.dropout),
                lambda: Residual(nn.LayerNorm(c.width), first=False, dropout=c.dropout),
            )
            for number in range(c.layers)
        ]
        self.stack = Stack(layers, positions=SinusoidPositions(c.width), causal=True)
        self.head = nn.Linear(c.width, c.vocab)
        initialize(self, INITIAL | {r"(embed|head)\.weight": normal(c.width**-0.5)})
        if c.tied:
            self.head.weight = self.embed.weight

    @property
    def context(self) -> int | None:
        """How many tokens a text may have; None: any number."""
        return self.stack.context

    def decode(self, tokens: Tensor, mask: Mask = Mask(), cache: Cache | None = None) -> Tensor:
        x = self.stack.add_positions(self.embed(tokens) * self.scale, mask.positions)
        return self.stack(self.dropout(x), mask, cache=cache)  # (batch, tokens, width)

    def logits(self, states: Tensor) -> Tensor:
        return self.head(states)  # (…, vocab)

    def forward(self, tokens: Tensor, mask: Mask = Mask(), cache: Cache | None = None) -> Tensor:
        return self.logits(self.decode(tokens, mask, cache))

    def start(self, rows: int, capacity: int | None = None) -> Cache:
        """An empty cache, from which `step` goes on."""
        return self.stack.cache(rows, capacity)

    def step(self, tokens: Tensor, cache: Cache, valid: Tensor | None = None) -> Tensor:
        return self(tokens, cache.next_mask(tokens, valid), cache)

    def new_memory(self, rows: int) -> Cache | None:
        """Nothing of a text is remembered from batch to batch."""
        return None


INITIAL = {
    r".*norm\.weight": ones,
    r".*bias": zeros,
    r"stack\..*\.weight": glorot,
}
