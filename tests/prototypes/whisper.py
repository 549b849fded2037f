"""Whisper: log-mel frames through two convolutions, then an encoder-decoder with the norm first and no key bias."""

from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from regard.parts import (
    Attention,
    Cache,
    Cross,
    FeedForward,
    Layer,
    LearnedPositions,
    Mask,
    Residual,
    SinusoidPositions,
    Stack,
)

from .names import bart


@dataclass(frozen=True)
class Config:
    vocab: int = 50
    mels: int = 8
    tokens: int = 64
    width: int = 32
    layers: int = 2
    heads: int = 4


class Whisper(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(c.mels, c.width, 3, padding=1), nn.Conv1d(c.width, c.width, 3, 2, 1)
        self.embed, self.positions = nn.Embedding(c.vocab, c.width), LearnedPositions(c.tokens, c.width)
        norm = partial(nn.LayerNorm, c.width)

        def attend() -> Attention:
            return Attention(c.width, c.heads, key_bias=False)

        def layer(cross: Attention | None = None) -> nn.Module:
            return Layer(attend(), FeedForward(c.width, 4 * c.width, "gelu"), lambda: Residual(norm()), cross)

        self.encoder = Stack([layer() for _ in range(c.layers)], norm(), SinusoidPositions(c.width, "whisper"))
        self.decoder = Stack([layer(attend()) for _ in range(c.layers)], norm(), causal=True)

    def encode(self, mels: Tensor) -> Tensor:
        x = F.gelu(self.second(F.gelu(self.first(mels)))).transpose(1, 2)  # (batch, frames / 2, width)
        return self.encoder(self.encoder.add_positions(x), Mask())

    def decode(self, target: Tensor, cross: Cross | None, mask: Mask = Mask(), cache: Cache | None = None) -> Tensor:
        x = self.positions.add_to_input(self.embed(target), mask.positions)
        return self.decoder(x, mask, cross, cache) @ self.embed.weight.T

    def forward(self, mels: Tensor, target: Tensor) -> Tensor:
        return self.decode(target, Cross(self.encode(mels), Mask()))

    def start(self, mels: Tensor, capacity: int | None = None) -> Cache:
        return self.decoder.cache(len(mels), capacity, self.encode(mels))

    def step(self, tokens: Tensor, cache: Cache, valid: Tensor | None = None) -> Tensor:
        return self.decode(tokens, None, cache.next_mask(tokens, valid), cache)


NAMES = bart("model.") | {
    "first": "model.encoder.conv1",
    "second": "model.encoder.conv2",
    "encoder.norm": "model.encoder.layer_norm",
    "embed": "model.decoder.embed_tokens",
    "positions.table": "model.decoder.embed_positions",
    "decoder.norm": "model.decoder.layer_norm",
}
TIED = (r"proj_out\.weight", r"model\.encoder\.embed_positions\.weight")  # the second is the sinusoid, computed
