"""T5: text to text; bucketed relative scores shared by a stack, RMS norm, no linear biases, unscaled scores."""

from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from regard.interop.weights import first, under
from regard.parts import Bucketed, Cache, Cross, Feed, Gated, Layer, Mask, Residual, Stack, slots

from .names import Names


@dataclass(frozen=True)
class Config:
    vocab: int = 50
    width: int = 32
    head_width: int = 6
    layers: int = 2
    heads: int = 4
    inner: int = 64
    gated: bool = False  # T5 1.1: gated feed-forward and a head of its own


class T5(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.width = c.width
        self.embed = nn.Embedding(c.vocab, c.width)
        norm = partial(nn.RMSNorm, c.width, 1e-6)

        def attend() -> nn.Module:
            return slots.Dense(scaled=False).build(c.width, c.heads, head_width=c.head_width, bias=False)

        def layer(cross: nn.Module | None = None) -> nn.Module:
            feed = Gated(c.width, c.inner) if c.gated else Feed(c.width, c.inner, bias=False)
            return Layer(attend(), feed, lambda: Residual(norm()), cross)

        self.encoder = Stack([layer() for _ in range(c.layers)], norm(), Bucketed(c.heads))
        later = [layer(attend()) for _ in range(c.layers)]
        self.decoder = Stack(later, norm(), Bucketed(c.heads, causal=True), causal=True)
        self.head = nn.Linear(c.width, c.vocab, bias=False) if c.gated else None

    def encode(self, source: Tensor, mask: Mask = Mask()) -> Tensor:
        return self.encoder(self.embed(source), mask)

    def decode(self, target: Tensor, cross: Cross | None, mask: Mask = Mask(), cache: Cache | None = None) -> Tensor:
        x = self.decoder(self.embed(target), mask, cross, cache)
        return self.head(x) if self.head else x * self.width**-0.5 @ self.embed.weight.T

    def forward(self, source: Tensor, target: Tensor, mask: Mask = Mask()) -> Tensor:
        return self.decode(target, Cross(self.encode(source, mask), mask))

    def start(self, source: Tensor, mask: Mask = Mask(), capacity: int | None = None) -> Cache:
        return self.decoder.cache(len(source), capacity, self.encode(source, mask), mask)

    def step(self, tokens: Tensor, cache: Cache, real: Tensor | None = None) -> Tensor:
        return self.decode(tokens, None, cache.ahead(tokens, real), cache)


def names(gated: bool) -> Names:
    """T5 numbers the parts of a layer; the feed-forward is part 1 of an encoder layer and part 2 of a decoder's."""
    tables = first("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
    if gated:
        table: Names = {"embed.weight": first(*tables.names[:3]), "head": "lm_head"}
    else:
        table = {"embed.weight": tables}
    own = looking("attention", "layer.0", "SelfAttention")
    for side, layer in (
        ("encoder", own | feeding(1, gated)),
        ("decoder", own | looking("cross", "layer.1", "EncDecAttention") | feeding(2, gated)),
    ):
        table |= under(f"{side}.layers.*", f"{side}.block.*", layer) | {f"{side}.norm": f"{side}.final_layer_norm"}
        table[f"{side}.positions.table"] = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias"
    return table


def looking(ours: str, part: str, theirs: str) -> Names:
    letters = under(ours, f"{part}.{theirs}", {"query": "q", "key": "k", "value": "v", "out": "o"})
    return letters | {f"{ours}_residual.norm": f"{part}.layer_norm"}


def feeding(part: int, gated: bool) -> Names:
    wide = {"gate": "wi_0", "into": "wi_1", "out": "wo"} if gated else {"into": "wi", "out": "wo"}
    return under("feed", f"layer.{part}.DenseReluDense", wide) | {"feed_residual.norm": f"layer.{part}.layer_norm"}
