"""Outlier columns: inputs of a linear layer that are far larger than its others, in every text.

Large pretrained models have a few (LLM.int8(), 2208.07339). In int8, one scale for the whole row would round the other
inputs to almost zero, so these columns get their own scale. They depend on the weights alone: they are found with one
fixed row of random tokens.
"""

from inspect import signature

import torch
from torch import Tensor, nn

from ..parts import Inputs
from ..parts.layer import smallest_context

TOKENS = 16
FACTOR = 8  # times the mean magnitude of the median column
GAIN = 2  # times the largest value elsewhere: a separate scale then gains one bit for the others
MAX_SHARE = 1 / 32  # of the columns of a layer: if more exceed FACTOR, none is an outlier


@torch.no_grad()
def outlier_columns(model: nn.Module, vocab: int) -> dict[str, Tensor]:
    """The outlier columns of linear layers by their path, for a model that reads `vocab` tokens."""
    outliers: dict[str, Tensor] = {}
    texts = random_inputs(model, vocab, 1, min(TOKENS, smallest_context(model) or TOKENS)) if vocab else []
    if not texts:
        return outliers

    def watch(path: str, module: nn.Module) -> torch.utils.hooks.RemovableHandle:
        def note(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            rows = inputs[0].reshape(-1, inputs[0].size(-1)).abs()
            mean, largest = rows.mean(0), rows.amax(0)
            outlying = mean > FACTOR * mean.median()
            if 0 < outlying.sum() <= MAX_SHARE * len(mean) and largest.max() > GAIN * largest[~outlying].max():
                outliers[path] = outlying.nonzero().flatten()

        return module.register_forward_pre_hook(note)

    hooks = [watch(path, module) for path, module in model.named_modules() if isinstance(module, nn.Linear)]
    training = model.training
    try:
        model.eval()(*texts)
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return outliers


def smallest_vocab(c: object) -> int:
    """The number of tokens that all vocabularies of a model have; 0 if it reads none."""
    return min((size for name in ("vocab", "target_vocab") if (size := getattr(c, name, 0))), default=0)


def random_inputs(model: nn.Module, vocab: int, rows: int, tokens: int) -> list[Inputs]:
    """Random tokens for every input of `forward`; none if `forward` does not take Inputs.

    A model of images has its own `random_inputs`.
    """
    if make := getattr(model, "random_inputs", None):
        inputs: list[Inputs] = make(rows)
        return inputs
    parameters = signature(model.forward).parameters.values()
    required = [parameter for parameter in parameters if parameter.default is parameter.empty]
    if not all(parameter.annotation in (Inputs, "Inputs") for parameter in required):
        return []
    generator = torch.Generator().manual_seed(1)
    return [Inputs("tokens", torch.randint(vocab, (rows, tokens), generator=generator)) for _ in required]
