"""Changes the precision of a finished model: bf16 stores and computes all in bfloat16, int8 linear layers only.

On a CPU, fp32 and bf16 linear layers get a second copy of their weights in oneDNN's fastest layout. On a GPU, the
query, key and value maps of self-attention get a fused copy, because one call costs less there than three.

int8 has a weight scale per output and an input scale per row, so that results are batch-invariant; outlier columns
have their own scales. Sums of products are integers: the same bits in every batch.
"""

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import UserError
from ..parts import Attention
from .outliers import outlier_columns

INT8_MAX = 127
MIN_INT8_SIZE = 32  # inputs or outputs: below, as in a head of two classes, int8 costs accuracy and saves nothing
MIN_PREPACK_NUMEL = 2**16  # weights from which a copy in oneDNN's layout pays: its call costs 7 µs more
PREPACK_ROWS = 80  # input rows that the layout is optimized for; other numbers gain nearly as much
MIN_PACKED_OUTPUTS = (
    4096  # from here a packed int8 weight pays: its call costs 30 µs more and runs 2 to 3 times as fast
)
ROW_PADDING = 64  # bytes between rows, so that rows of 2048 do not compete for the same cache lines


def apply_precision(model: nn.Module, precision: str, unconverted: Collection[str] = (), vocab: int = 0) -> nn.Module:
    """Change the precision of the model in place, for inference or as the frozen base of a tuning.

    With int8, embedding tables and the weights named in `unconverted` do not change. `vocab` is the vocabulary size, to
    find outlier columns; with 0 there are none.
    """
    if precision == "bf16":
        model.to(torch.bfloat16)
    if precision == "int8":
        if (device := next(model.parameters()).device).type != "cpu":
            raise UserError(f"precision=int8 runs on the CPU and the model is on {device}; use bf16, or set device=cpu")
        outliers = outlier_columns(model, vocab)
        for path, linear in [*model.named_modules()]:
            if (
                type(linear) is nn.Linear
                and min(linear.weight.shape) >= MIN_INT8_SIZE
                and f"{path}.weight" not in unconverted
            ):
                parent, _, name = path.rpartition(".")
                small = SplitInt8Linear(linear, outliers[path]) if path in outliers else Int8Linear(linear)
                setattr(model.get_submodule(parent), name, small)
    elif torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        for linear in model.modules():
            if type(linear) is nn.Linear and linear.weight.numel() >= MIN_PREPACK_NUMEL:
                linear.__class__ = PrepackedLinear
    for attention in model.modules() if any(weight.is_cuda for weight in model.parameters()) else ():
        if type(attention) is Attention:
            attention.__class__ = FusedQKVAttention
    return model


class FusedQKVAttention(Attention):
    """Attention with one fused query-key-value map, for inference of self-attention; otherwise the three maps."""

    _fused: tuple[tuple[object, ...], Tensor, Tensor | None] | None = None  # weight versions, fused weight and bias

    def project_qkv(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        maps = self.query, self.key, self.value
        plain = all(isinstance(linear, nn.Linear) and not linear._forward_hooks for linear in maps)  # no LoRA branches
        fusable = query is key and key is value and plain
        biases = [linear.bias for linear in maps if linear.bias is not None]
        if not fusable or torch.is_grad_enabled() or torch.is_autocast_enabled("cuda"):
            return super().project_qkv(query, key, value)
        version = (
            *((linear.weight.data_ptr(), linear.weight._version) for linear in maps),
            *(linear._version for linear in biases),
        )
        fused = self._fused  # read once: another thread may replace it
        if fused is None or fused[0] != version:
            weight = torch.cat([linear.weight.detach() for linear in maps])
            fused = version, weight, fused_bias(maps) if biases else None
            self._fused = fused
        qkv: Tensor = F.linear(query, fused[1], fused[2])
        q, k, v = qkv.split([linear.out_features for linear in maps], -1)  # type: ignore[no-untyped-call]
        return q, k, v

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_fused": None}  # a deep copy fuses its own


def fused_bias(maps: Sequence[nn.Linear]) -> Tensor:
    """The biases of all maps; zeros for a map without bias, such as the keys of Whisper."""
    return torch.cat(
        [
            linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias.detach()
            for linear in maps
        ]
    )


class PrepackedLinear(nn.Linear):
    """A linear layer that reorders its weights for oneDNN once, not at every call: 1.2 to 3 times as fast for few rows.

    With gradients, or not on a CPU, it is an ordinary linear layer. Changed weights are reordered again.
    """

    _prepacked: tuple[tuple[object, ...], Tensor] | None = None  # weight version, reordered weight

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight
        plain = torch.is_grad_enabled() or weight.device.type != "cpu" or x.dtype != weight.dtype or not x.numel()
        if plain or torch.compiler.is_compiling():
            return super().forward(x)
        version = weight.data_ptr(), weight._version, weight.dtype
        prepacked = self._prepacked  # read once: another thread may replace it
        if prepacked is None or prepacked[0] != version:
            prepacked = version, torch.ops.mkldnn._reorder_linear_weight(weight.detach(), PREPACK_ROWS)
            self._prepacked = prepacked
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, prepacked[1], self.bias, "none", [], "")
        return out

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_prepacked": None}  # a deep copy reorders its own


