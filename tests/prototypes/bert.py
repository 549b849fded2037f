"""BERT: an encoder with the norm last, segment embeddings, a pooled first token. Longformer is a value in its slot."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from regard.formats.huggingface.weight_names import add_prefixes
from regard.parts import FeedForward, Layer, LearnedPositions, Mask, Residual, Stack, slots


@dataclass(frozen=True)
class Config:
    vocab: int = 50
    tokens: int = 40
    token_types: int = 2
    width: int = 32
    layers: int = 2
    heads: int = 4
    inner: int = 64
    skip: int = 0  # unused rows of the position table
    attention: slots.Dense | slots.Window = slots.Dense()


class BERT(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        norm = partial(nn.LayerNorm, c.width, 1e-12)
        self.embed, self.kinds = nn.Embedding(c.vocab, c.width), nn.Embedding(c.token_types, c.width)
        self.positions, self.norm = LearnedPositions(c.tokens, c.width, c.skip), norm()
        layers: list[nn.Module] = [
            Layer(
                c.attention.build(c.width, c.heads),
                FeedForward(c.width, c.inner, "gelu"),
                lambda: Residual(norm(), norm_first=False),
            )
            for _ in range(c.layers)
        ]
        self.stack, self.pool = Stack(layers), nn.Linear(c.width, c.width)

    def encode(self, tokens: Tensor, mask: Mask = Mask(), token_types: Tensor | None = None) -> Tensor:
        x = self.embed(tokens) + (self.kinds.weight[0] if token_types is None else self.kinds(token_types))
        return self.stack(self.norm(self.positions.add_to_input(x, mask.positions)), mask)  # (batch, tokens, width)

    def pooled(self, x: Tensor) -> Tensor:
        return torch.tanh(self.pool(x[:, 0]))


LAYER = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.out": "attention.output.dense",
    "attention_residual.norm": "attention.output.LayerNorm",
    "feed.into": "intermediate.dense",
    "feed.out": "output.dense",
    "feed_residual.norm": "output.LayerNorm",
}
NAMES = {
    "embed": "embeddings.word_embeddings",
    "kinds": "embeddings.token_type_embeddings",
    "positions.table": "embeddings.position_embeddings",
    "norm": "embeddings.LayerNorm",
    "pool": "pooler.dense",
} | add_prefixes("stack.layers.*", "encoder.layer.*", LAYER)

GLOBAL = {
    "near.query": "query",
    "near.key": "key",
    "near.value": "value",
    "wide.query": "query_global",
    "wide.key": "key_global",
    "wide.value": "value_global",
}
LONGFORMER = NAMES | add_prefixes("stack.layers.*.attention", "encoder.layer.*.attention.self", GLOBAL)
