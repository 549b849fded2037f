"""Optimizer, autocast, compilation, determinism, seeding and gradient clipping."""

import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar, cast

import numpy
import torch
from torch import Tensor, nn

from ..adapt.freeze import rate_factors
from ..config.train import Optimizer
from ..errors import UserError
from ..parts import Stack

Forward = TypeVar("Forward", bound=Callable[..., object])


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """bf16: matrix products in bfloat16; sensitive operations and the weights stay in float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")


def compile_forward(forward: Forward, static_shapes: bool, device: torch.device) -> Forward:
    """Compile an objective. With static shapes it is compiled for these only; on a GPU, as a CUDA graph."""
    if not static_shapes:
        return cast(Forward, torch.compile(forward, dynamic=True))
    mode = "reduce-overhead" if device.type == "cuda" else None
    return cast(Forward, torch.compile(forward, dynamic=False, mode=mode))


@contextmanager
def deterministic(enabled: bool) -> Iterator[None]:
    """Use only bit-reproducible algorithms; torch raises an error for an operation that has none."""
    before = torch.are_deterministic_algorithms_enabled()
    if enabled:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # otherwise cuBLAS chooses by free memory
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def seed_everything(number: int) -> None:
    """Seed every random generator that a model or a task may use."""
    random.seed(number)
    numpy.random.seed(number % 2**32)
    torch.manual_seed(number)


def build_optimizer(model: nn.Module, settings: Optimizer, rates: Sequence[str] = ()) -> torch.optim.Adam:
    """Build Adam or AdamW over the trainable parameters.

    Weight decay applies to tensors of two dimensions or more (matrices and embeddings), not to norms, biases and
    parameters in `no_decay` of a module. The learning rate of a group is that of the schedule times its `rate_scale`,
    which depends on the layer and on train.rates.
    """
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not trained:
        raise UserError("the model has nothing to train: every parameter is frozen; unfreeze some")
    modules = model.named_modules()
    undecayed = {f"{place}.{name}".lstrip(".") for place, module in modules for name in getattr(module, "no_decay", ())}
    scales, factors = rate_scales(model, settings.layer_decay), rate_factors(model, rates)
    scales = {name: scale * factors.get(name, 1.0) for name, scale in scales.items()}
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in trained.items():
        decay = settings.decay if parameter.dim() >= 2 and name not in undecayed else 0.0
        groups.setdefault((scales[name], decay), []).append(parameter)
    optimizer_class = torch.optim.AdamW if settings.kind == "adamw" else torch.optim.Adam
    options = [
        {"params": parameters, "weight_decay": decay, "rate_scale": scale}
        for (scale, decay), parameters in groups.items()
    ]
    return optimizer_class(options, betas=settings.betas, eps=settings.eps, fused=True)


def rate_scales(model: nn.Module, decay: float) -> dict[str, float]:
    """The factor of the learning rate for every parameter by name: 1 at the top, times `decay` for each layer below.

    The layers are those of the model's stacks in order. Parameters before them, such as embeddings, count as one layer.
    """
    layers = layer_prefixes(model)
    if decay < 1 and not layers:
        raise UserError(
            f"train.optimizer.layer_decay is {decay:g}, but the model has no stack of layers; scale the rates of its "
            "parts with train.rates=PATTERN:FACTOR"
        )
    scales, before = dict[str, float](), 0
    for name, _ in model.named_parameters():
        layer_number = next((number for number, layer in enumerate(layers, 1) if name.startswith(layer)), None)
        before = layer_number or before  # parameters between layers have the rate of the layer before them
        depth = before if layer_number or before < len(layers) else len(layers) + 1
        scales[name] = decay ** (len(layers) + 1 - depth)
    return scales


def layer_prefixes(model: nn.Module) -> list[str]:
    """The prefixes of the parameter names of each layer, the lowest first.

    Layers are those of a Stack; in a model without one, the members of lists of modules of one class.
    """
    stacks = [f"{name}.layers." for name, module in model.named_modules() if isinstance(module, Stack)]
    if not stacks:
        stacks = [f"{name}." for name, module in model.named_modules() if _is_layer_list(module)]
    stacks = [prefix.lstrip(".") for prefix in stacks]
    outer = [prefix for prefix in stacks if not any(prefix != other and prefix.startswith(other) for other in stacks)]
    modules = dict(model.named_modules())
    return [
        f"{prefix}{number}."
        for prefix in outer
        for number in range(len(cast(nn.ModuleList, modules[prefix.rstrip(".")])))
    ]


def _is_layer_list(part: nn.Module) -> bool:
    if not isinstance(part, nn.ModuleList | nn.Sequential) or len(part) < 2:
        return False
    return len({type(item) for item in part}) == 1 and all(any(True for _ in item.parameters()) for item in part)


def clip_gradients(parameters: list[nn.Parameter], limit: float) -> Tensor:
    """Scale all gradients down to a total norm of `limit` (0: no clipping) and return the norm before clipping."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    if limit:
        torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)
    return norm
