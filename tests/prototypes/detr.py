"""DETR's transformer: image features in, one vector per object query out; positions are added in every layer."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.parts import AddedTerms, Attention, Cross, FeedForward, GridPositions, Layer, Mask, Residual, Stack

from .names import bart


@dataclass(frozen=True)
class Config:
    queries: int = 7
    width: int = 32
    layers: int = 2
    heads: int = 4
    inner: int = 64


class DETR(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.queries, self.grid = nn.Embedding(c.queries, c.width), GridPositions(c.width)

        def attend() -> Attention:
            return Attention(c.width, c.heads)

        def layer(cross: Attention | None = None) -> nn.Module:
            return Layer(
                attend(),
                FeedForward(c.width, c.inner),
                lambda: Residual(nn.LayerNorm(c.width), norm_first=False),
                cross,
            )

        self.encoder = Stack([layer() for _ in range(c.layers)])
        self.decoder = Stack([layer(attend()) for _ in range(c.layers)], nn.LayerNorm(c.width))

    def forward(self, features: Tensor, valid: Tensor) -> list[Tensor]:
        """(batch, width, rows, columns), valid (batch, rows, columns) -> every layer's (batch, queries, width)."""
        x, mask, places = features.flatten(2).transpose(1, 2), Mask(key_valid=valid.flatten(1)), self.grid(valid)
        memory = self.encoder(x, mask, position_terms=AddedTerms(places, places))
        asked = self.queries.weight.expand(len(x), -1, -1)  # (batch, queries, width)
        cross = Cross(memory, mask, AddedTerms(asked, places))
        walk = self.decoder.layer_outputs(
            torch.zeros_like(asked), Mask(), cross, position_terms=AddedTerms(asked, asked)
        )
        return [self.decoder.norm(y) for y in walk]


NAMES = bart("", out="o_proj", feed="mlp.") | {
    "queries": "query_position_embeddings",
    "decoder.norm": "decoder.layernorm",
}
BACKBONE = (r"backbone\..*", r"input_projection\..*")
