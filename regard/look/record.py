"""Record attention weights of a finished model, whatever kernel computes its output."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from ..adapt.injection import injection_of
from ..parts import Attention, Mask
from ..parts.recording import RECORDER


class AttentionRecorder:
    """Collects attention weights (batch, heads, queries, keys) of one model by module path; later calls overwrite."""

    def __init__(self, model: nn.Module) -> None:
        self.maps: dict[str, Tensor] = {}
        self.paths = {each: path for path, each in model.named_modules() if isinstance(each, Attention)}
        self.injection = injection_of(model)

    def __call__(self, attention: Attention, q: Tensor, k: Tensor, mask: Mask, bias: Tensor | None) -> None:
        if (path := self.paths.get(attention)) is None:  # another model
            return
        weights = attention.kernel.weights(q, k, mask, bias).detach()
        self.maps[path] = weights if self.injection is None else self.injection.text_only(path, weights)


@contextmanager
def record_attention(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """In this context the dict collects weights (batch, heads, queries, keys) by module path; later calls overwrite.

    The model runs with its own kernels, fused ones included: the weights are computed separately, from the same queries
    and keys. Only padding is not removed, because the weights are stored by row; this may change the last bits. Other
    threads may use the model meanwhile; their calls are not recorded.
    """
    recorder = AttentionRecorder(model)
    token = RECORDER.set(recorder)
    try:
        yield recorder.maps
    finally:
        RECORDER.reset(token)
