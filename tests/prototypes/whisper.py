"""Whisper: log-mel frames through two convolutions, then an encoder-decoder with the norm first and no key bias."""

from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from regard.parts import (
    Attention,
    Cache,
    Cross,
    Encoded,
    FeedForward,
    Inputs,
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

    def encode(self, source: Inputs) -> Encoded:
        x = F.gelu(self.second(F.gelu(self.first(source.values.transpose(1, 2))))).transpose(1, 2)
        return Encoded(self.encoder(self.encoder.add_positions(x), Mask()))  # half as many as the frames

    def decode(self, target: Inputs, encoded: Encoded) -> Tensor:
        return self._decode(target.values, target.mask(), encoded.cross(target))

    def _decode(self, tokens: Tensor, mask: Mask, cross: Cross | None = None, cache: Cache | None = None) -> Tensor:
        x = self.positions.add_to_input(self.embed(tokens), mask.positions)
        return self.decoder(x, mask, cross, cache)

    def logits(self, states: Tensor) -> Tensor:
        return states @ self.embed.weight.T

    def forward(self, source: Inputs, target: Inputs) -> Tensor:
        return self.logits(self.decode(target, self.encode(source)))

    def start(self, source: Inputs | None, rows: int, capacity: int | None = None) -> Cache:
        assert source is not None
        return self.decoder.cache(rows, capacity, self.encode(source).cross())

    def step(self, tokens: Tensor, cache: Cache, valid: Tensor | None = None) -> Tensor:
        return self.logits(self._decode(tokens, cache.next_mask(tokens, valid), cache=cache))


def frames(mels: Tensor) -> Inputs:
    """Inputs of mels (batch, bins, frames), as transformers has them."""
    return Inputs("frames", mels.transpose(1, 2))


NAMES = bart("model.") | {
    "first": "model.encoder.conv1",
    "second": "model.encoder.conv2",
    "encoder.norm": "model.encoder.layer_norm",
    "embed": "model.decoder.embed_tokens",
    "positions.table": "model.decoder.embed_positions",
    "decoder.norm": "model.decoder.layer_norm",
}
TIED = (r"proj_out\.weight", r"model\.encoder\.embed_positions\.weight")  # the second is the sinusoid, computed
