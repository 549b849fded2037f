"""Where and with what an update is computed: the device, its arithmetic, the optimizer, the gradient norm."""

import os
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import numpy
import torch
from torch import Tensor, nn

from ..config.schema import Optimizer
from ..errors import UserError


def autocast(where: torch.device, precision: str) -> AbstractContextManager[object]:
    """bf16: products in bfloat16, everything delicate and the weights themselves in float32."""
    return torch.autocast(where.type, torch.bfloat16, enabled=precision == "bf16")


def compile_loss(loss: Callable[..., Tensor], steady: bool, where: torch.device) -> Callable[..., Tensor]:
    """The loss, compiled; where shapes are steady, for them alone, and on a GPU recorded as a CUDA graph besides."""
    if not steady:
        return torch.compile(loss, dynamic=True)
    return torch.compile(loss, dynamic=False, mode="reduce-overhead" if where.type == "cuda" else None)


@contextmanager
def determinism(wanted: bool) -> Iterator[None]:
    """Only algorithms that give the same bits each time; torch refuses by name an operation that has none."""
    before = torch.are_deterministic_algorithms_enabled()
    if wanted:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS may choose by what is free
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def seed_everything(number: int) -> None:
    """Start every random generator that a model or a task may draw from."""
    random.seed(number)
    numpy.random.seed(number % 2**32)
    torch.manual_seed(number)


def build_optimizer(model: nn.Module, settings: Optimizer) -> torch.optim.Adam:
    """Adam or AdamW over what is trained.

    Weight decay falls on tensors of two dimensions or more (matrices, embeddings too), not on norms and biases.
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
    """The norm of all gradients together, which are scaled down to `limit` where it is larger (0: never)."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    if limit:
        torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)
    return norm
