"""Prompts and prefixes of PEFT folders: one tensor of vectors, which regard keeps per layer, key and value."""

from pathlib import Path

import torch
from torch import Tensor, nn

from ...adapt import tune
from ...adapt.injection import injection_of
from ...adapt.prefix_tuning import PrefixParameters
from ...adapt.prompt_tuning import PromptTuning
from ...config.tuning import Prefix, Prompt
from ...errors import UserError
from ...parts.layer import smallest_context
from .names import WEIGHTS

VECTORS = "prompt_embeddings"


@torch.no_grad()
def load_virtual_tokens(
    model: nn.Module, kind: str, folder: Path, tensors: dict[str, Tensor], count: object
) -> Prompt | Prefix:
    """Attach a prompt or prefix. For an encoder-decoder PEFT stores two prompts and uses the first `count` vectors."""
    if set(tensors) != {VECTORS}:
        raise UserError(f"{folder / WEIGHTS} holds {', '.join(sorted(tensors)[:3])}; expected {VECTORS} alone")
    vectors = tensors[VECTORS]
    if type(count) is not int or count < 1 or vectors.dim() != 2 or len(vectors) < count:
        raise UserError(f"{folder}: {VECTORS} is {tuple(vectors.shape)}; expected num_virtual_tokens ({count!r}) rows")
    vectors = vectors[:count]
    if (context := smallest_context(model)) is not None and count >= context:
        raise UserError(
            f"{folder} has {count} virtual tokens, and this base has {context} positions in all; use a longer base"
        )
    settings = (Prompt if kind == "prompt" else Prefix)(length=len(vectors))
    tune.attach(model, settings)
    parameters = _virtual_token_parameters(model)
    if vectors.size(1) != (width := sum(parameter.numel() for parameter in parameters) // len(vectors)):
        tune.detach(model)
        raise UserError(
            f"{folder}: {VECTORS} is {vectors.size(1)} wide and this base needs {width}; "
            "use the base that it was trained on"
        )
    for parameter, part in zip(parameters, vectors.chunk(len(parameters), 1), strict=True):
        parameter.copy_(part if kind == "prompt" else _split_heads(part, parameter))
    return settings


def _virtual_token_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The vectors of a prompt, or the keys and values of a prefix, layer by layer."""
    if isinstance(injection := injection_of(model), PromptTuning):
        return [injection.vectors]
    layers = [module for module in model.modules() if isinstance(module, PrefixParameters)]
    return [half for layer in layers for half in (layer.key, layer.value)]


def _split_heads(part: Tensor, like: Tensor) -> Tensor:
    """(length, heads · head_width) → (heads, length, head_width)"""
    return part.view(len(part), like.size(0), -1).transpose(0, 1)


def virtual_tokens(model: nn.Module) -> dict[str, Tensor]:
    """The tensor of a prompt or prefix."""
    parts = _virtual_token_parameters(model)
    vectors = [parameter if parameter.dim() == 2 else parameter.transpose(0, 1).flatten(1) for parameter in parts]
    return {VECTORS: torch.cat(vectors, 1)}
