"""A check of weights: damaged or diverged ones are NaN or infinite."""

from collections.abc import Mapping

from torch import Tensor


def nonfinite_name(tensors: Mapping[str, Tensor]) -> str | None:
    """The name of the first tensor with a NaN or infinite value; None if all are finite."""
    for name, tensor in tensors.items():
        if not tensor.sum().isfinite() and not tensor.isfinite().all():  # the sum is faster, but may overflow
            return name
    return None
