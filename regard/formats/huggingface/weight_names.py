"""Weight-name tables: our module path to theirs, with `*` for a layer number. Loading is strict in both directions."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from ...errors import UserError
from ...parts.finite import nonfinite_name

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class WeightRule:
    """The name of one of our tensors in their file, and how it is stored there."""

    names: tuple[str, ...]  # possible names; those that are present must hold equal tensors
    transposed: bool = False
    part: int = 0  # index among `parts` tensors of ours that are fused in one of theirs
    parts: int = 1
    row: bool = False  # their (1, n) is our (n)

    def read(self, theirs: Tensor) -> Tensor:
        """Our tensor from theirs."""
        theirs = theirs.flatten() if self.row else theirs.chunk(self.parts, -1)[self.part]
        return theirs.t() if self.transposed else theirs  # a bias has one dimension and stays as it is

    def write(self, ours: Tensor) -> Tensor:
        """Their tensor, or its fused part, from ours."""
        return ours[None] if self.row else ours.t() if self.transposed else ours


Names = Mapping[str, str | WeightRule]


def any_of(*names: str) -> WeightRule:
    """A tensor that may have any of these names."""
    return WeightRule(names)


def as_row(name: str) -> WeightRule:
    """A vector that they store as a matrix of one row."""
    return WeightRule((name,), row=True)


def transposed(name: str, part: int = 0, parts: int = 1) -> WeightRule:
    """A matrix of GPT-2's Conv1D, which is transposed and may fuse query, key and value."""
    return WeightRule((name,), True, part, parts)


def add_prefixes(ours: str, theirs: str, names: Names) -> dict[str, str | WeightRule]:
    """The table with the prefix `ours` before our names and `theirs` before theirs."""

    def join(name: str | WeightRule) -> str | WeightRule:
        if isinstance(name, str):
            return f"{theirs}.{name}"
        return replace(name, names=tuple(f"{theirs}.{alternative}" for alternative in name.names))

    return {f"{ours}.{path}": join(name) for path, name in names.items()}


def load_weights(model: M, theirs: Mapping[str, Tensor], names: Names, computed: tuple[str, ...] = ()) -> M:
    """Load `theirs` into `model` and set it to eval mode.

    Each of our tensors must be there; each of theirs must be used or match a pattern in `computed`.
    """
    state, used = {}, set()
    for ours, tensor in model.state_dict().items():
        rule = find_rule(ours, names)
        present = [name for name in rule.names if name in theirs]
        if not present:
            raise UserError(f"the checkpoint has no {rule.names[0]!r}, which {ours!r} is read from; use another one")
        if any(not theirs[name].equal(theirs[present[0]]) for name in present[1:]):
            raise UserError(f"{present[0]!r} and {present[1]!r} of the checkpoint differ; expected one shared tensor")
        used.update(present)
        state[ours] = rule.read(theirs[present[0]])
        if state[ours].shape != tensor.shape:
            shapes = f"{tuple(state[ours].shape)}; expected {tuple(tensor.shape)} for {ours!r}"
            raise UserError(f"{present[0]!r} of the checkpoint has shape {shapes}")
    unused = [
        name for name in theirs if name not in used and not any(re.fullmatch(pattern, name) for pattern in computed)
    ]
    if unused:
        raise UserError(f"{len(unused)} tensors of the checkpoint have no place in the model: {', '.join(unused[:4])}")
    if name := nonfinite_name({name: tensor for name, tensor in theirs.items() if name in used}):
        raise UserError(f"{name!r} of the checkpoint has NaN or infinite values; fetch the folder again or repair it")
    model.load_state_dict(state)
    return model.eval()


def export_weights(model: nn.Module, names: Names) -> dict[str, Tensor]:
    """The weights of the model under their names."""
    theirs: dict[str, list[Tensor]] = {}
    for ours, tensor in model.state_dict().items():
        rule = find_rule(ours, names)
        parts = theirs.setdefault(rule.names[0], [])
        if len(parts) < rule.parts:  # tied tensors come more than once
            parts.append(rule.write(tensor))
    return {name: parts[0] if len(parts) == 1 else torch.cat(parts, -1) for name, parts in theirs.items()}


def find_rule(ours: str, names: Names) -> WeightRule:
    """The rule for one of our tensors, with layer numbers filled in: the longest module path wins."""
    numbers = re.findall(r"(?<=\.)\d+(?=\.)", ours)
    path, tail = re.sub(r"(?<=\.)\d+(?=\.)", "*", ours), ""
    while path:
        if path in names:
            entry = names[path]
            rule = WeightRule((entry,)) if isinstance(entry, str) else entry
            return replace(rule, names=tuple(fill_layer_numbers(name, numbers) + tail for name in rule.names))
        path, _, last = path.rpartition(".")
        tail = f".{last}{tail}"
    raise LookupError(f"the weight-name table has no entry for {ours!r}")


def fill_layer_numbers(name: str, numbers: list[str]) -> str:
    """The name with its wildcards replaced by numbers, in order."""
    for number in numbers:
        name = name.replace("*", number, 1)
    return name
