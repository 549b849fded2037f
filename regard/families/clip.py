"""CLIP (2103.00020): two towers and one space. A text is near the images, recordings or texts that it belongs to.

`source` is what the texts belong to: images, sound, or other texts, which the tower of the texts reads, too.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from ..config.merge import Settings
from ..config.types import Base, Count, Positive
from ..parts import Encoded, Inputs
from ..parts.init import Rule, fan_in, glorot, initialize, normal, ones, unchanged, zeros
from ..parts.inputs import TensorKind
from .spec import ModelSpec
from .towers import ImageTowerConfig, SharedTextConfig, SoundTowerConfig, TextTower, TextTowerConfig, Tower

FIRST_SCALE = 1 / 0.07  # of the cosines, before training
Source = Annotated[ImageTowerConfig | SoundTowerConfig | SharedTextConfig, Field(discriminator="kind")]


class Config(Base):
    """The settings of a CLIP: its two towers and the width of their common space."""

    family: Literal["clip"] = "clip"
    size: str = "tiny"
    vocab: Count = 0  # 0: the tokenizer's size
    bins: Positive = 80  # of a frame of sound; set by the task
    width: Positive = 512  # of the embeddings
    source: Source = ImageTowerConfig()  # what the texts belong to; text: one tower reads both sides
    text: TextTowerConfig = TextTowerConfig()


def vision(patch: int, width: int, heads: int, layers: int) -> Settings:
    """The settings of an image tower that reads 224 pixels, as CLIP was published."""
    shape = {"width": width, "heads": heads, "layers": layers, "inner": 4 * width}
    return {"kind": "image", "image": 224, "patch": patch, "stem": [], **shape}


TEXT_BASE = {"width": 512, "heads": 8, "layers": 12, "inner": 2048}
TEXT_LARGE = {"width": 768, "heads": 12, "layers": 12, "inner": 3072}
SMALL = {"width": 64, "heads": 2, "layers": 2, "inner": 128}
SIZES: Mapping[str, Settings] = {
    "tiny": {"width": 64, "source": {"kind": "image", "image": 32, "patch": 4, "stem": [], **SMALL}, "text": SMALL},
    "B/32": {"width": 512, "source": vision(32, 768, 12, 12), "text": TEXT_BASE},
    "B/16": {"width": 512, "source": vision(16, 768, 12, 12), "text": TEXT_BASE},
    "L/14": {"width": 768, "source": vision(14, 1024, 16, 24), "text": TEXT_LARGE},
}
MODALITIES: dict[str, TensorKind] = {"image": "pixels", "audio": "frames", "text": "tokens"}
SPEC = ModelSpec(
    frozenset(MODALITIES.values()),
    frozenset({"embedding"}),
    source=lambda c: MODALITIES[c.source.kind],
    reading={"frames": {"source": {"kind": "audio", "channels": 4, **SMALL}}, "tokens": {"source": {"kind": "text"}}},
)


class Model(nn.Module):
    """CLIP (2103.00020): a tower for texts and one for images, sound or other texts, projected to one space."""

    log_scale: Tensor

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.text = TextTower(c.text, c.vocab)
        self.text_projection = nn.Linear(c.text.width, c.width, bias=False)
        self.source = c.source.build(c.bins)  # None: both sides are texts
        self.source_projection = nn.Linear(self.source.width, c.width, bias=False) if self.source else None
        self.log_scale = nn.Parameter(torch.tensor([math.log(FIRST_SCALE)]))
        initialize(self, INITIAL)

    @property
    def context(self) -> int | None:
        """The longest text in tokens; None: any length."""
        return self.text.encoder.context

    def random_inputs(self, rows: int) -> list[Inputs]:
        """Inputs of both towers, to probe the model with."""
        return [(self.source or self.text).random_inputs(rows), self.text.random_inputs(rows)]

    def tower(self, modality: TensorKind) -> tuple[Tower, nn.Linear]:
        """The tower that reads this modality, and its projection."""
        if self.source is None or self.source_projection is None or modality == "tokens":
            assert modality == "tokens", f"this model has no tower for {modality}"
            return self.text, self.text_projection
        assert modality == self.source.modality, f"this model has no tower for {modality}"
        return self.source, self.source_projection

    def reader(self, modality: TensorKind) -> nn.Module:
        """The tower that reads this modality."""
        return self.tower(modality)[0]

    def encode(self, inputs: Inputs) -> Encoded:
        return self.tower(inputs.modality)[0].encode(inputs)

    def vectors(self, inputs: Inputs) -> Tensor:
        tower, projection = self.tower(inputs.modality)
        return F.normalize(projection(tower(inputs)).float(), dim=-1)  # (batch, width)

    def forward(self, source: Inputs, text: Inputs) -> Tensor:
        """The scaled cosines of every source with every text: (sources, texts)."""
        return self.log_scale.exp() * (self.vectors(source) @ self.vectors(text).T)


INITIAL: dict[str, Rule] = {
    r"log_scale": unchanged,
    r".*norm\.weight": ones,
    r".*bias": zeros,
    r"text\.embed\.weight|.*positions\.table.*|source\.first": normal(0.02),
    r"source\.(patches|front)\..*\.weight": fan_in,
    r".*\.weight": glorot,
}
