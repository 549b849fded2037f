"""Whisper (2212.04356): log-mel frames through two convolutions, then an encoder and a decoder with the norm first.

The encoder has fixed sinusoidal positions, the decoder learned ones. Keys have no bias, and the head is tied.
"""

from functools import partial
from typing import Any, Literal

import torch
from pydantic import model_validator
from torch import Tensor, nn

from ..config.data.sound import WhisperData
from ..config.decode_sound import WhisperDecode
from ..config.types import Base, Count, Positive, Share
from ..errors import UserError
from ..parts import Dropout, Encoded, Inputs, Layer, Mask, Residual, SinusoidPositions, Stack, slots
from ..parts.init import fan_in, glorot, initialize, normal, ones, zeros
from ..parts.media.frames import TimeConvolutions
from ..parts.positions import Positions, StoredPositions
from .base import Seq2Seq
from .seq2seq import Feed, Norm
from .spec import ModelSpec


class Config(Base):
    """The settings of a Whisper model."""

    family: Literal["whisper"] = "whisper"
    size: str = "base"
    vocab: Count = 0  # 0: the tokenizer's size
    bins: Positive = 80  # of a frame, 128 since large-v3; data.bins sets it, or start
    width: Positive = 512
    heads: Positive = 8
    layers: Positive = 6
    decoder_layers: Count = 0  # 0: equal to `layers`
    inner: Positive = 2048
    dropout: Share = 0.0
    tied: bool = True  # the head shares the embeddings
    source_positions: Positive = 1500  # of the encoder, 20 ms each if data.hop=10: the window of 30 seconds
    stored_positions: bool = False  # the encoder adds a stored table of positions, as a Whisper folder may have; false:
    # the sinusoid
    attention: slots.Dense = slots.Dense()
    positions: slots.Learned = slots.Learned(tokens=448)  # of the decoder
    alignment_heads: tuple[tuple[int, int], ...] = ()  # decoder layer and head of those that give word times; []: those
    # that follow the recording best
    feed: Feed = slots.Feed(act="gelu")
    norm: Norm = slots.LayerNorm()

    @model_validator(mode="after")
    def _check_shape(self) -> "Config":
        slots.check_widths(self.width, self.heads, slots.Sinusoid())
        return self


SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"width": 64, "heads": 4, "layers": 2, "inner": 128},
    "whisper-tiny": {"width": 384, "heads": 6, "layers": 4, "inner": 1536},
    "base": {"width": 512, "heads": 8, "layers": 6, "inner": 2048},
    "small": {"width": 768, "heads": 12, "layers": 12, "inner": 3072},
    "medium": {"width": 1024, "heads": 16, "layers": 24, "inner": 4096},
    "large": {"width": 1280, "heads": 20, "layers": 32, "inner": 5120},
    "large-v3": {"width": 1280, "heads": 20, "layers": 32, "inner": 5120, "bins": 128},
    "turbo": {"width": 1280, "heads": 20, "layers": 32, "decoder_layers": 4, "inner": 5120, "bins": 128},
}


def needs_start(c: Config) -> str | None:
    """Why these settings need the weights of a folder; None if they say how large a new model is."""
    if "size" in c.model_fields_set or any(getattr(c, key) != value for key, value in SIZES[c.size].items()):
        return None
    return (
        "no start is set, and neither is a size of a new Whisper, whose random weights learn nothing from a few "
        "recordings; set start to a Whisper folder, such as start=openai/whisper-base, or train from scratch with "
        "recipe whisper-morse, or with model.size and a higher train.lr"
    )


SPEC = ModelSpec(
    frozenset({"frames"}),
    frozenset({"target"}),
    head_modules=("target", "head"),
    fixed_modules=("encoder.positions",),
    window=lambda c: 2 * c.source_positions,
    needs_start=needs_start,
    settings={"transcribe": {"data": WhisperData, "decode": WhisperDecode}},
)


class Model(Seq2Seq):
    """Whisper (2212.04356): log-mel frames through convolutions, encoder and decoder."""

    ctc_weight = 0.0  # it has no CTC
    stride = 2  # frames of an encoder position

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.bins, self.max_frames = c.bins, self.stride * c.source_positions
        self.front = TimeConvolutions(c.bins, c.width)
        self.target = nn.Embedding(c.vocab, c.width)
        self.dropout = Dropout(c.dropout)
        norm = partial(c.norm.build, c.width)
        residual = lambda: Residual(norm(), True, c.dropout)  # noqa: E731
        attend = partial(c.attention.build, c.width, c.heads, key_bias=False)
        feed = partial(c.feed.build, c.width, c.inner)
        self.encoder = Stack([Layer(attend(), feed(), residual) for _ in range(c.layers)], norm(), encoder_positions(c))
        self.decoder = Stack(
            [Layer(attend(), feed(), residual, cross=attend()) for _ in range(c.decoder_layers or c.layers)],
            norm(),
            c.positions.build(c.width, c.heads, causal=True),
            causal=True,
        )
        self.head = nn.Linear(c.width, c.vocab, bias=False)
        initialize(self, INITIAL)
        if c.tied:
            self.head.weight = self.target.weight

    def random_inputs(self, rows: int) -> list[Inputs]:
        """Frames of noise and random tokens, to probe the model with."""
        weight, generator = self.front.first.weight, torch.Generator().manual_seed(1)
        frames = torch.randn(rows, min(64, self.max_frames), self.bins, generator=generator).to(weight)
        tokens = torch.randint(self.target.num_embeddings, (rows, 8), generator=generator)
        return [Inputs("frames", frames), Inputs("tokens", tokens.to(weight.device))]

    def encode(self, source: Inputs) -> Encoded:
        """Without `valid`, all frames count: the published models read silence up to 30 seconds."""
        if source.values.size(1) > self.max_frames:
            raise UserError(
                f"a recording of {source.values.size(1)} frames is longer than the {self.max_frames} that the model "
                "reads; lower data.max_seconds, or train with more model.source_positions"
            )
        x, valid = self.front(source.values, source.valid)
        states: Tensor = self.encoder(self.dropout(self.encoder.add_positions(x)), Mask(key_valid=valid))
        return Encoded(states, valid)

    def ctc_logits(self, encoded: Encoded) -> Tensor:
        raise AssertionError("Whisper has no CTC")


def encoder_positions(c: Config) -> Positions:
    """The sinusoid of the encoder, or a table that begins as this sinusoid."""
    sinusoid = SinusoidPositions(c.width, "whisper")
    return StoredPositions(sinusoid.vectors(torch.arange(c.source_positions))) if c.stored_positions else sinusoid


INITIAL = {
    r".*norm\.weight": ones,
    r".*bias": zeros,
    r"front\..*\.weight": fan_in,
    r"(target|head|.*table)\.weight": normal(0.02),
    r".*(query|key|value|out|into|gate)\.weight": glorot,
}
