"""The modules that a tuning method injects into a finished model, each under the path of the module it changes.

They are the model's child `tune`, so they move, train and are saved with it; the names of the base do not change.
Only hooks connect them to the base: removing the hooks restores it bit for bit.
"""

import re
from collections.abc import Iterable

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ..errors import UserError

TUNE_MODULE = "tune"  # name of the child
MAX_NAMES = 12  # module names in a message


class Injection(nn.Module):
    """The injected modules of one method, by path, and their hooks."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self._handles = kind, list[RemovableHandle]()
        self.shared = False  # True if other models use the same base

    def attach(self, path: str, part: nn.Module) -> None:
        """Add `part` at the nested path `a.b.c`, so that its parameters have the name of the module it changes."""
        *parents, last = path.split(".")
        here: nn.Module = self
        for name in parents:
            if name not in here._modules:
                here.add_module(name, nn.Module())
            here = here.get_submodule(name)
        if last in here._modules:
            raise UserError(f"{path} is tuned already; a module takes one method")
        here.add_module(last, part)

    def add_handles(self, *handles: RemovableHandle) -> None:
        """Register hooks, which `remove` takes away."""
        self._handles += handles

    def text_only(self, path: str, weights: Tensor) -> Tensor:
        """Recorded weights (…, queries, keys) of the attention at `path`, without injected tokens."""
        return weights

    def remove(self, model: nn.Module) -> None:
        """Restore the model."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        del model._modules[TUNE_MODULE]


def injection_of(model: nn.Module) -> Injection | None:
    """The injection of a tuned model, or None."""
    module = model._modules.get(TUNE_MODULE)
    return module if isinstance(module, Injection) else None


class Unsupported(UserError):
    """A tuning method that a model does not support. A caller that knows the family adds it with `for_family`."""

    def for_family(self, family: str) -> UserError:
        return UserError(str(self).replace("this model", f"model.family={family}", 1))


def unsupported_tuning(kind: str, why: str) -> Unsupported:
    """The error for a model that a tuning method does not support."""
    return Unsupported(f"tune.kind={kind} does not work with this model: {why}; use another kind")


def matching_names(pattern: str, names: Iterable[str]) -> list[str]:
    """The names that contain a match of the pattern. If there is none, the error lists the existing ones."""
    names = list(names)
    try:
        matches = [name for name in names if re.search(pattern, name)]
    except re.error as error:
        raise UserError(f"tune.pattern is {pattern!r}; expected a regular expression ({error})") from error
    if not matches:
        raise UserError(f"tune.pattern={pattern!r} matches no linear layer of the model; it has {format_names(names)}")
    return matches


def format_names(names: Iterable[str]) -> str:
    """Format module names for a message; layers with different numbers are shown once."""
    patterns = list(dict.fromkeys(re.sub(r"\.\d+(?=\.)", ".*", name) for name in names))
    more = f" and {len(patterns) - MAX_NAMES} more" if len(patterns) > MAX_NAMES else ""
    return ", ".join(patterns[:MAX_NAMES]) + more or "none"
