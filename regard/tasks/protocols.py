"""Types of the models that the tasks use. The Model of a family satisfies those of its tasks.

The registry of families is not typed, so nothing checks this statically: REQUIRED_METHODS of a task does at run time.
"""

from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from ..parts import Cache, Cross, Mask
from ..parts.inputs import Inputs


class TaskModel(Protocol):
    """The methods of nn.Module that predictors call."""

    def to(self, device: torch.device, /) -> Self: ...
    def eval(self) -> Self: ...


class EncoderModel(TaskModel, Protocol):
    @property
    def context(self) -> int | None:
        """The longest row; None: any length."""

    def encode(self, tokens: Tensor, mask: Mask, token_types: Tensor | None = None, /) -> Tensor:
        """Hidden states (batch, tokens, width). Families that read single texts take no token types."""


class LabelModel(EncoderModel, Protocol):
    def label_logits(self, states: Tensor, valid: Tensor, /) -> Tensor:
        """(batch, labels), or of tags (batch, tokens, labels)."""


class MaskedModel(EncoderModel, Protocol):
    def logits(self, states: Tensor, /) -> Tensor: ...
    def next_sentence_logits(self, states: Tensor, /) -> Tensor: ...


class CausalModel(TaskModel, Protocol):
    @property
    def context(self) -> int | None:
        """The longest text; None: any length."""

    def decode(self, tokens: Tensor, mask: Mask = ..., cache: Cache | None = None, /) -> Tensor:
        """Hidden states (batch, tokens, width)."""

    def logits(self, states: Tensor, /) -> Tensor: ...
    def start(self, rows: int, capacity: int | None = None, /) -> Cache: ...
    def step(self, tokens: Tensor, cache: Any, valid: Tensor | None = None, /) -> Tensor: ...

    def new_memory(self, rows: int, /) -> Cache | None:
        """The memory that carries over between windows of a text; None if the model has none."""


class Seq2SeqModel(TaskModel, Protocol):
    def encode(self, source: Tensor, mask: Mask, /) -> Tensor: ...
    def decode(self, target: Tensor, cross: Cross, mask: Mask = ..., /) -> Tensor: ...
    def logits(self, states: Tensor, /) -> Tensor: ...
    def start(self, source: Tensor, mask: Mask = ..., capacity: int | None = None, /) -> Cache: ...
    def step(self, tokens: Tensor, cache: Any, valid: Tensor | None = None, /) -> Tensor: ...


class EmbeddingModel(TaskModel, Protocol):
    log_scale: Tensor  # (1,): the logarithm of what the cosines are multiplied by

    def embed(self, inputs: Inputs, /) -> Tensor:
        """Vectors of length 1 (batch, width)."""


class MemoryLayer(Protocol):
    """The layer cache of a model with memory."""

    tokens: int | None  # how far back it reaches; None: without limit
    policy: str  # how much context a token has, for reports


def memory_layer(memory: Cache) -> MemoryLayer:
    """The first layer of a memory; all layers agree."""
    layer: Any = memory.layers[0]
    found: MemoryLayer = layer
    return found


def as_module(model: object) -> nn.Module:
    """The model as an nn.Module, which every model is."""
    assert isinstance(model, nn.Module)
    return model
