"""Outputs that are NaN or infinite: a sentence for the user instead of an empty or arbitrary answer."""

import math
from collections.abc import Iterable

from ..errors import UserError


def require_finite(values: Iterable[float]) -> None:
    """Refuse outputs if one of them is NaN or infinite."""
    if not math.isfinite(sum(values)):
        raise UserError(
            "the model gives numbers that are not finite (NaN or infinite), so it has no answer; its weights are too "
            "large or damaged: use others, or precision=fp32"
        )