class Int8Linear(nn.Module):
    """A linear layer in int8. oneDNN, which is part of torch, multiplies with VNNI, AMX and the like.

    Its tensors are plain attributes: a buffer lookup takes longer than one operation on a single row.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach().float()
        self.out_features, self.in_features = weight.shape
        scale = weight.abs().amax(1).clamp(min=1e-12) / INT8_MAX
        table = (weight / scale[:, None]).round_().to(torch.int8)  # (outputs, inputs)
        bias = weight.new_zeros(self.out_features) if linear.bias is None else linear.bias.detach().float()
        self.scale, self.bias = scale / INT8_MAX, bias  # includes the 127 of the input row
        self.biased = linear.bias is not None
        self.packed: Tensor | None = None
        if self.out_features >= MIN_PACKED_OUTPUTS and torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            self.packed = torch.ops.onednn.qlinear_prepack(table, None)
            self.zero = torch.zeros(self.out_features, dtype=torch.int32)
        padded = torch.zeros(self.out_features, self.in_features + ROW_PADDING, dtype=torch.int8)
        padded[:, : self.in_features] = table
        self.table = padded[:, : self.in_features].t()  # (inputs, outputs)

    @property
    def weight(self) -> Tensor:
        """The dequantized weight."""
        return self.table.t() * (self.scale * INT8_MAX)[:, None]

    @torch.no_grad()
    def to_linear(self) -> nn.Linear:
        """An ordinary linear layer with the dequantized weight."""
        linear = nn.Linear(self.in_features, self.out_features, bias=self.biased)
        linear.weight.copy_(self.weight)
        if self.biased:
            linear.bias.copy_(self.bias)
        return linear

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad and torch.is_grad_enabled():
            return StraightThrough.apply(x, self)  # type: ignore[no-any-return, no-untyped-call]
        return self.multiply(x)

    def multiply(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features).float()  # bf16 would round the largest value out of range
        largest = rows.abs().amax(1, keepdim=True).clamp_min_(1e-12)
        quantized = (rows * (INT8_MAX / largest)).round_()
        if self.packed is not None:
            out = torch.addcmul(self.bias, self._multiply_packed(quantized), largest)
        else:
            out = torch._int_mm(quantized.to(torch.int8), self.table) * largest
            out.mul_(self.scale).add_(self.bias)  # with many rows, allocating would cost as much as the product
        return out.view(*x.shape[:-1], self.out_features).to(x.dtype)

    def _multiply_packed(self, quantized: Tensor) -> Tensor:
        shifted = quantized.add_(128).to(torch.uint8)  # the fast instructions take one unsigned operand
        product: Tensor = torch.ops.onednn.qlinear_pointwise(
            shifted, 1.0, 128, self.packed, self.scale, self.zero, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return product


class SplitInt8Linear(Int8Linear):
    """An int8 layer with a second int8 layer for its outlier columns, so that both have fine scales."""

    def __init__(self, linear: nn.Linear, outliers: Tensor) -> None:
        weight = linear.weight.detach()
        apart = nn.Linear(len(outliers), linear.out_features, bias=False, device="meta")
        apart.weight = nn.Parameter(weight[:, outliers], requires_grad=False)
        rest = nn.Linear(linear.in_features, linear.out_features, bias=False, device="meta")
        rest.weight, rest.bias = nn.Parameter(weight.index_fill(1, outliers, 0), requires_grad=False), linear.bias
        super().__init__(rest)
        self.outliers, self.parts = outliers, (Int8Linear(apart),)  # a tuple: passes over modules see one layer

    @property
    def weight(self) -> Tensor:
        return super().weight.index_copy(1, self.outliers, self.parts[0].weight)

    def multiply(self, x: Tensor) -> Tensor:
        inputs = x.float()
        out = (
            super()
            .multiply(inputs.index_fill(-1, self.outliers, 0))
            .add_(self.parts[0].multiply(inputs[..., self.outliers]))
        )
        return out.to(x.dtype)


class StraightThrough(torch.autograd.Function):
    """An int8 product with the gradient of the unrounded one, so that the layers below can be trained."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Int8Linear) -> Tensor:
        ctx.own = layer
        return layer.multiply(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] @ ctx.own.weight.to(gradients[0].dtype), None
