"""What models read, and what encoders and detectors return: tensors with their modality and what is valid in them."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from .layer import Cross
from .masks import Mask

Modality: TypeAlias = Literal["tokens", "frames", "pixels", "labels", "boxes"]


@dataclass(frozen=True, eq=False)
class Inputs:
    """One field of a batch. A tensor that is None means the plain case: all valid, positions 0, 1, 2…, one segment."""

    modality: Modality
    values: Tensor  # ids (batch, tokens), frames (batch, frames, bins), pixels (batch, channels, height, width), …
    valid: Tensor | None = None  # (batch, tokens or frames) or (batch, height, width) bool: False for padding
    positions: Tensor | None = None  # (batch, tokens)
    segments: Tensor | None = None  # (batch, tokens): which of several packed examples a token belongs to
    token_types: Tensor | None = None  # (batch, tokens): 1 in the second text of a pair
    global_positions: Tensor | None = None  # (batch, most): see Mask

    def mask(self) -> Mask:
        return Mask(
            positions=self.positions,
            key_valid=self.valid,
            segments=self.segments,
            global_positions=self.global_positions,
        )

    def __len__(self) -> int:
        return len(self.values)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Inputs":
        moved = [None if each is None else each.to(device, non_blocking=non_blocking) for each in self._tensors()]
        return Inputs(self.modality, self.values.to(device, non_blocking=non_blocking), *moved)

    def _tensors(self) -> tuple[Tensor | None, ...]:
        return self.valid, self.positions, self.segments, self.token_types, self.global_positions


@dataclass(frozen=True, eq=False)
class Encoded:
    """The output of an encoder. Convolutions and patches change the length, so it says itself what is valid."""

    states: Tensor  # (batch, length, width)
    valid: Tensor | None = None  # (batch, length)
    segments: Tensor | None = None  # (batch, length)

    def cross(self, target: Inputs | None = None) -> Cross:
        """What a decoder attends to; a packed target attends only to the source of its own segment."""
        if self.segments is None or target is None:
            return Cross(self.states, Mask(key_valid=self.valid))
        return Cross(self.states, Mask(segments=target.segments, key_segments=self.segments))


@dataclass(frozen=True, eq=False)
class Detections:
    """What object queries answer after each decoder layer; the last one counts."""

    logits: Tensor  # (layers, batch, queries, labels + 1); the last class is "no object"
    boxes: Tensor  # (layers, batch, queries, 4): center x, center y, width, height, as shares of the valid image
    denoised: "Detections | None" = None  # the answers to noised boxes, in training
    proposed: "Detections | None" = None  # of the places of the feature map, as one layer, if queries come from them
