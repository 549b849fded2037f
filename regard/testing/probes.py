"""Random examples of every modality, encoded and collated by its processor."""

import string
from collections.abc import Sequence
from functools import cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ..config.data.texts import TokenizerConfig
from ..parts.inputs import Inputs, TensorKind
from ..processors.base import Array, Processor
from ..processors.image.processor import ImageProcessor
from ..processors.sound.log_mel import AudioProcessor
from ..processors.text.processor import TextProcessor
from ..processors.text.tokenizers import train_tokenizer


class Probe:
    """Makes examples of some length and batches of them. `vocab` is the vocabulary of the output."""

    modality: ClassVar[TensorKind]
    packs: ClassVar[bool] = False  # one row may hold several examples
    processor: Processor

    def __init__(self) -> None:
        self.rng = np.random.default_rng(1)
        self.vocab = letters().tokenizer.size

    def raw(self, length: int) -> str | Array:
        """A raw example whose size grows with `length`."""
        raise NotImplementedError

    def example(self, length: int) -> Array:
        """An example of this many positions."""
        return self.processor.encode(self.raw(length))

    def batch(self, examples: Sequence[Array], fill: int = 0) -> Inputs:
        """All examples; padding holds `fill`, which no output may depend on."""
        inputs = self.processor.collate(examples)
        if inputs.valid is not None:
            inputs.values.masked_fill_(~broadcast_valid(inputs), fill)
        return inputs

    def pack(self, examples: Sequence[Array]) -> Inputs:
        """All examples in one row."""
        raise NotImplementedError


def broadcast_valid(inputs: Inputs) -> Tensor:
    """`valid` of tokens (batch, tokens), frames (batch, frames, 1) or pixels (batch, 1, height, width)."""
    assert inputs.valid is not None
    if inputs.valid.dim() == inputs.values.dim():
        return inputs.valid
    return inputs.valid[..., None] if inputs.valid.dim() == 2 else inputs.valid[:, None]


@cache
def letters() -> TextProcessor:
    """Texts of letters, a token each."""
    return TextProcessor(train_tokenizer(TokenizerConfig(kind="char"), [string.ascii_letters]))


class TokenProbe(Probe):
    """Random tokens."""

    modality = "tokens"
    packs = True

    def __init__(self) -> None:
        super().__init__()
        self.processor = letters()

    def raw(self, length: int) -> str:
        return "".join(self.rng.choice(list(string.ascii_letters), length))

    def pack(self, examples: Sequence[Array]) -> Inputs:
        return pack_tokens(examples)


def pack_tokens(examples: Sequence[Array]) -> Inputs:
    """All examples in one row."""
    rows = [torch.from_numpy(example).long() for example in examples]
    positions = torch.cat([torch.arange(len(row)) for row in rows])[None]
    segments = torch.cat([torch.full((len(row),), i) for i, row in enumerate(rows)])[None]
    return Inputs("tokens", torch.cat(rows)[None], None, positions, segments)


class FrameProbe(Probe):
    """Random frames."""

    modality = "frames"

    def __init__(self) -> None:
        super().__init__()
        self.processor = self.audio = AudioProcessor()

    def raw(self, length: int) -> Array:
        return self.rng.uniform(-1, 1, 8 * length * self.audio.hop).astype(np.float32)


class PixelProbe(Probe):
    """Random pixels."""

    modality = "pixels"

    def __init__(self) -> None:
        super().__init__()
        self.processor = ImageProcessor(resize=16, crop=0, patch=4)

    def raw(self, length: int) -> Array:
        return self.rng.integers(0, 256, (16, 16 + 4 * length, 3), np.uint8)


PROBES: dict[TensorKind, type[Probe]] = {"tokens": TokenProbe, "frames": FrameProbe, "pixels": PixelProbe}
