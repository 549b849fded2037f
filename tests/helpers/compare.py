"""Results of calls whose numbers may differ by rounding, because threads share batches."""

from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch


def value_of(result: Any) -> Any:
    """A result, a view of attention or a tensor in a form that `close_to` knows."""
    if isinstance(result, torch.Tensor):
        return result.numpy()
    if hasattr(result, "maps"):
        return {attention.site.path: attention.weights.numpy() for attention in result.maps}
    if is_dataclass(result):
        return value_of({field.name: getattr(result, field.name) for field in fields(result)})
    if isinstance(result, dict):  # where attention is largest may be a tie, which rounding decides
        return {name: value_of(part) for name, part in result.items() if name != "alignment"}
    return [value_of(part) for part in result] if isinstance(result, list | tuple) else result


def close_to(value: Any, tolerance: float = 1e-4) -> Any:
    """Equal to this value but for rounding."""
    if isinstance(value, dict):
        return {key: close_to(part, tolerance) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(close_to(part, tolerance) for part in value)
    return value if isinstance(value, str | bool | int | None) else pytest.approx(value, rel=tolerance, abs=tolerance)
