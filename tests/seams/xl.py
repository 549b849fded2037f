"""Transformer-XL: a causal stack that remembers the inputs of the segment before, with relative scores."""

from dataclasses import dataclass

from torch import Tensor, nn

from regard.parts import Attention, Cache, Feed, InputBook, Inputs, Layer, Mask, Positions, Relative, Residual, Stack


@dataclass(frozen=True)
class Config:
    vocab: int = 50
    width: int = 32
    layers: int = 2
    heads: int = 4
    inner: int = 64
    memory: int = 16


class XL(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.memory, self.embed = c.memory, nn.Embedding(c.vocab, c.width)
        layers: list[nn.Module] = [
            Layer(
                Attention(c.width, c.heads, bias=False),
                Feed(c.width, c.inner),
                lambda: Residual(nn.LayerNorm(c.width), first=False),
            )
            for _ in range(c.layers)
        ]
        each: list[Positions] = [Relative(c.width, c.heads) for _ in range(c.layers)]
        self.stack = Stack(layers, positions=each, causal=True)

    def forward(self, tokens: Tensor, mask: Mask = Mask(), cache: Cache | None = None) -> Tensor:
        return self.stack(self.embed(tokens), mask, cache=cache) @ self.embed.weight.T

    def recall(self, rows: int) -> Cache:
        """For training: layer inputs of past segments, without their gradient."""
        device, layers = self.embed.weight.device, len(self.stack.layers)
        book = InputBook(rows, device, self.memory)
        return Cache(rows, device, [Inputs(self.memory) for _ in range(layers)], [book] * layers)

    def start(self, rows: int, capacity: int | None = None) -> Cache:
        """For decoding: projected keys and values, as in any other family."""
        return self.stack.cache(rows, capacity)

    def step(self, tokens: Tensor, cache: Cache, real: Tensor | None = None) -> Tensor:
        return self(tokens, cache.ahead(tokens, real), cache)
