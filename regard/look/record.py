"""A pass over a finished model: every attention that runs leaves its weights, whatever kernel computes its output."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from ..adapt.injection import Injection, injection_of
from ..parts import Attention, Stack


@contextmanager
def recording(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Inside, the dict fills with weights (batch, heads, queries, keys) by module path; a later call replaces them.

    The model runs as ever, fused kernels included: the weights are computed beside it, from the same queries and keys.
    Only padding stays where it is, for weights are told by rows; that may change the last bits of what comes out.
    """
    maps: dict[str, Tensor] = {}
    hooks, flat = [], [part for part in model.modules() if isinstance(part, Stack) and part.unpadded]
    graft = injection_of(model)
    for path, module in model.named_modules():
        if isinstance(module, Attention):
            hooks.append(module.kernel.register_forward_pre_hook(_keeper(maps, path, graft)))
    try:
        for stack in flat:
            stack.unpadded = False
        yield maps
    finally:
        for stack in flat:
            stack.unpadded = True
        for hook in hooks:
            hook.remove()


def _keeper(maps: dict[str, Tensor], path: str, graft: Injection | None) -> Callable[[Any, Any], None]:
    def keep(kernel: Any, arguments: Any) -> None:
        q, k, _, mask, bias, *_ = arguments
        weights = kernel.weights(q, k, mask, bias).detach()
        maps[path] = weights if graft is None else graft.text_only(path, weights)

    return keep
