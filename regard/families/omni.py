"""One encoder–decoder for texts, images and sound: an entrance for each modality, then the same layers and vocabulary.

Tokens are embedded, images cut into patches (2010.11929), frames of sound go through two strided convolutions (ICASSP
2018). A learned vector tells the modalities apart. With `ctc.weight`, frames also predict the tokens by CTC.
"""

from functools import partial
from typing import Annotated, Any, Literal, TypeAlias

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from ..config.decode_sound import SpeechDecode
from ..config.types import Base, Count, Positive, Share
from ..parts import Dropout, Encoded, Inputs, Layer, Mask, Residual, Stack, slots
from ..parts.init import fan_in, fan_in_relu, glorot, initialize, normal, ones, zeros
from ..parts.media.frames import FrameConvolutions
from ..parts.media.patches import PatchEmbedding, SinusoidGrid, check_stem, random_images, read_patches
from ..parts.positions import SinusoidPositions
from .base import Seq2Seq
from .seq2seq import Attention, Feed, Norm
from .spec import ModelSpec

Positions = Annotated[slots.Sinusoid | slots.Rotary | slots.Buckets, Field(discriminator="kind")]
Entrance: TypeAlias = Literal["tokens", "pixels", "frames"]


class FrameCTC(Base):
    """The CTC loss of sound beside the loss of the decoder."""

    weight: Share = 0.0  # of the CTC loss of sound in training, beside 1 - weight of the decoder's; 0: no CTC


class Config(Base):
    """The settings of a model of texts, images and sound."""

    family: Literal["omni"] = "omni"
    size: str = "small"
    inputs: tuple[Entrance, ...] = ("tokens", "pixels", "frames")  # what it reads; the task sets it
    vocab: Count = 0  # of source and target; 0: the tokenizer's size
    target_vocab: Count = 0  # always 0: source and target share one vocabulary
    image: Positive = 64  # side of the images in pixels, unless data.size says otherwise
    patch: Positive = 8
    stem: tuple[Positive, ...] = ()  # channels of convolutions before the patches, each of which halves the sides
    bins: Positive = 80  # of a frame; data.bins sets it
    channels: Positive = 32  # of the two convolutions over frames, which leave every fourth frame
    width: Positive = 256
    heads: Positive = 4
    layers: Positive = 6
    decoder_layers: Count = 0  # 0: equal to `layers`
    inner: Positive = 1024
    dropout: Share = 0.1
    prenorm: bool = True  # the norm comes first
    tied: bool = True  # the head shares the embeddings
    ctc: FrameCTC = FrameCTC()
    attention: Attention = slots.Dense()
    positions: Positions = slots.Sinusoid()  # of tokens and frames; patches have those of their grid, too
    feed: Feed = slots.Feed()
    norm: Norm = slots.LayerNorm()

    @model_validator(mode="after")
    def _check_shape(self) -> "Config":
        slots.check_widths(self.width, self.heads, self.positions)
        if self.width % 4:
            raise ValueError(f"the positions of patches need a width that 4 divides, not {self.width} (model.width)")
        check_stem(self.stem, self.patch)
        if self.target_vocab:
            raise ValueError(
                f"model.target_vocab is {self.target_vocab}, but model.family=omni has one vocabulary; use "
                "tokenizer.joint=true"
            )
        return self


SIZES: dict[str, dict[str, Any]] = {
    "tiny": {
        "width": 128, "heads": 4, "layers": 3, "decoder_layers": 2, "inner": 512, "channels": 16, "patch": 4,
        "stem": [],
    },
    "small": {"width": 256, "heads": 4, "layers": 6, "decoder_layers": 4, "inner": 1024, "stem": []},
    "base": {"width": 512, "heads": 8, "layers": 6, "inner": 2048, "channels": 64, "stem": []},
}  # fmt: skip
SPEC = ModelSpec(
    frozenset({"tokens", "pixels", "frames"}),
    frozenset({"target"}),
    head_modules=("embedding", "head", "ctc", "patches", "frames", "modality"),
    settings={"transcribe": {"decode": SpeechDecode}},
)


