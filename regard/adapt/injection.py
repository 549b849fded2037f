"""What a method of tuning puts into a finished model: small parts, each beside the module whose path it bears.

They hang on the model as its child `tune`, so they move, train and are saved with it; the base's own names stay as they
are. Only hooks connect the two: taking them away gives the base back, bit for bit.
"""

import re
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from ..errors import UserError

NAME = "tune"  # of the child
SHOWN = 12  # names of modules in a message


class Injection(nn.Module):
    """The parts of one method in one model, by path, and how they are connected."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self._handles = kind, list[Any]()
        self.shared = False  # do other models use the same base?

    def attach(self, path: str, part: nn.Module) -> None:
        """`a.b.c` becomes a child of a child, so that its parameters bear the names of the module it serves."""
        *way, last = path.split(".")
        here: nn.Module = self
        for name in way:
            if name not in here._modules:
                here.add_module(name, nn.Module())
            here = here.get_submodule(name)
        if last in here._modules:
            raise UserError(f"{path} is tuned already; one module takes one method")
        here.add_module(last, part)

    def hold(self, *handles: Any) -> None:
        """Hooks, to be taken away in the end."""
        self._handles += handles

    def text_only(self, path: str, weights: Tensor) -> Tensor:
        """Recorded weights (…, queries, keys) of the attention at `path`, without what a method put before the text."""
        return weights

    def remove(self, model: nn.Module) -> None:
        """The model as it was."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        del model._modules[NAME]


def injection_of(model: nn.Module) -> Injection | None:
    found = model._modules.get(NAME)
    return found if isinstance(found, Injection) else None


class Unsupported(UserError):
    """A method that this kind of model has no place for. Whoever knows its family puts the name in."""

    def of(self, family: str) -> UserError:
        return UserError(str(self).replace("this model", f"model.family={family}", 1))


def unsupported(kind: str, why: str) -> Unsupported:
    return Unsupported(f"tune.kind={kind} makes no sense for this model: {why}; use another kind")


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """The names in which a regular expression is found; if there is none, those that exist are shown."""
    names = list(names)
    try:
        found = [name for name in names if re.search(pattern, name)]
    except re.error as error:
        raise UserError(f"tune.pattern is {pattern!r}, no regular expression ({error})") from error
    if not found:
        raise UserError(f"tune.pattern={pattern!r} fits no linear map of the model; it has {some(names)}")
    return found


def some(names: Iterable[str]) -> str:
    """Names for a message, layers of one kind together."""
    kinds = list(dict.fromkeys(re.sub(r"\.\d+(?=\.)", ".*", name) for name in names))
    return ", ".join(kinds[:SHOWN]) + (f" and {len(kinds) - SHOWN} more" if len(kinds) > SHOWN else "") or "none"
