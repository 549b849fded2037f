"""Weight initialization: one table per family; the first pattern that matches a parameter's name wins."""

import re
from collections.abc import Callable, Mapping

from torch import Tensor, nn
from torch.nn import init

Rule = Callable[[Tensor], Tensor]


def normal(std: float) -> Rule:
    """Draw from a normal distribution."""
    return lambda tensor: init.normal_(tensor, 0.0, std)


def glorot(tensor: Tensor) -> Tensor:
    """Draw from Glorot's uniform distribution."""
    return init.xavier_uniform_(tensor)


def fan_in(tensor: Tensor) -> Tensor:
    """Inputs of variance 1 give outputs of variance 1."""
    return init.kaiming_normal_(tensor, nonlinearity="linear")


def fan_in_relu(tensor: Tensor) -> Tensor:
    """As `fan_in`, for maps before a ReLU, which halves the variance (1502.01852)."""
    return init.kaiming_normal_(tensor, nonlinearity="relu")


def zeros(tensor: Tensor) -> Tensor:
    """Set all values to 0."""
    return init.zeros_(tensor)


def ones(tensor: Tensor) -> Tensor:
    """Set all values to 1."""
    return init.ones_(tensor)


def orthogonal(tensor: Tensor) -> Tensor:
    """For recurrent weights (gates · width, width): each gate's map is orthogonal by itself."""
    for gate in tensor.chunk(tensor.size(0) // tensor.size(1)):
        init.orthogonal_(gate)
    return tensor


def forget_gate_ones(tensor: Tensor) -> Tensor:
    """For LSTM biases: ones for the forget gate (the second quarter), so that it forgets little at first."""
    init.zeros_(tensor)
    init.ones_(tensor.chunk(4)[1])
    return tensor


def unchanged(tensor: Tensor) -> Tensor:
    """Keep the values."""
    return tensor


def initialize(model: nn.Module, table: Mapping[str, Rule]) -> None:
    """Keys are regular expressions over whole parameter names; every parameter must match one."""
    for name, parameter in model.named_parameters():
        rule = next((rule for pattern, rule in table.items() if re.fullmatch(pattern, name)), None)
        if rule is None:
            raise LookupError(
                f"no initialization rule matches the parameter {name!r}; add a pattern to the family's table"
            )
        rule(parameter)
