"""T5 (1910.10683): every task is text to text. Scores by bucketed distance, RMS norm, no biases, unscaled scores."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from torch import Tensor, nn

from ..config.schema import Base, Count, Positive, Share
from ..formats.huggingface.weight_names import WeightRule, one_of, prefixed
from ..parts import Cache, Cross, Dropout, Layer, Mask, Residual, Stack, slots
from ..parts.init import Rule as Start
from ..parts.init import initialize, normal, ones, zeros

Attention = Annotated[slots.Dense | slots.Additive, Field(discriminator="kind")]
Positions = Annotated[slots.Buckets | slots.Sinusoid | slots.Learned | slots.Rotary, Field(discriminator="kind")]
Feed = Annotated[slots.Feed | slots.Gated, Field(discriminator="kind")]
Norm = Annotated[slots.RMSNorm | slots.LayerNorm, Field(discriminator="kind")]


class Config(Base):
    """As T5 1.1 has it. The first T5 is `feed.kind=plain` and `tied`."""

    family: Literal["t5"] = "t5"
    size: str = "small"
    vocab: Count = 0  # of the source; 0: as many as the tokenizer learns
    target_vocab: Count = 0  # 0: source and target share one vocabulary and one table
    width: Positive = 512
    heads: Positive = 6
    head_width: Positive = 64  # need not be width / heads
    layers: Positive = 8
    decoder_layers: Count = 0  # 0: as many as `layers`
    inner: Positive = 1024
    dropout: Share = 0.1
    tied: bool = False  # the output's table is the target's, and its input × width^-½
    attention: Attention = slots.Dense(scaled=False, dropout=0.1)
    positions: Positions = slots.Buckets()
    feed: Feed = slots.Gated(act="gelu_tanh", dropout=0.1)
    norm: Norm = slots.RMSNorm()

    @model_validator(mode="after")
    def _fits(self) -> "Config":
        slots.refuse_uneven(self.width, self.heads, self.positions, self.head_width)
        return self


SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"width": 128, "heads": 4, "head_width": 32, "layers": 2, "inner": 256},
    "small": {"width": 512, "heads": 6, "layers": 8, "inner": 1024},
    "base": {"width": 768, "heads": 12, "layers": 12, "inner": 2048},
    "large": {"width": 1024, "heads": 16, "layers": 24, "inner": 2816},
    "small-1.0": {
        "width": 512, "heads": 8, "layers": 6, "inner": 2048, "tied": True,
        "feed": {"kind": "plain", "act": "relu", "dropout": 0.1},
    },
}  # fmt: skip


class Model(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.source = nn.Embedding(c.vocab, c.width)
        self.target = nn.Embedding(c.target_vocab, c.width) if c.target_vocab else self.source
        self.dropout = Dropout(c.dropout)
        norm = partial(c.norm.build, c.width)
        residual = lambda: Residual(norm(), dropout=c.dropout)  # noqa: E731
        attend = partial(c.attention.build, c.width, c.heads, head_width=c.head_width, bias=False)
        feed = partial(c.feed.build, c.width, c.inner, bias=False)
        places = partial(c.positions.build, c.width, c.heads, head_width=c.head_width)
        self.encoder = Stack(
            [Layer(attend(), feed(), residual) for _ in range(c.layers)],
            norm(),
            places(causal=False),
        )
        self.decoder = Stack(
            [Layer(attend(), feed(), residual, cross=attend()) for _ in range(c.decoder_layers or c.layers)],
            norm(),
            places(causal=True),
            causal=True,
        )
        self.head = nn.Linear(c.width, self.target.num_embeddings, bias=False)
        initialize(self, initial(c))
        self.scale = c.width**-0.5 if c.tied else 1.0
        if c.tied:
            self.head.weight = self.target.weight

    def encode(self, source: Tensor, mask: Mask = Mask()) -> Tensor:
        x = self.encoder.add_positions(self.source(source), mask.positions)
        return self.dropout(self.encoder(self.dropout(x), mask))  # (batch, source, width)

    def decode(self, target: Tensor, cross: Cross | None, mask: Mask = Mask(), cache: Cache | None = None) -> Tensor:
        x = self.decoder.add_positions(self.target(target), mask.positions)
        return self.dropout(self.decoder(self.dropout(x), mask, cross, cache))  # (batch, target, width)

    def logits(self, states: Tensor) -> Tensor:
        return self.head(states * self.scale)  # (…, vocab)

    def forward(self, source: Tensor, target: Tensor, mask: Mask = Mask()) -> Tensor:
        return self.logits(self.decode(target, Cross(self.encode(source, mask), mask)))

    def start(self, source: Tensor, mask: Mask = Mask(), capacity: int | None = None) -> Cache:
        return self.decoder.cache(len(source), capacity, self.encode(source, mask), mask)

    def step(self, tokens: Tensor, cache: Cache, valid: Tensor | None = None) -> Tensor:
        return self.logits(self.decode(tokens, None, cache.next_mask(tokens, valid), cache))


def initial(c: Config) -> dict[str, Start]:
    """Scores are unscaled, so the queries begin small instead."""
    return {
        r".*norm\.weight": ones,
        r".*bias": zeros,  # of a LayerNorm
        r"source\.weight|target\.weight": normal(1.0),
        r".*query\.weight": normal((c.width * c.head_width) ** -0.5),
        r".*(attention|cross)\.out\.weight": normal((c.heads * c.head_width) ** -0.5),
        r".*feed\.out\.weight": normal(c.inner**-0.5),
        r".*score\.weight": normal(c.head_width**-0.5),
        r".*\.weight": normal(c.width**-0.5),
    }


# --- Hugging Face T5 -----------------------------------------------------------------------------------------------

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh", "silu": "silu", "swish": "silu"}


def from_huggingface(theirs: Mapping[str, Any]) -> Config:
    """Their config.json as ours; what we cannot be is refused by name."""
    if theirs.get("is_decoder") or not theirs.get("is_encoder_decoder", True):
        raise ValueError("it is no encoder–decoder (is_encoder_decoder, is_decoder); regard reads whole T5 models")
    gate, _, act = theirs.get("feed_forward_proj", "relu").rpartition("-")
    act = "gelu_new" if (gate, act) == ("gated", "gelu") else act  # as transformers takes it
    if gate not in ("", "gated") or act not in ACTIVATIONS:
        known = ", ".join([*ACTIVATIONS, *(f"gated-{name}" for name in ACTIVATIONS)])
        raise ValueError(f"feed_forward_proj is {theirs['feed_forward_proj']!r}; expected one of {known}")
    dropout = theirs.get("dropout_rate", 0.1)
    feed = slots.Gated if gate else slots.Feed
    return Config(
        size="huggingface",
        vocab=theirs["vocab_size"],
        width=theirs["d_model"],
        heads=theirs["num_heads"],
        head_width=theirs["d_kv"],
        layers=theirs["num_layers"],
        decoder_layers=theirs.get("num_decoder_layers") or 0,
        inner=theirs["d_ff"],
        dropout=dropout,
        tied=theirs.get("tie_word_embeddings") is not False,
        attention=slots.Dense(scaled=False, dropout=dropout),
        positions=slots.Buckets(
            buckets=theirs.get("relative_attention_num_buckets", 32),
            far=theirs.get("relative_attention_max_distance", 128),
        ),
        feed=feed(act=ACTIVATIONS[act], dropout=dropout),  # type: ignore[arg-type]
        norm=slots.RMSNorm(eps=theirs.get("layer_norm_epsilon", 1e-6)),
    )


def names(c: Config) -> dict[str, str | WeightRule]:
    """Ours to theirs. T5 numbers the parts of a layer: feeding is part 1 of an encoder's and part 2 of a decoder's."""
    tables = "shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"
    head = one_of(*tables, "lm_head.weight") if c.tied else one_of("lm_head.weight")
    table: dict[str, str | WeightRule] = {"head.weight": head}
    table |= {f"{side}.weight": head if c.tied else one_of(*tables) for side in ("source", "target")}
    own = _looking("attention", "layer.0", "SelfAttention")
    cross = _looking("cross", "layer.1", "EncDecAttention")
    for side, layer in (("encoder", own | _feeding(1, c)), ("decoder", own | cross | _feeding(2, c))):
        table |= prefixed(f"{side}.layers.*", f"{side}.block.*", layer) | {f"{side}.norm": f"{side}.final_layer_norm"}
        table[f"{side}.positions.table"] = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias"
    return table


def _looking(ours: str, part: str, theirs: str) -> dict[str, str | WeightRule]:
    letters = prefixed(ours, f"{part}.{theirs}", {"query": "q", "key": "k", "value": "v", "out": "o"})
    return letters | {f"{ours}_residual.norm": f"{part}.layer_norm"}


def _feeding(part: int, c: Config) -> dict[str, str | WeightRule]:
    gated = {"gate": "wi_0", "into": "wi_1", "out": "wo"}
    wide = gated if isinstance(c.feed, slots.Gated) else {"into": "wi", "out": "wo"}
    return prefixed("feed", f"layer.{part}.DenseReluDense", wide) | {"feed_residual.norm": f"layer.{part}.layer_norm"}
