"""LoRA (2106.09685): a trained low-rank branch beside a frozen linear layer, up(down(x)) · alpha / rank.

`up` starts at zero, so the model starts unchanged. Merging adds the branch to the layer's weight; the merged model is
as fast as the base.
"""

import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..config.tuning import Lora
from ..errors import UserError
from ..parts import Positions
from .injection import Injection, injection_of, matching_names, unsupported_tuning
from .precision import Int8Linear

LinearLayer = nn.Linear | Int8Linear


class LoraBranch(nn.Module):
    """The low-rank branch of one linear layer."""

    def __init__(self, inputs: int, outputs: int, rank: int, alpha: float, dropout: float = 0.0) -> None:
        super().__init__()
        self.down = nn.Parameter(nn.init.kaiming_uniform_(torch.empty(rank, inputs), a=math.sqrt(5)))
        self.up = nn.Parameter(torch.zeros(outputs, rank))
        self.scale, self.dropout = alpha / rank, nn.Dropout(dropout)
        self.base_weight: Tensor | None = None  # the layer's own weight while the branch is merged

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.linear(self.dropout(x), self.down), self.up) * self.scale

    def add_to_output(self, module: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> Tensor:
        """Forward hook of the linear layer."""
        return out if self.base_weight is not None else out + self(inputs[0].to(self.down.dtype)).to(out.dtype)

    @torch.no_grad()
    def fold(self, weight: Tensor) -> None:
        """Add the branch to the layer's weight."""
        self.base_weight = weight.detach().clone()
        weight += (self.up @ self.down * self.scale).to(weight.dtype)

    @torch.no_grad()
    def unfold(self, weight: Tensor) -> None:
        """Restore the stored weight: subtracting would leave the last bits wrong."""
        assert self.base_weight is not None
        weight.copy_(self.base_weight)
        self.base_weight = None


def target_layers(model: nn.Module, fully_trained: Collection[str] = ()) -> dict[str, LinearLayer]:
    """The linear layers that can have a branch, by name.

    Excluded are layers whose weight another module shares (a tied head), layers of positions, whose weights are read
    without a call, and layers with a weight in `fully_trained`.
    """
    owners: dict[int, int] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    excluded = {
        id(part) for positions in model.modules() if isinstance(positions, Positions) for part in positions.modules()
    }
    return {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear | Int8Linear)
        and id(module) not in excluded
        and f"{path}.weight" not in fully_trained
        and (isinstance(module, Int8Linear) or owners[id(module.weight)] == 1)
    }


def install(model: nn.Module, settings: Lora, fully_trained: Collection[str] = ()) -> Injection:
    """Attach a branch to every linear layer whose name matches the pattern."""
    injection, layers = Injection("lora"), target_layers(model, fully_trained)
    if not layers:
        raise unsupported_tuning("lora", "it has no linear layer with a weight of its own")
    chosen = {path: layers[path] for path in matching_names(settings.pattern, layers)}
    for path, layer in chosen.items():  # check all before any changes
        if settings.rank > (limit := min(layer.in_features, layer.out_features)):
            raise UserError(
                f"tune.rank is {settings.rank}, above the {limit} that {path} ({layer.out_features} × "
                f"{layer.in_features}) allows; use less, or exclude that layer (tune.pattern)"
            )
    shape = settings.rank, settings.alpha, settings.dropout
    for path, layer in chosen.items():
        attach_branch(injection, path, layer, LoraBranch(layer.in_features, layer.out_features, *shape))
    return injection


def attach_branch(injection: Injection, path: str, layer: nn.Module, branch: LoraBranch) -> None:
    """Add a branch to the injection and to the output of its layer."""
    injection.attach(path, branch)
    injection.add_handles(layer.register_forward_hook(branch.add_to_output))


def branches(model: nn.Module) -> Iterator[tuple[str, LinearLayer, LoraBranch]]:
    """Every branch with its path and its linear layer."""
    injection = injection_of(model)
    for path, branch in injection.named_modules() if injection is not None else ():
        if isinstance(branch, LoraBranch):
            yield path, cast(LinearLayer, model.get_submodule(path)), branch


def merge(model: nn.Module) -> None:
    """Merge every branch into its layer."""
    if not (attached := list(branches(model))):
        raise UserError("only LoRA can be merged into a model and this one has none; tune with tune.kind=lora")
    if (injection := injection_of(model)) is not None and injection.shared:
        raise UserError("the base is shared with other loaded models, which a merge would change; load this one alone")
    for path, layer, _ in attached:
        if isinstance(layer, Int8Linear):
            raise UserError(f"{path} is stored in int8, which cannot be merged into; load it with precision=fp32")
    for _, layer, branch in attached:
        if branch.base_weight is None:
            branch.fold(layer.weight)


def unmerge(model: nn.Module) -> None:
    """Restore the weights of the base bit for bit."""
    for _, layer, branch in branches(model):
        if branch.base_weight is not None:
            branch.unfold(layer.weight)


@contextmanager
def merged(model: nn.Module) -> Iterator[None]:
    """In this context the branches are merged."""
    merge(model)
    try:
        yield
    finally:
        unmerge(model)
