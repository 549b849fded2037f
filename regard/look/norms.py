"""Norm-weighted attention (Kobayashi et al. 2020, 2004.10102): ‖α f(x)‖ instead of the weight α.

f(x) is the contribution of a head to the output for a key x: its value times the output projection. A large weight on
a short vector counts little.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..adapt.heads import HeadSite, head_sites
from ..errors import UserError
from ..parts import Attention, Mask
from ..parts.kernels import repeat_heads


def value_norms(values: Tensor, out: Tensor) -> Tensor:
    """‖f(x)‖, (batch, heads, keys), of values (batch, heads, keys, head_width) and the output weight (width, …)."""
    heads = torch.unflatten(out, 1, (values.size(1), -1)).permute(1, 2, 0)  # (heads, head_width, width)
    gram = heads @ heads.transpose(1, 2)  # ‖v W‖² = v (W Wᵀ) vᵀ: no vector of the full width is needed
    squares = ((values @ gram) * values).sum(-1)
    return squares.clamp(min=0).sqrt()


def weigh_by_norm(model: nn.Module, relative: bool = True) -> nn.Module:
    """Let recorders of this model record ‖α f(x)‖; with `relative`, every row is divided by its sum.

    It attaches hooks and replaces a method, so it needs a copy of the model (`shared_copy`).
    """
    for site in head_sites(model):
        if not isinstance(site.out, nn.Linear):
            raise UserError("norm-weighted attention needs output projections in fp32 or bf16; use precision=fp32")
        for attention in site.parts.values():
            _weigh(attention, site, relative)
    return model


def _weigh(attention: Attention, site: HeadSite, relative: bool) -> None:
    cached: dict[str, Tensor] = {}
    plain: Callable[[Tensor, Tensor, Mask, Tensor | None], Tensor] = attention.weights

    def remember(module: nn.Module, inputs: tuple[Any, ...], values: Tensor) -> None:
        cached["values"] = values

    def weights(q: Tensor, k: Tensor, mask: Mask, bias: Tensor | None) -> Tensor:
        values = repeat_heads(attention.split_heads(cached.pop("values")), q.size(1))
        assert isinstance(site.out, nn.Linear)
        norms = plain(q, k, mask, bias).abs() * value_norms(values, site.out.weight)[:, :, None]
        return norms / norms.sum(-1, keepdim=True).clamp(min=1e-12) if relative else norms

    attention.value.register_forward_hook(remember)
    attention.weights = weights  # type: ignore[method-assign]
