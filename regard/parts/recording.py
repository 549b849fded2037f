"""Recording: a call of a model may let a recorder see its attention. Other threads do not see that recorder."""

from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from .masks import Mask

if TYPE_CHECKING:
    from .attention import Attention


class Recorder(Protocol):
    """Gets what the kernel of an attention module gets, before every call of the kernel."""

    def __call__(self, attention: "Attention", q: Tensor, k: Tensor, mask: Mask, bias: Tensor | None, /) -> None: ...


RECORDER: ContextVar[Recorder | None] = ContextVar("regard_recorder", default=None)


def current_recorder() -> Recorder | None:
    """The recorder of the current thread or task; compiled code has none."""
    return None if torch.compiler.is_compiling() else RECORDER.get()