class Model(Seq2Seq):
    """An encoder with an entrance for each modality, and one decoder."""

    stride = 4  # frames of an encoder position

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.scale, self.ctc_weight = c.width**0.5, c.ctc.weight if "frames" in c.inputs else 0.0
        self.inputs, self.image, self.bins = c.inputs, c.image, c.bins
        self.embedding = nn.Embedding(c.vocab, c.width)
        self.patches = PatchEmbedding(3, c.width, c.patch, stem=c.stem) if "pixels" in c.inputs else None
        self.grid = SinusoidGrid(c.width)
        self.frames = FrameConvolutions(c.bins, c.channels, c.width) if "frames" in c.inputs else None
        self.modality = nn.ParameterDict({name: torch.zeros(c.width) for name in c.inputs})
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
        # With relative positions alone, the decoder would not know where in the source a state is.
        self.places = None if c.positions.kind == "sinusoid" else SinusoidPositions(c.width)
        self.head = nn.Linear(c.width, c.vocab, bias=False)
        self.ctc = nn.Linear(c.width, c.vocab) if self.ctc_weight else None
        initialize(self, INITIAL | {r"(embedding|head|.*table)\.weight": normal(c.width**-0.5)})
        if c.tied:
            self.head.weight = self.embedding.weight

    def random_inputs(self, rows: int) -> list[Inputs]:
        """Noise of the first modality and random tokens, to probe the model with."""
        weight, generator = self.embedding.weight, torch.Generator().manual_seed(1)
        tokens = torch.randint(len(weight), (rows, 8), generator=generator).to(weight.device)
        frames = torch.randn(rows, 64, self.bins, generator=generator).to(weight)
        sources = {"tokens": Inputs("tokens", tokens), "frames": Inputs("frames", frames)}
        if self.patches is not None:
            sources["pixels"] = random_images(rows, self.patches.first_weight, self.image)
        return [sources[self.inputs[0]], Inputs("tokens", tokens)]

    def patch_grid(self, height: int, width: int) -> tuple[int, int]:
        """The rows and columns of patches of an image."""
        assert self.patches is not None, "model.inputs lacks pixels"
        return self.patches.patch_grid(height, width)

    def encode(self, source: Inputs) -> Encoded:
        read = {"tokens": self._read_tokens, "pixels": self._read_pixels, "frames": self._read_frames}
        x, mask = read[source.modality](source)
        x = x + self.modality[source.modality].to(x.dtype)
        states: Tensor = self.encoder(self.dropout(x), mask)
        if self.places is not None:
            states = self.places.add_to_input(states, mask.positions)
        return Encoded(states, mask.key_valid, source.segments)

    def _read_tokens(self, source: Inputs) -> tuple[Tensor, Mask]:
        x = self.encoder.add_positions(self.embedding(source.values) * self.scale, source.positions)
        return x, source.mask()

    def _read_pixels(self, source: Inputs) -> tuple[Tensor, Mask]:
        assert self.patches is not None, "model.inputs lacks pixels"
        x, valid = read_patches(source, self.patches, self.grid)
        return x, Mask(key_valid=valid)

    def _read_frames(self, source: Inputs) -> tuple[Tensor, Mask]:
        assert self.frames is not None, "model.inputs lacks frames"
        x, valid = self.frames(source.values, source.valid)
        return self.encoder.add_positions(x), Mask(key_valid=valid)

    def ctc_logits(self, encoded: Encoded) -> Tensor:
        """The CTC scores of every encoder position, (batch, frames / 4, vocab); PAD is the blank."""
        assert self.ctc is not None, "model.ctc.weight is 0"
        logits: Tensor = self.ctc(encoded.states)
        return logits

    def embed_target(self, tokens: Tensor) -> Tensor:
        return self.scaled(self.embedding(tokens))


INITIAL = {
    r".*norm\.weight": ones,
    r".*bias": zeros,
    r"modality\..*": normal(0.02),
    r"patches\.stem\..*\.weight": fan_in_relu,  # positions are added without a norm: patches must not be smaller
    r"(patches|frames)\..*\.weight": fan_in,
    r".*(query|key|value|out|into|gate|score|ctc)\.weight": glorot,
}
