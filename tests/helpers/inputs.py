"""Inputs of models from token ids."""

from typing import Any

from torch import Tensor

from regard.parts import Inputs


def inputs(tokens: Tensor, valid: Tensor | None = None, **other: Any) -> Inputs:
    return Inputs("tokens", tokens, valid, **other)
