"""How weights begin: one table per family, read from top to bottom, the first line that fits a tensor's name wins."""

import re
from collections.abc import Callable, Mapping

from torch import Tensor, nn
from torch.nn import init

Rule = Callable[[Tensor], Tensor]


def normal(spread: float) -> Rule:
    return lambda tensor: init.normal_(tensor, 0.0, spread)


def glorot(tensor: Tensor) -> Tensor:
    return init.xavier_uniform_(tensor)


def zeros(tensor: Tensor) -> Tensor:
    return init.zeros_(tensor)


def ones(tensor: Tensor) -> Tensor:
    return init.ones_(tensor)


def orthogonal(tensor: Tensor) -> Tensor:
    """Of a recurrence: the map from state to state of every gate by itself, (gates · width, width)."""
    for gate in tensor.chunk(tensor.size(0) // tensor.size(1)):
        init.orthogonal_(gate)
    return tensor


def open_gate(tensor: Tensor) -> Tensor:
    """Of an LSTM's biases, whose second quarter is of the gate that forgets: it begins by forgetting little."""
    init.zeros_(tensor)
    init.ones_(tensor.chunk(4)[1])
    return tensor


def as_built(tensor: Tensor) -> Tensor:
    return tensor


def initialize(model: nn.Module, table: Mapping[str, Rule]) -> None:
    """Keys are regular expressions over whole parameter names. A parameter that no line names is a mistake of ours."""
    for name, parameter in model.named_parameters():
        rule = next((rule for pattern, rule in table.items() if re.fullmatch(pattern, name)), None)
        if rule is None:
            raise LookupError(f"no line of the table of initial values fits {name!r}")
        rule(parameter)
