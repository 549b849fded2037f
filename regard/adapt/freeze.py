"""Freezing: parameters that match a pattern are not trained. Factors of the learning rate by pattern."""

import difflib
from collections.abc import Iterable
from fnmatch import fnmatchcase

from torch import nn

from ..errors import UserError


def freeze(model: nn.Module, patterns: Iterable[str]) -> int:
    """Freeze the parameters that match any of the patterns; return their number of values."""
    chosen = [
        parameter for pattern in patterns for parameter in matching_parameters(model, pattern, "train.freeze").values()
    ]
    for parameter in chosen:
        parameter.requires_grad_(False)
    return sum(parameter.numel() for parameter in dict.fromkeys(chosen))


def matching_parameters(model: nn.Module, pattern: str, key: str) -> dict[str, nn.Parameter]:
    """The parameters whose name matches: `encoder.layers.0.*` with wildcards, or `encoder.layers.0`, a module.

    A pattern that matches nothing is an error of the setting `key`.
    """
    named = dict(model.named_parameters(remove_duplicate=False))
    matches = {name: p for name, p in named.items() if fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")}
    if not matches:
        modules = [name for name, _ in model.named_modules() if name]
        near = difflib.get_close_matches(pattern.removesuffix(".*"), [*modules, *named], n=1)
        hint = f"did you mean {near[0]}?" if near else "`regard train RECIPE --dry` lists the parameters"
        raise UserError(f"{key}: {pattern!r} matches no parameter of the model; {hint}")
    return matches


def rate_factors(model: nn.Module, rates: Iterable[str]) -> dict[str, float]:
    """The factor of the learning rate by parameter name, from entries such as `encoder.*:0.1`; later entries win."""
    factors: dict[str, float] = {}
    for entry in rates:
        pattern, _, number = entry.rpartition(":")
        try:
            factor = float(number)
        except ValueError:
            factor = -1.0
        if not pattern or not 0 < factor < float("inf"):
            raise UserError(
                f"train.rates: {entry!r} is not PATTERN:FACTOR with a factor above 0, such as encoder.*:0.1"
            )
        factors |= dict.fromkeys(matching_parameters(model, pattern, "train.rates"), factor)
    return factors
