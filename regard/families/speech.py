"""Speech-Transformer (ICASSP 2018): filterbanks through two strided convolutions, then an encoder and a decoder.

With `attention_2d`, the map of the convolutions attends over time and over frequency before the encoder.
With `ctc.weight`, the encoder also predicts the tokens by CTC (1609.06773): training adds that loss, and beam search
that score.
"""

from functools import partial
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from ..config.decode_sound import SpeechDecode
from ..config.types import Base, Count, Positive, Share
from ..parts import Cross, Dropout, Encoded, Inputs, Layer, Mask, Residual, Stack, slots
from ..parts.init import fan_in, glorot, initialize, normal, ones, zeros
from ..parts.media.attention_2d import Attention2D
from ..parts.media.frames import FrameConvolutions
from ..parts.positions import SinusoidPositions
from .base import Seq2Seq
from .seq2seq import Attention, Norm
from .spec import ModelSpec

Positions = Annotated[slots.Sinusoid | slots.Rotary | slots.Buckets, Field(discriminator="kind")]
Feed = Annotated[slots.Feed | slots.Gated | slots.Convolution, Field(discriminator="kind")]


class CTC(Base):
    """The settings of the CTC loss of an encoder."""

    weight: Share = 0.3  # of the CTC loss in training, beside 1 - weight of the decoder's; 0: no CTC


class Config(Base):
    """The settings of a speech recognizer."""

    family: Literal["speech"] = "speech"
    size: str = "small"
    vocab: Count = 0  # 0: the tokenizer's size
    bins: Positive = 80  # of a frame; data.bins sets it
    channels: Positive = 32  # of the two convolutions, which leave every fourth frame
    attention_2d: Count = 0  # modules of attention over time and frequency after the convolutions; the
    # Speech-Transformer has 2
    width: Positive = 256
    heads: Positive = 4
    layers: Positive = 12
    decoder_layers: Count = 6  # 0: equal to `layers`
    inner: Positive = 2048
    dropout: Share = 0.1
    prenorm: bool = True  # the norm comes first
    tied: bool = True  # the head shares the embeddings
    ctc: CTC = CTC()
    attention: Attention = slots.Dense()
    positions: Positions = slots.Sinusoid()
    feed: Feed = slots.Feed()  # a convolution only in the encoder: the decoder must not read later tokens
    norm: Norm = slots.LayerNorm()

    @model_validator(mode="after")
    def _check_shape(self) -> "Config":
        slots.check_widths(self.width, self.heads, self.positions)
        return self


SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"width": 128, "heads": 4, "layers": 3, "decoder_layers": 2, "inner": 512, "channels": 16},
    "small": {"width": 256, "heads": 4, "layers": 12, "decoder_layers": 6, "inner": 2048},
    "base": {"width": 512, "heads": 8, "layers": 12, "decoder_layers": 6, "inner": 2048, "channels": 64},
}
SPEC = ModelSpec(
    frozenset({"frames"}),
    frozenset({"target"}),
    head_modules=("target", "head", "ctc"),
    settings={"transcribe": {"decode": SpeechDecode}},
)


class Model(Seq2Seq):
    """Frames through strided convolutions, an encoder with CTC, and a decoder."""

    stride = 4  # frames of an encoder position

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.scale, self.ctc_weight, self.bins = c.width**0.5, c.ctc.weight, c.bins
        maps = (Attention2D(c.channels) for _ in range(c.attention_2d))
        self.front = FrameConvolutions(c.bins, c.channels, c.width, maps)
        self.target = nn.Embedding(c.vocab, c.width)
        self.dropout = Dropout(c.dropout)
        norm = partial(c.norm.build, c.width)
        residual = lambda: Residual(norm(), c.prenorm, c.dropout)  # noqa: E731
        attend, feed = partial(c.attention.build, c.width, c.heads), partial(c.feed.build, c.width, c.inner)
        causal = slots.Feed(act=c.feed.act, dropout=c.feed.dropout) if c.feed.kind == "conv" else c.feed
        self.encoder = Stack(
            [Layer(attend(), feed(), residual) for _ in range(c.layers)],
            norm() if c.prenorm else None,
            c.positions.build(c.width, c.heads, causal=False),
        )
        self.decoder = Stack(
            [
                Layer(attend(), causal.build(c.width, c.inner), residual, cross=attend())
                for _ in range(c.decoder_layers or c.layers)
            ],
            norm() if c.prenorm else None,
            c.positions.build(c.width, c.heads, causal=True),
            causal=True,
        )
        # With relative positions alone, the decoder would not know where in the recording a state is.
        self.places = None if c.positions.kind == "sinusoid" else SinusoidPositions(c.width)
        self.head = nn.Linear(c.width, c.vocab, bias=False)
        self.ctc = nn.Linear(c.width, c.vocab) if c.ctc.weight else None
        initialize(self, INITIAL | {r"(target|head|.*table)\.weight": normal(c.width**-0.5)})
        if c.tied:
            self.head.weight = self.target.weight

    def random_inputs(self, rows: int) -> list[Inputs]:
        """Frames of noise and random tokens, to probe the model with."""
        weight, generator = self.front.first.weight, torch.Generator().manual_seed(1)
        frames = torch.randn(rows, 64, self.bins, generator=generator).to(weight)
        tokens = torch.randint(self.target.num_embeddings, (rows, 8), generator=generator)
        return [Inputs("frames", frames), Inputs("tokens", tokens.to(weight.device))]

    def encode(self, source: Inputs) -> Encoded:
        x, valid = self.front(source.values, source.valid)
        states: Tensor = self.encoder(self.dropout(self.encoder.add_positions(x)), Mask(key_valid=valid))
        return Encoded(states, valid)

    def ctc_logits(self, encoded: Encoded) -> Tensor:
        """The CTC scores of every encoder position, (batch, frames / 4, vocab); PAD is the blank."""
        assert self.ctc is not None, "model.ctc.weight is 0"
        logits: Tensor = self.ctc(encoded.states)
        return logits

    def cross(self, encoded: Encoded, target: Inputs | None = None) -> Cross:
        states = encoded.states if self.places is None else self.places.add_to_input(encoded.states)
        return Encoded(states, encoded.valid).cross()


INITIAL = {
    r".*norm\.weight": ones,
    r".*bias": zeros,
    r"front\..*\.weight": fan_in,
    r".*(query|key|value|out|into|gate|score|ctc)\.weight": glorot,
}
