"""GPT-2 (Radford et al. 2019): a stack that sees only the past predicts the next token, everywhere at once.

Other values in its slots make it the decoder of later years: rotary positions, RMS norm, a gated feed-forward and
key heads shared by groups of query heads (size `modern`). `interop/gpt2.py` and `llama.py` know the names of others.
"""

from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from torch import Tensor, nn

from ..config.schema import Base, Count, Positive, Share
from ..parts import Cache, Dropout, Layer, Mask, Residual, Stack, slots
from ..parts.init import Rule, initialize, normal, ones, zeros

Attention = Annotated[slots.Dense | slots.Window | slots.Favor | slots.Additive, Field(discriminator="kind")]
Positions = Annotated[slots.Learned | slots.Sinusoid | slots.Rotary | slots.Buckets, Field(discriminator="kind")]
Norm = Annotated[slots.LayerNorm | slots.RMSNorm, Field(discriminator="kind")]
Feed = Annotated[slots.Feed | slots.Gated, Field(discriminator="kind")]


class Config(Base):
    family: Literal["gpt"] = "gpt"
    size: str = "small"
    vocab: Count = 0  # 0: as many as the tokenizer learns
    width: Positive = 768
    heads: Positive = 12
    key_heads: Count = 0  # heads of keys and values, each shared by a group of query heads; 0: as many as `heads`
    head_width: Count = 0  # 0: width / heads
    layers: Positive = 12
    inner: Positive = 3072
    dropout: Share = 0.1  # of the embedded tokens and of every residual
    head_dropout: Share = 0.0  # of what the head reads: GPT-2 has none, small word-by-word models gain by it
    tied: bool = True  # the output's table is the input's
    biased: bool = True  # linear maps add a bias
    attention: Attention = slots.Dense()
    positions: Positions = slots.Learned(tokens=1024)
    norm: Norm = slots.LayerNorm()
    feed: Feed = slots.Feed(act="gelu_tanh")

    @model_validator(mode="after")
    def _fits(self) -> "Config":
        slots.refuse_uneven(self.width, self.heads, self.positions, self.head_width)
        slots.refuse_unseemly(self.attention, self.positions)
        slots.refuse_layers(self.attention, self.layers)
        if self.key_heads and self.heads % self.key_heads:
            raise ValueError(
                f"{self.heads} heads cannot share {self.key_heads} key heads evenly; use a divisor (model.key_heads)"
            )
        return self


SHORT = {"positions": {"kind": "learned", "tokens": 256}}
MODERN = {"positions": "rotary", "norm": "rms", "feed": "gated", "biased": False, "dropout": 0.0}
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"width": 128, "heads": 4, "layers": 2, "inner": 512} | SHORT,
    "small": {"width": 384, "heads": 6, "layers": 6, "inner": 1536} | SHORT,
    "gpt2": {"width": 768, "heads": 12, "layers": 12, "inner": 3072},
    "gpt2-medium": {"width": 1024, "heads": 16, "layers": 24, "inner": 4096},
    "gpt2-large": {"width": 1280, "heads": 20, "layers": 36, "inner": 5120},
    "gpt2-xl": {"width": 1600, "heads": 25, "layers": 48, "inner": 6400},
    "modern-tiny": {"width": 128, "heads": 4, "key_heads": 2, "layers": 2, "inner": 384} | MODERN,
    "modern": {"width": 768, "heads": 12, "key_heads": 4, "layers": 12, "inner": 2048} | MODERN,
}


class Model(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.embed = nn.Embedding(c.vocab, c.width)
        self.dropout, self.head_dropout = Dropout(c.dropout), Dropout(c.head_dropout)
        norm = partial(c.norm.build, c.width)
        shape = {"key_heads": c.key_heads, "head_width": c.head_width, "bias": c.biased}
        layers = [
            Layer(
                slots.in_layer(c.attention, number).build(c.width, c.heads, **shape),
                c.feed.build(c.width, c.inner, bias=c.biased),
                lambda: Residual(norm(), first=True, dropout=c.dropout),
            )
            for number in range(c.layers)
        ]
        positions = c.positions.build(c.width, c.heads, causal=True, head_width=c.head_width)
        self.stack = Stack(layers, norm(), positions, causal=True)
        self.head = nn.Linear(c.width, c.vocab, bias=False)
        initialize(self, initial(c.layers))
        if c.tied:
            self.head.weight = self.embed.weight

    @property
    def context(self) -> int | None:
        """How many tokens a text may have; None: any number."""
        return self.stack.context

    def decode(self, tokens: Tensor, mask: Mask = Mask(), cache: Cache | None = None) -> Tensor:
        x = self.stack.add_positions(self.embed(tokens), mask.positions)
        return self.head_dropout(self.stack(self.dropout(x), mask, cache=cache))  # (batch, tokens, width)

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


def initial(layers: int) -> dict[str, Rule]:
    return {
        r".*norm\.weight": ones,
        r".*bias": zeros,
        r".*\.out\.weight": normal(0.02 / (2 * layers) ** 0.5),  # two per layer are added up in the residual stream
        r".*\.weight": normal(0.02),
    }
