"""Training: the loop, schedules, checkpoints, and what is shown of them."""

import sys
from types import ModuleType
from typing import Any

from .checkpoint import load_model, save_model
from .loop import Outcome, fit
from .optimise import device

__all__ = ["Outcome", "device", "fit", "load_model", "save_model"]


class _Verb(ModuleType):
    """Once imported, this room stands where the function `regard.train` stood, so it can be called like it."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        from ..api import train

        return train(*arguments, **named)


sys.modules[__name__].__class__ = _Verb
