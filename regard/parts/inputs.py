"""The inputs of models, and the outputs of encoders and detectors: tensors with their kind and valid mask."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from .layer import Cross
from .masks import Mask

TensorKind: TypeAlias = Literal["tokens", "frames", "pixels", "labels", "boxes"]


@dataclass(frozen=True, eq=False)
class Inputs:
    """One field of a batch. A tensor that is None means the plain case: all valid, positions 0, 1, 2…, one segment."""

    modality: TensorKind
    values: Tensor  # ids (batch, tokens), frames (batch, frames, bins), pixels (batch, channels, height, width), …
    valid: Tensor | None = None  # (batch, tokens or frames) or (batch, height, width) bool: False for padding
    positions: Tensor | None = None  # (batch, tokens)
    segments: Tensor | None = None  # (batch, tokens): which of several packed examples a token belongs to
    token_types: Tensor | None = None  # (batch, tokens): 1 in the second text of a pair
    global_positions: Tensor | None = None  # (batch, most): see Mask
    scaling: Tensor | None = None  # (3, channels): 255, mean and deviation. `values` are bytes, which `to` normalizes
    ancestry: Tensor | None = None  # (batch, tokens, tokens) bool: what leads to each token of a tree, and itself

    def mask(self) -> Mask:
        """The mask of self-attention."""
        return Mask(
            positions=self.positions,
            key_valid=self.valid,
            segments=self.segments,
            global_positions=self.global_positions,
            beam_ancestry=self.ancestry,
        )

    def __len__(self) -> int:
        return len(self.values)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Inputs":
        """The field on a device. Bytes are normalized there, so that a quarter of the memory is copied."""
        moved = self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))
        if moved.scaling is None:
            return moved
        return replace(moved, values=_normalize(moved.values, moved.scaling), scaling=None)

    def pin(self) -> "Inputs":
        """The field in pinned memory: a copy from there to a GPU does not wait for the GPU."""
        return self._map(Tensor.pin_memory)

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors."""
        return sum(value.nbytes for value in vars(self).values() if isinstance(value, Tensor))

    def _map(self, change: Callable[[Tensor], Tensor]) -> "Inputs":
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        changed: dict[str, Any] = {name: change(tensor) for name, tensor in tensors.items()}
        return replace(self, **changed)


def _normalize(values: Tensor, scaling: Tensor) -> Tensor:
    """The same bits on every device: torch divides by a tensor exactly, but on a GPU not by a Python number."""
    whole, mean, deviation = scaling[..., None, None]
    return values.contiguous().float().div_(whole).sub_(mean).div_(deviation)


@dataclass(frozen=True, eq=False)
class Encoded:
    """The output of an encoder. It has its own valid mask, because convolutions and patches change the length."""

    states: Tensor  # (batch, length, width)
    valid: Tensor | None = None  # (batch, length)
    segments: Tensor | None = None  # (batch, length)
    text: Inputs | None = None  # the input, where a head also reads it

    def select(self, rows: Tensor) -> "Encoded":
        """The source of each of these rows. A single source stays one: all rows of a decoder can share it."""
        if len(self.states) == 1:
            return self
        return Encoded(self.states[rows], None if self.valid is None else self.valid[rows])

    def cross(self, target: Inputs | None = None) -> Cross:
        """The mask of cross-attention; a packed target attends only to the source of its segment."""
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
