"""Weight-name maps as tables: our module path -> theirs, `*` for the layer number. Loading is strict both ways."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ...errors import UserError


@dataclass(frozen=True)
class WeightRule:
    """Where one of our tensors is found and how it lies there."""

    names: tuple[str, ...]  # places where it may be; all that are there must be equal
    transposed: bool = False
    part: int = 0  # which of `parts` of ours that are fused in one of theirs
    parts: int = 1
    row: bool = False  # their (1, n) is our (n)
    skip: int = 0  # rows at the top of theirs that nothing uses

    def read(self, theirs: Tensor) -> Tensor:
        theirs = theirs[self.skip :]
        theirs = theirs.flatten() if self.row else theirs.chunk(self.parts, -1)[self.part]
        return theirs.t() if self.transposed else theirs  # a bias has one dimension and stays as it is

    def write(self, ours: Tensor) -> Tensor:
        ours = torch.cat([ours.new_zeros(self.skip, *ours.shape[1:]), ours]) if self.skip else ours
        return ours[None] if self.row else ours.t() if self.transposed else ours


Names = Mapping[str, str | WeightRule]


def one_of(*names: str) -> WeightRule:
    return WeightRule(names)


def as_row(name: str) -> WeightRule:
    return WeightRule((name,), row=True)


def skip_rows(name: str, rows: int) -> WeightRule:
    """RoBERTa and its kin count places from behind the padding, so that the first rows of their table are nobody's."""
    return WeightRule((name,), skip=rows)


def transposed(name: str, part: int = 0, parts: int = 1) -> WeightRule:
    """GPT-2's Conv1D keeps matrices the other way, and fuses query, key and value."""
    return WeightRule((name,), True, part, parts)


def prefixed(ours: str, theirs: str, names: Names) -> dict[str, str | WeightRule]:
    """The same table one level up: every name gets its side's prefix."""

    def join(name: str | WeightRule) -> str | WeightRule:
        if isinstance(name, str):
            return f"{theirs}.{name}"
        return replace(name, names=tuple(f"{theirs}.{each}" for each in name.names))

    return {f"{ours}.{path}": join(name) for path, name in names.items()}


def load_weights(
    model: nn.Module, theirs: Mapping[str, Tensor], names: Names, computed: tuple[str, ...] = ()
) -> nn.Module:
    """Fill `model`; every tensor of ours must be found and every one of theirs used, or fit a pattern in `computed`."""
    state, used = {}, set()
    for ours, tensor in model.state_dict().items():
        rule = find_rule(ours, names)
        there = [name for name in rule.names if name in theirs]
        if not there:
            raise UserError(f"the checkpoint has no {rule.names[0]!r}, which {ours!r} is read from")
        if any(not theirs[name].equal(theirs[there[0]]) for name in there[1:]):
            raise UserError(f"{there[0]!r} and {there[1]!r} of the checkpoint should be one tensor and differ")
        used.update(there)
        state[ours] = rule.read(theirs[there[0]])
        if state[ours].shape != tensor.shape:
            shapes = f"{tuple(state[ours].shape)}; {ours!r} has {tuple(tensor.shape)}"
            raise UserError(f"{there[0]!r} of the checkpoint has shape {shapes}")
    left = [name for name in theirs if name not in used and not any(re.fullmatch(rule, name) for rule in computed)]
    if left:
        raise UserError(f"{len(left)} tensors of the checkpoint have no place in the model: {', '.join(left[:4])}")
    model.load_state_dict(state)
    return model.eval()


def export_weights(model: nn.Module, names: Names) -> dict[str, Tensor]:
    """The model's weights under their names: the table read backwards."""
    theirs: dict[str, list[Tensor]] = {}
    for ours, tensor in model.state_dict().items():
        rule = find_rule(ours, names)
        parts = theirs.setdefault(rule.names[0], [])
        if len(parts) < rule.parts:  # tied tensors come more than once
            parts.append(rule.write(tensor))
    return {name: parts[0] if len(parts) == 1 else torch.cat(parts, -1) for name, parts in theirs.items()}


def find_rule(ours: str, names: Names) -> WeightRule:
    """The rule for one of our tensors, with the layer numbers put in: the longest module path wins."""
    numbers = re.findall(r"(?<=\.)\d+(?=\.)", ours)
    path, tail = re.sub(r"(?<=\.)\d+(?=\.)", "*", ours), ""
    while path:
        if path in names:
            found = names[path]
            rule = WeightRule((found,)) if isinstance(found, str) else found
            return replace(rule, names=tuple(fill_layer_numbers(name, numbers) + tail for name in rule.names))
        path, _, last = path.rpartition(".")
        tail = f".{last}{tail}"
    raise LookupError(f"no name for {ours!r} in this family's map")


def fill_layer_numbers(name: str, numbers: list[str]) -> str:
    for number in numbers:
        name = name.replace("*", number, 1)
    return name
