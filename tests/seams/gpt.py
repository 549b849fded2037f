"""GPT-2, and Llama by other values in its slots, which take every kernel, one per layer if asked; the head is tied."""

from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from regard.interop.weights import transposed, under
from regard.parts import Cache, Layer, Mask, Residual, Stack, slots

Kernel = slots.Dense | slots.Additive | slots.Window | slots.Favor


@dataclass(frozen=True)
class Config:
    vocab: int = 50
    width: int = 32
    layers: int = 2
    heads: int = 4
    attention: Kernel | tuple[Kernel, ...] = slots.Dense()
    positions: slots.Learned | slots.Sinusoid | slots.Rotary | slots.Buckets = slots.Learned(tokens=64)
    norm: slots.LayerNorm | slots.RMSNorm = slots.LayerNorm()
    feed: slots.Feed | slots.Gated = slots.Feed(act="gelu_tanh")
    biased: bool = True  # the maps around attention


class GPT(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.embed = nn.Embedding(c.vocab, c.width)
        norm = partial(c.norm.build, c.width)
        kinds = c.attention if isinstance(c.attention, tuple) else (c.attention,) * c.layers
        layers: list[nn.Module] = [
            Layer(
                kind.build(c.width, c.heads, bias=c.biased),
                c.feed.build(c.width, 4 * c.width),
                lambda: Residual(norm()),
            )
            for kind in kinds
        ]
        self.stack = Stack(layers, norm(), c.positions.build(c.width, c.heads, causal=True), causal=True)

    def forward(self, tokens: Tensor, mask: Mask = Mask(), cache: Cache | None = None) -> Tensor:
        x = self.stack.place(self.embed(tokens), mask.at)  # (batch, tokens, width)
        return self.stack(x, mask, cache=cache) @ self.embed.weight.T  # (batch, tokens, vocab)

    def start(self, rows: int, capacity: int | None = None) -> Cache:
        return self.stack.cache(rows, capacity)

    def step(self, tokens: Tensor, cache: Cache, real: Tensor | None = None) -> Tensor:
        return self(tokens, cache.ahead(tokens, real), cache)


LAYER = {
    "attention.query": transposed("attn.c_attn", 0, 3),
    "attention.key": transposed("attn.c_attn", 1, 3),
    "attention.value": transposed("attn.c_attn", 2, 3),
    "attention.out": transposed("attn.c_proj"),
    "attention_residual.norm": "ln_1",
    "feed.into": transposed("mlp.c_fc"),
    "feed.out": transposed("mlp.c_proj"),
    "feed_residual.norm": "ln_2",
}
NAMES = {
    "embed": "transformer.wte",
    "stack.positions.table": "transformer.wpe",
    "stack.norm": "transformer.ln_f",
} | under("stack.layers.*", "transformer.h.*", LAYER)
TIED = (r"lm_head\.weight",)

LLAMA_LAYER = {
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.out": "self_attn.o_proj",
    "attention_residual.norm": "input_layernorm",
    "feed.gate": "mlp.gate_proj",
    "feed.into": "mlp.up_proj",
    "feed.out": "mlp.down_proj",
    "feed_residual.norm": "post_attention_layernorm",
}
LLAMA = {"embed": "model.embed_tokens", "stack.norm": "model.norm"} | under(
    "stack.layers.*", "model.layers.*", LLAMA_LAYER
)
