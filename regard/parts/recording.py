"""Recording: a call of a model passes its attention and hidden states to the recorders of its thread."""

from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from .masks import Mask

if TYPE_CHECKING:
    from .attention import Attention
    from .layer import Stack


class Recorder(Protocol):
    """Called with the arguments of an attention kernel, before every call of the kernel."""

    def __call__(self, attention: "Attention", q: Tensor, k: Tensor, mask: Mask, bias: Tensor | None, /) -> None: ...


class StateRecorder(Protocol):
    """Gets the hidden states of a stack: its input (layer 0), the output of every layer, and that of the final norm."""

    def __call__(self, stack: "Stack", layer: int, states: Tensor, /) -> None: ...


STATE_RECORDER: ContextVar[StateRecorder | None] = ContextVar("regard_state_recorder", default=None)
RECORDER: ContextVar[Recorder | None] = ContextVar("regard_recorder", default=None)


def current_recorder() -> Recorder | None:
    """The recorder of the current thread or task; compiled code has none."""
    return None if torch.compiler.is_compiling() else RECORDER.get()


def current_state_recorder() -> StateRecorder | None:
    """The recorder of hidden states of the current thread or task; compiled code has none."""
    return None if torch.compiler.is_compiling() else STATE_RECORDER.get()
