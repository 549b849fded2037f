"""Optimizer, autocast, compilation, determinism, seeding and gradient clipping."""

import os
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar, cast

import numpy
import torch
from torch import Tensor, nn

from ..config.schema import Optimizer
from ..errors import UserError

Forward = TypeVar("Forward", bound=Callable[..., object])


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """bf16: matrix products in bfloat16; sensitive operations and the weights stay in float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")


def compile_forward(forward: Forward, static_shapes: bool, device: torch.device) -> Forward:
    """Compile an objective. With static shapes only for these, and on a GPU it is captured as a CUDA graph."""
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


def build_optimizer(model: nn.Module, settings: Optimizer) -> torch.optim.Adam:
    """Build Adam or AdamW over the trainable parameters.

    Weight decay applies to tensors of two dimensions or more (matrices and embeddings), not to norms and biases.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise UserError("the model has nothing to train: every parameter is frozen; unfreeze some")
    groups = [
        {"params": [each for each in trained if each.dim() >= 2], "weight_decay": settings.decay},
        {"params": [each for each in trained if each.dim() < 2], "weight_decay": 0.0},
    ]
    kind = torch.optim.AdamW if settings.kind == "adamw" else torch.optim.Adam
    return kind([group for group in groups if group["params"]], betas=settings.betas, eps=settings.eps, fused=True)


def clip_gradients(parameters: list[nn.Parameter], limit: float) -> Tensor:
    """Scale all gradients down to a total norm of `limit` (0: no clipping) and return the norm before clipping."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    if limit:
        torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)
    return norm
