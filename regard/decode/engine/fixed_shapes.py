"""Functions of tensors, replayed as CUDA graphs. Texts are padded to few lengths, so that few graphs suffice."""

from collections.abc import Callable, Hashable, MutableMapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from .cuda_graph import weight_versions

Tensors: TypeAlias = tuple[Tensor, ...]
MAX_GRAPHS = 48  # per model
MAX_TOKENS = 8192  # of a call: computing more takes longer than launching it, and a graph keeps its memory


def bucket(size: int, device: torch.device) -> int:
    """The width to which rows of `size` tokens are padded: a multiple of 8, 32 or 128; on a CPU the size."""
    if device.type == "cpu":
        return size
    step = 8 if size <= 64 else 32 if size <= 256 else 128
    return max(-(-size // step), 1) * step


@dataclass(frozen=True)
class FixedCall:
    """A captured call: it reads `inputs` and writes `outputs`, at fixed addresses."""

    graph: torch.cuda.CUDAGraph
    inputs: Tensors
    outputs: Tensors

    def __call__(self, inputs: Tensors) -> Tensors:
        torch._foreach_copy_(list(self.inputs), list(inputs))
        self.graph.replay()
        return tuple(output.clone() for output in self.outputs)


GRAPHS: MutableMapping[nn.Module, dict[Hashable, FixedCall | None]] = WeakKeyDictionary()


class FixedCalls:
    """Calls of functions of a model whose weights do not change during the lifetime of this object."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    @cached_property
    def weights(self) -> Hashable:
        """The versions of the weights, on which a captured call depends."""
        return weight_versions(self.model)

    def __call__(self, name: Hashable, function: Callable[..., Tensors], *inputs: Tensor) -> Tensors:
        """function(*inputs), which must neither depend on other tensors than the model's nor wait for the device.

        On a GPU, the first call of a name with these shapes runs eagerly; the second is captured, and later ones are
        replayed. `name` must identify everything that the function depends on besides the inputs.
        """
        first = inputs[0]
        if not first.is_cuda or torch.is_autocast_enabled("cuda") or first.numel() > MAX_TOKENS:
            return function(*inputs)
        graphs = GRAPHS.setdefault(self.model, {})
        key = name, *((tensor.shape, tensor.dtype) for tensor in inputs), self.weights
        if key not in graphs:  # libraries select their kernels in the first call
            outputs = function(*inputs)
            _keep(graphs, key, None)
            return outputs
        call = graphs.pop(key, None) or capture(function, inputs)  # removed, so that no other thread uses it meanwhile
        outputs = call(inputs)
        _keep(graphs, key, call)
        return outputs


def capture(function: Callable[..., Tensors], inputs: Tensors) -> FixedCall:
    """Capture a call without computing it."""
    static_inputs = tuple(tensor.clone() for tensor in inputs)
    graph, main, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(main)
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")  # other threads may predict
        outputs = function(*static_inputs)
        graph.capture_end()
    main.wait_stream(stream)
    return FixedCall(graph, static_inputs, outputs)


def _keep(graphs: dict[Hashable, FixedCall | None], key: Hashable, call: FixedCall | None) -> None:
    graphs[key] = call
    for old in list(graphs)[:-MAX_GRAPHS]:
        graphs.pop(old, None)  # another thread may have taken it
