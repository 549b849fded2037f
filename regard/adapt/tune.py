"""Tuning as a pass over a finished model: freeze it, put small parts into it, train and keep only those.

Where a task needs a head that the base has not, the head is trained and kept with them (`whole`).
"""

from collections.abc import Collection, Sequence
from typing import Any

from torch import nn

from ..config.schema import Adapter, Lora, Prefix, Prompt
from ..errors import UserError
from . import adapters, lora, prompts
from .injection import NAME, Injection, injection_of


def attach(model: nn.Module, settings: Any, whole: Collection[str] = (), words: Sequence[int] = ()) -> nn.Module:
    """Change the model in place: its parameters are frozen but for `whole`, and new ones hang beside them.

    `words` are the tokens that a prompt or prefix may begin with.
    """
    _refuse_second(model)
    return plant(model, _installed(model, settings, whole, words), whole)


def plant(model: nn.Module, graft: Injection, whole: Collection[str] = ()) -> nn.Module:
    """Let a graft that is connected belong to the model, and freeze the rest."""
    _refuse_second(model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in whole)
    graft.to(next(model.parameters()).device).train(model.training)
    model.add_module(NAME, graft)
    return model


def _refuse_second(model: nn.Module) -> None:
    if (found := injection_of(model)) is not None:
        raise UserError(
            f"the model is tuned by {found.kind} already; one module takes one method, so detach that first"
        )


def _installed(model: nn.Module, settings: Any, whole: Collection[str], words: Sequence[int]) -> Any:
    match settings:
        case Lora():
            return lora.install(model, settings, whole)
        case Adapter():
            return adapters.install(model, settings)
        case Prompt():
            return prompts.install_prompt(model, settings, words)
        case Prefix():
            return prompts.install_prefix(model, settings, words)
    raise AssertionError(f"no pass for {settings}")


def detach(model: nn.Module) -> nn.Module:
    """The base as it was, bit for bit; its parameters can be trained again."""
    lora.unmerge(model)
    if (graft := injection_of(model)) is not None:
        graft.remove(model)
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    return model


def keep_merged(model: nn.Module) -> nn.Module:
    """Let what was folded into the base stay there: the model is a whole one."""
    for _, _, side in lora.sides(model):
        side.plain = None
    return detach(model)


def told(model: nn.Module, kind: str, every: int) -> str:
    """How much of `every` number of the base and its heads is trained, and what that saves."""
    own = sum(each.numel() for each in model.parameters() if each.requires_grad)
    return (
        f"tune: {kind} trains {own:,} numbers beside the {every:,} of the model ({100 * own / every:.2f} %); gradients "
        f"and optimizer take {mebibytes(own):,.1f} MiB and not {mebibytes(every):,.1f}"
    )


def mebibytes(numbers: int) -> float:
    """Of a gradient and Adam's two means, in fp32."""
    return 3 * 4 * numbers / 2**20
