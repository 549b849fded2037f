"""A second model over the same weights, so that a pass may change one of the two."""

import copy

from torch import Tensor, nn


def shared_copy(model: nn.Module) -> nn.Module:
    """A model with modules and hooks of its own that holds the same tensors.

    What a pass attaches to the copy does not reach the model, which other threads may use meanwhile. The copy counts as
    another model: CUDA graphs, which belong to their model, are captured anew.
    """
    memo: dict[int, object] = {}
    for module in model.modules():
        tensors = [*module._parameters.values(), *module._buffers.values(), *vars(module).values()]
        memo |= {id(each): each for each in tensors if isinstance(each, Tensor)}
    return copy.deepcopy(model, memo)
