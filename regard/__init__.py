"""regard: the Transformer whole. `import regard` costs nothing; torch is imported when something is built or loaded."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["UserError", "build", "convert", "load", "resolve", "train"]

if TYPE_CHECKING:
    from .api import build, convert, load, train
    from .config.run import resolve
    from .errors import UserError

_PLACES = dict.fromkeys(("build", "convert", "load", "train"), "api") | {"resolve": "config.run", "UserError": "errors"}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"regard.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
