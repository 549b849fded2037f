"""Precision as a pass over a finished model: bf16 holds and computes everything in bfloat16, int8 the linear maps.

On a CPU the maps of fp32 and bf16 get a second copy of their weights, laid out as oneDNN reads them fastest; on a GPU
the three maps of self-attention get one, side by side, for one call costs less there than three.

int8 keeps a scale for every output of a map, and one is found for every row of its input when it comes, so that a row's
result does not depend on the rows beside it. Sums of products are whole numbers: the same bits in every batch.
"""

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import UserError
from ..parts import Attention

STEPS = 127  # of an int8 on either side of zero
SMALLEST = 32  # inputs or outputs: below, as in a head of two classes, int8 would cost exactness and save nothing
LARGE = 2**16  # numbers in a map from which a copy laid out for oneDNN pays: its call costs 7 µs more
ROWS = 80  # of the input, for which it is laid out; other numbers gain nearly as much
MANY = 4096  # outputs from which a packed copy pays: its call costs 30 µs more, and then runs 2 to 3 times as fast
SPACING = 64  # bytes between rows, so that rows of 2048 do not compete for the same lines of the cache


def apply(model: nn.Module, precision: str, kept: Collection[str] = ()) -> nn.Module:
    """Change the model in place; for use, or as the frozen base of what is trained beside it. What a table is read from
    for embedding stays as it is, and so do weights whose names are in `kept`."""
    if precision == "bf16":
        model.to(torch.bfloat16)
    if precision == "int8":
        if (device := next(model.parameters()).device).type != "cpu":
            raise UserError(f"precision=int8 runs on the CPU and the model is on {device}; use bf16, or set device=cpu")
        for path, linear in [*model.named_modules()]:
            if type(linear) is nn.Linear and min(linear.weight.shape) >= SMALLEST and f"{path}.weight" not in kept:
                parent, _, name = path.rpartition(".")
                setattr(model.get_submodule(parent), name, Int8Linear(linear))
    elif torch.backends.mkldnn.is_available():
        for linear in model.modules():
            if type(linear) is nn.Linear and linear.weight.numel() >= LARGE:
                linear.__class__ = PrepackedLinear
    for attention in model.modules() if any(each.is_cuda for each in model.parameters()) else ():
        if type(attention) is Attention:
            attention.__class__ = FusedQKVAttention
    return model


class FusedQKVAttention(Attention):
    """The same attention; where query, key and value come from one input, and nothing is learnt, their maps are one."""

    _laid: tuple[Any, Tensor, Tensor | None] | None = None  # what the weights were, and their copy side by side

    def project_all(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        maps = self.query, self.key, self.value
        plain = all(
            isinstance(each, nn.Linear) and not each._forward_hooks for each in maps
        )  # nothing goes beside them
        alike = query is key and key is value and plain
        biases = [each.bias for each in maps if each.bias is not None]
        if not alike or len(biases) not in (0, 3) or torch.is_grad_enabled() or torch.is_autocast_enabled("cuda"):
            return super().project_all(query, key, value)
        state = *((each.weight.data_ptr(), each.weight._version) for each in maps), *(each._version for each in biases)
        if self._laid is None or self._laid[0] != state:
            weight = torch.cat([each.weight.detach() for each in maps])
            self._laid = state, weight, torch.cat([each.detach() for each in biases]) if biases else None
        both: Tensor = F.linear(query, self._laid[1], self._laid[2])
        q, k, v = both.split([each.out_features for each in maps], -1)
        return q, k, v

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_laid": None}  # a deep copy lays out its own


class PrepackedLinear(nn.Linear):
    """The same map, a fifth to three times as fast with few rows: its weights are laid out once and not at every call.

    Everything else about it stays an ordinary map: with gradients or elsewhere than on the CPU it is just that, and
    weights that have been changed are laid out again.
    """

    _laid: tuple[Any, Tensor] | None = None  # what the weights were, and their copy

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight
        plain = torch.is_grad_enabled() or weight.device.type != "cpu" or x.dtype != weight.dtype or not x.numel()
        if plain or torch.compiler.is_compiling():
            return super().forward(x)
        state = weight.data_ptr(), weight._version, weight.dtype
        if self._laid is None or self._laid[0] != state:
            self._laid = state, torch.ops.mkldnn._reorder_linear_weight(weight.detach(), ROWS)
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._laid[1], self.bias, "none", [], "")
        return out

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_laid": None}  # a deep copy lays out its own


class Int8Linear(nn.Module):
    """A linear map in int8. VNNI, AMX and their like multiply by way of oneDNN, which torch carries.

    Its tensors are plain attributes: looking a buffer up takes longer than a step of the arithmetic on a single row.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach().float()
        self.out_features, self.in_features = weight.shape
        steps = weight.abs().amax(1).clamp(min=1e-12) / STEPS
        table = (weight / steps[:, None]).round().to(torch.int8)  # (outputs, inputs)
        bias = weight.new_zeros(self.out_features) if linear.bias is None else linear.bias.detach().float()
        self.scale, self.bias = steps / STEPS, bias  # the row's own 127 is in the scale, too
        self.biased = linear.bias is not None
        self.packed: Any = None
        if self.out_features >= MANY and torch.backends.mkldnn.is_available():
            self.packed = torch.ops.onednn.qlinear_prepack(table, None)
            self.zero = torch.zeros(self.out_features, dtype=torch.int32)
        spaced = torch.zeros(self.out_features, self.in_features + SPACING, dtype=torch.int8)
        spaced[:, : self.in_features] = table
        self.table = spaced[:, : self.in_features].t()  # (inputs, outputs)

    @property
    def weight(self) -> Tensor:
        """What the map multiplies by, in floating point."""
        return self.table.t() * (self.scale * STEPS)[:, None]

    @torch.no_grad()
    def exact(self) -> nn.Linear:
        """A map in its place that can have weights of its own; it begins with these."""
        made = nn.Linear(self.in_features, self.out_features, bias=self.biased)
        made.weight.copy_(self.weight)
        if self.biased:
            made.bias.copy_(self.bias)
        return made

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad and torch.is_grad_enabled():
            return StraightThrough.apply(x, self)  # type: ignore[no-any-return, no-untyped-call]
        return self.multiplied(x)

    def multiplied(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features).float()  # bf16 would round the largest up, out of range
        largest = rows.abs().amax(1, keepdim=True).clamp_min_(1e-12)
        whole = (rows * (STEPS / largest)).round_()
        if self.packed is not None:
            out = torch.addcmul(self.bias, self._packed(whole), largest)
        else:
            out = torch._int_mm(whole.to(torch.int8), self.table) * largest
            out.mul_(self.scale).add_(self.bias)  # with many rows, new memory would cost as much as the product
        return out.view(*x.shape[:-1], self.out_features).to(x.dtype)

    def _packed(self, whole: Tensor) -> Tensor:
        shifted = whole.add_(128).to(torch.uint8)  # the quick instructions take one side without a sign
        return torch.ops.onednn.qlinear_pointwise(
            shifted, 1.0, 128, self.packed, self.scale, self.zero, None, 1.0, 0, torch.float32, "none", [], ""
        )


class StraightThrough(torch.autograd.Function):
    """The map with a gradient for its input, as if nothing were rounded: so what lies below it can learn."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, own: Int8Linear) -> Tensor:
        ctx.own = own
        return own.multiplied(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] @ ctx.own.weight.to(gradients[0].dtype), None
