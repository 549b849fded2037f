"""The Transformer (1706.03762): an encoder reads the source; a decoder attends to it and predicts the target."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from torch import Tensor, nn

from ..config.schema import Base, Count, Positive, Share
from ..formats.huggingface.weight_names import WeightRule, as_row, one_of, prefixed
from ..parts import Cache, Cross, Dropout, Layer, Mask, Residual, Stack, slots
from ..parts.init import glorot, initialize, normal, ones, zeros

Attention = Annotated[slots.Dense | slots.Additive, Field(discriminator="kind")]
Positions = Annotated[slots.Sinusoid | slots.Learned | slots.Rotary | slots.Buckets, Field(discriminator="kind")]
Feed = Annotated[slots.Feed | slots.Gated, Field(discriminator="kind")]
Norm = Annotated[slots.LayerNorm | slots.RMSNorm, Field(discriminator="kind")]


class Config(Base):
    family: Literal["transformer"] = "transformer"
    size: str = "small"
    vocab: Count = 0  # of the source; 0: the tokenizer's size
    target_vocab: Count = 0  # 0: source and target share one vocabulary and one embedding table
    width: Positive = 512
    heads: Positive = 8
    layers: Positive = 6
    decoder_layers: Count = 0  # 0: equal to `layers`
    inner: Positive = 2048
    dropout: Share = 0.1
    prenorm: bool = False  # the norm comes first; in the paper last
    tied: bool = True  # the head shares the target embeddings
    scaled: bool = True  # embeddings × √width
    biased: bool = False  # the head has a bias
    attention: Attention = slots.Dense()
    positions: Positions = slots.Sinusoid()
    feed: Feed = slots.Feed()
    norm: Norm = slots.LayerNorm()

    @model_validator(mode="after")
    def _check_shape(self) -> "Config":
        slots.check_widths(self.width, self.heads, self.positions)
        return self


SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"width": 128, "heads": 4, "layers": 2, "inner": 256},
    "small": {"width": 256, "heads": 4, "layers": 3, "inner": 1024},
    "base": {"width": 512, "heads": 8, "layers": 6, "inner": 2048},
    "big": {"width": 1024, "heads": 16, "layers": 6, "inner": 4096, "dropout": 0.3},
}


class Model(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.scale = c.width**0.5 if c.scaled else 1.0
        self.source = nn.Embedding(c.vocab, c.width)
        self.target = nn.Embedding(c.target_vocab, c.width) if c.target_vocab else self.source
        self.dropout = Dropout(c.dropout)
        norm = partial(c.norm.build, c.width)
        residual = lambda: Residual(norm(), c.prenorm, c.dropout)  # noqa: E731
        attend, feed = partial(c.attention.build, c.width, c.heads), partial(c.feed.build, c.width, c.inner)
        self.encoder = Stack(
            [Layer(attend(), feed(), residual) for _ in range(c.layers)],
            norm() if c.prenorm else None,
            c.positions.build(c.width, c.heads, causal=False),
        )
        self.decoder = Stack(
            [Layer(attend(), feed(), residual, cross=attend()) for _ in range(c.decoder_layers or c.layers)],
            norm() if c.prenorm else None,
            c.positions.build(c.width, c.heads, causal=True),
            causal=True,
        )
        self.head = nn.Linear(c.width, self.target.num_embeddings, bias=c.biased)
        initialize(self, INITIAL | {r"(source|target|head|.*table)\.weight": normal(c.width**-0.5)})
        if c.tied:
            self.head.weight = self.target.weight

    def encode(self, source: Tensor, mask: Mask = Mask()) -> Tensor:
        x = self.encoder.add_positions(self.source(source) * self.scale, mask.positions)
        states: Tensor = self.encoder(self.dropout(x), mask)
        return states  # (batch, source, width)

    def decode(self, target: Tensor, cross: Cross | None, mask: Mask = Mask(), cache: Cache | None = None) -> Tensor:
        x = self.decoder.add_positions(self.target(target) * self.scale, mask.positions)
        states: Tensor = self.decoder(self.dropout(x), mask, cross, cache)
        return states  # (batch, target, width)

    def logits(self, states: Tensor) -> Tensor:
        logits: Tensor = self.head(states)
        return logits  # (…, vocab)

    def forward(self, source: Tensor, target: Tensor, mask: Mask = Mask()) -> Tensor:
        return self.logits(self.decode(target, Cross(self.encode(source, mask), mask)))

    def start(self, source: Tensor, mask: Mask = Mask(), capacity: int | None = None) -> Cache:
        return self.decoder.cache(len(source), capacity, self.encode(source, mask), mask)

    def step(self, tokens: Tensor, cache: Cache, valid: Tensor | None = None) -> Tensor:
        return self.logits(self.decode(tokens, None, cache.next_mask(tokens, valid), cache))


INITIAL = {
    r".*norm\.weight": ones,
    r".*bias": zeros,
    r".*(query|key|value|out|into|gate|score)\.weight": glorot,
}


# --- Hugging Face Marian -------------------------------------------------------------------------------------------

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu", "silu": "silu", "gelu_new": "gelu_tanh"}


def from_marian(theirs: Mapping[str, Any]) -> Config:
    """Their config.json as ours; what we cannot be is refused by name."""
    for key, other in (("encoder_attention_heads", "decoder_attention_heads"), ("encoder_ffn_dim", "decoder_ffn_dim")):
        if theirs[key] != theirs[other]:
            raise ValueError(f"{key} {theirs[key]} and {other} {theirs[other]} differ; regard needs them equal")
    for key in ("normalize_before", "normalize_embedding", "add_final_layer_norm"):
        if theirs.get(key):
            raise ValueError(f"{key} is set; regard reads Marian folders without it")
    if theirs["activation_function"] not in ACTIVATIONS:
        raise ValueError(
            f"activation_function is {theirs['activation_function']!r}; expected one of {', '.join(ACTIVATIONS)}"
        )
    shared = theirs.get("share_encoder_decoder_embeddings", True)
    return Config(
        size="marian",
        vocab=theirs["vocab_size"],
        target_vocab=0 if shared else theirs["decoder_vocab_size"],
        width=theirs["d_model"],
        heads=theirs["encoder_attention_heads"],
        layers=theirs["encoder_layers"],
        decoder_layers=theirs["decoder_layers"],
        inner=theirs["encoder_ffn_dim"],
        dropout=theirs.get("dropout", 0.1),
        tied=theirs.get("tie_word_embeddings", True),
        scaled=theirs.get("scale_embedding", False),
        biased=True,
        attention=slots.Dense(dropout=theirs.get("attention_dropout", 0.0)),
        positions=slots.Sinusoid(layout="halves"),
        feed=slots.Feed(act=ACTIVATIONS[theirs["activation_function"]], dropout=theirs.get("activation_dropout", 0.0)),  # type: ignore[arg-type]
    )


def _looking(ours: str, theirs: str) -> dict[str, str | WeightRule]:
    parts = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}
    return prefixed(ours, theirs, parts) | {f"{ours}_residual.norm": f"{theirs}_layer_norm"}


def marian(c: Config) -> dict[str, str | WeightRule]:
    """Our names to theirs."""
    layer = _looking("attention", "self_attn") | {
        "feed.into": "fc1",
        "feed.out": "fc2",
        "feed_residual.norm": "final_layer_norm",
    }
    source, target = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
    shared = () if c.target_vocab else ("model.shared.weight",)
    return (
        prefixed("encoder.layers.*", "model.encoder.layers.*", layer)
        | prefixed("decoder.layers.*", "model.decoder.layers.*", layer | _looking("cross", "encoder_attn"))
        | {"source.weight": one_of(*shared, source), "target.weight": one_of(*shared, target)}
        | {
            "head.weight": one_of("lm_head.weight", *((*shared, target) if c.tied else ())),
            "head.bias": as_row("final_logits_bias"),
        }
    )


MARIAN_COMPUTED = (r"model\.(en|de)coder\.embed_positions\.weight",)  # the sinusoid, which some files hold
