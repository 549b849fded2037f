"""LoRA (2106.09685): beside a frozen linear map goes a path of low rank, up(down(x)) · alpha / rank; it alone learns.

`up` begins at zero, so the model begins as it was. Afterwards the path can be folded into the map: nothing is slower.
"""

import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..config.schema import Lora
from ..errors import UserError
from ..parts import Positions
from .injection import Injection, injection_of, matching, unsupported
from .precision import Int8Linear


class LoraBranch(nn.Module):
    """The path beside one map."""

    def __init__(self, inputs: int, outputs: int, rank: int, alpha: float, dropout: float = 0.0) -> None:
        super().__init__()
        self.down = nn.Parameter(nn.init.kaiming_uniform_(torch.empty(rank, inputs), a=math.sqrt(5)))
        self.up = nn.Parameter(torch.zeros(outputs, rank))
        self.scale, self.dropout = alpha / rank, nn.Dropout(dropout)
        self.plain: Tensor | None = None  # the map's own weight, while the path is folded into it

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.linear(self.dropout(x), self.down), self.up) * self.scale

    def beside(self, module: nn.Module, inputs: tuple[Any, ...], out: Tensor) -> Tensor:
        """A hook: what the map says, and what the path adds."""
        return out if self.plain is not None else out + self(inputs[0].to(self.down.dtype)).to(out.dtype)

    @torch.no_grad()
    def fold(self, weight: Tensor) -> None:
        self.plain = weight.detach().clone()
        weight += (self.up @ self.down * self.scale).to(weight.dtype)

    @torch.no_grad()
    def unfold(self, weight: Tensor) -> None:
        """Subtracting would leave the last bits wrong: the weight itself comes back."""
        assert self.plain is not None
        weight.copy_(self.plain)
        self.plain = None


def maps(model: nn.Module, whole: Collection[str] = ()) -> dict[str, Any]:
    """The linear maps that can have a path beside them, by name.

    Not one whose weight is another module's too (a tied head), nor those in positions, which read their weights
    without calling them, nor those in `whole`, which are trained themselves.
    """
    owners: dict[int, int] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    inside = {id(part) for each in model.modules() if isinstance(each, Positions) for part in each.modules()}
    return {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear | Int8Linear)
        and id(module) not in inside
        and f"{path}.weight" not in whole
        and (isinstance(module, Int8Linear) or owners[id(module.weight)] == 1)
    }


def install(model: nn.Module, settings: Lora, whole: Collection[str] = ()) -> Injection:
    """Put a path beside every map whose name fits the pattern."""
    graft, known = Injection("lora"), maps(model, whole)
    if not known:
        raise unsupported("lora", "it has no linear map that is its own")
    chosen = {path: known[path] for path in matching(settings.pattern, known)}
    for path, module in chosen.items():  # all of them, before any is touched
        if settings.rank > (least := min(module.in_features, module.out_features)):
            raise UserError(
                f"tune.rank is {settings.rank}, above the {least} that {path} ({module.out_features} × "
                f"{module.in_features}) can have; use less, or leave it out (tune.pattern)"
            )
    shape = settings.rank, settings.alpha, settings.dropout
    for path, module in chosen.items():
        beside(graft, path, module, LoraBranch(module.in_features, module.out_features, *shape))
    return graft


def beside(graft: Injection, path: str, module: nn.Module, side: LoraBranch) -> None:
    graft.attach(path, side)
    graft.hold(module.register_forward_hook(side.beside))


def sides(model: nn.Module) -> Iterator[tuple[str, Any, LoraBranch]]:
    """Every path with its name and the map it is beside."""
    graft = injection_of(model)
    for path, side in graft.named_modules() if graft is not None else ():
        if isinstance(side, LoraBranch):
            yield path, model.get_submodule(path), side


def merge(model: nn.Module) -> None:
    """Fold every path into its map."""
    if not (found := list(sides(model))):
        raise UserError("only LoRA can be folded into a model, and this one has none (tune.kind=lora)")
    if (graft := injection_of(model)) is not None and graft.shared:
        raise UserError(
            "others are loaded over the same base and would change with it; load this one by itself to merge"
        )
    for path, module, _ in found:
        if isinstance(module, Int8Linear):
            raise UserError(f"{path} is held in 8 bits and takes nothing in; load the model with precision=fp32")
    for _, module, side in found:
        if side.plain is None:
            side.fold(module.weight)


def unmerge(model: nn.Module) -> None:
    """Have the base's own weights again, to the bit."""
    for _, module, side in sides(model):
        if side.plain is not None:
            side.unfold(module.weight)


@contextmanager
def merged(model: nn.Module) -> Iterator[None]:
    """Inside, the paths are in the maps."""
    merge(model)
    try:
        yield
    finally:
        unmerge(model)
