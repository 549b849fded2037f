"""regard: train, use and inspect the Transformer family. `import regard` is cheap: torch is imported when needed."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "Batch",
    "CallbackContext",
    "LossSum",
    "CustomMetric",
    "UserError",
    "align",
    "build",
    "convert",
    "distill",
    "fit",
    "load",
    "prune",
    "register",
    "resolve",
    "train",
]

if TYPE_CHECKING:
    from .api import align, build, convert, distill, load, prune, resolve, train
    from .data.batch import Batch
    from .errors import UserError
    from .plugins import register
    from .training.callbacks import CallbackContext
    from .training.custom import CustomMetric
    from .training.fit import fit
    from .training.objective import LossSum

_MODULES = dict.fromkeys(("align", "build", "convert", "distill", "load", "prune", "resolve", "train"), "api") | {
    "Batch": "data.batch",
    "CallbackContext": "training.callbacks",
    "LossSum": "training.objective",
    "CustomMetric": "training.custom",
    "UserError": "errors",
    "fit": "training.fit",
    "register": "plugins",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"regard.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
