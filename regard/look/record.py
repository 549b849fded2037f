"""Record attention weights of a finished model, whatever kernel computes its output."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from ..adapt.injection import Injection, injection_of
from ..parts import Attention, Stack


@contextmanager
def record_attention(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """In this context the dict collects weights (batch, heads, queries, keys) by module path; later calls overwrite.

    The model runs with its own kernels, fused ones included: the weights are computed separately, from the same queries
    and keys. Only padding is not removed, because the weights are stored by row; this may change the last bits.
    """
    maps: dict[str, Tensor] = {}
    handles, unpadded = [], [part for part in model.modules() if isinstance(part, Stack) and part.unpadded]
    injection = injection_of(model)
    for path, module in model.named_modules():
        if isinstance(module, Attention):
            handles.append(module.kernel.register_forward_pre_hook(_recording_hook(maps, path, injection)))
    try:
        for stack in unpadded:
            stack.unpadded = False
        yield maps
    finally:
        for stack in unpadded:
            stack.unpadded = True
        for handle in handles:
            handle.remove()


def _recording_hook(maps: dict[str, Tensor], path: str, injection: Injection | None) -> Callable[[Any, Any], None]:
    """A forward pre-hook of a kernel that stores the weights of its attention under `path`."""

    def record(kernel: Any, arguments: tuple[Any, ...]) -> None:
        q, k, _, mask, bias, *_ = arguments
        weights = kernel.weights(q, k, mask, bias).detach()
        maps[path] = weights if injection is None else injection.text_only(path, weights)

    return record
