"""Parameter-efficient tuning as a pass over a finished model: freeze it, inject small modules, train only these.

A new head that the base lacks is trained and saved with them (`fully_trained`).
"""

from collections.abc import Collection, Sequence

from torch import nn

from ..config.tuning import Adapter, Lora, Prefix, Prompt
from ..errors import UserError
from . import adapters, lora, prefix_tuning, prompt_tuning
from .injection import TUNE_MODULE, Injection, injection_of


def attach(
    model: nn.Module, settings: object, fully_trained: Collection[str] = (), init_tokens: Sequence[int] = ()
) -> nn.Module:
    """Inject the method of `settings` into the model in place. All parameters but `fully_trained` are frozen.

    A prompt or a prefix starts from `init_tokens`.
    """
    _check_untuned(model)
    return attach_injection(model, _install(model, settings, fully_trained, init_tokens), fully_trained)


def attach_injection(model: nn.Module, injection: Injection, fully_trained: Collection[str] = ()) -> nn.Module:
    """Make an installed injection a child of the model, and freeze the rest."""
    _check_untuned(model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in fully_trained)
    injection.to(next(model.parameters()).device).train(model.training)
    model.add_module(TUNE_MODULE, injection)
    return model


def _check_untuned(model: nn.Module) -> None:
    if (injection := injection_of(model)) is not None:
        raise UserError(f"the model is tuned with {injection.kind} already; detach that first")


def _install(
    model: nn.Module, settings: object, fully_trained: Collection[str], init_tokens: Sequence[int]
) -> Injection:
    match settings:
        case Lora():
            return lora.install(model, settings, fully_trained)
        case Adapter():
            return adapters.install(model, settings)
        case Prompt():
            return prompt_tuning.install(model, settings, init_tokens)
        case Prefix():
            return prefix_tuning.install(model, settings, init_tokens)
    raise AssertionError(f"no tuning method for {settings}")


def detach(model: nn.Module) -> nn.Module:
    """Restore the base bit for bit, with all its parameters trainable."""
    lora.unmerge(model)
    if (injection := injection_of(model)) is not None:
        injection.remove(model)
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    return model


def keep_merged(model: nn.Module) -> nn.Module:
    """Make a merge permanent: the model becomes an ordinary one without branches."""
    for _, _, branch in lora.branches(model):
        branch.base_weight = None
    return detach(model)


def describe_tuning(model: nn.Module, kind: str, base_parameters: int) -> str:
    """A sentence about the number of trained parameters, the total, and the memory that tuning saves."""
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return (
        f"tune: {kind} trains {trained:,} parameters of a model of {base_parameters:,} "
        f"({100 * trained / base_parameters:.2f} %); gradients and optimizer take "
        f"{optimizer_mebibytes(trained):,.1f} MiB instead of {optimizer_mebibytes(base_parameters):,.1f}"
    )


def optimizer_mebibytes(parameters: int) -> float:
    """The size of the gradients and Adam's two moments, in fp32."""
    return 3 * 4 * parameters / 2**20
