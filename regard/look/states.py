"""Record the hidden states of a finished model, layer by layer."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import torch
from torch import Tensor

from ..errors import UserError
from ..parts import Inputs, Stack
from ..parts.recording import STATE_RECORDER

Layers: TypeAlias = int | Sequence[int] | None  # 0: the input of the first layer; -1: the last; None: all


@contextmanager
def record_states() -> Iterator[dict[Stack, dict[int, Tensor]]]:
    """In this context the dict collects the states (batch, tokens, width) of every stack by layer number.

    0 is the input of the first layer. The last layer has passed the final norm, if the stack has one.
    """
    states_of: dict[Stack, dict[int, Tensor]] = {}

    def record(stack: Stack, layer: int, states: Tensor) -> None:
        states_of.setdefault(stack, {})[layer] = states.detach()

    token = STATE_RECORDER.set(record)
    try:
        yield states_of
    finally:
        STATE_RECORDER.reset(token)


@torch.no_grad()
def hidden_states(
    inputs: Sequence[Inputs], read: Callable[[Inputs], object], layers: Layers, batch: int
) -> list[Tensor]:
    """The states of every input, in order: (layers, tokens, width), or (tokens, width) if `layers` is a number.

    `read` runs the model. Inputs of equal shape share a batch: without padding, states do not depend on the batch.
    """
    states: dict[int, Tensor] = {}
    groups: dict[torch.Size, list[int]] = {}
    for place, entry in enumerate(inputs):
        groups.setdefault(entry.values.shape, []).append(place)
    for places in groups.values():
        for some in (places[first : first + batch] for first in range(0, len(places), batch)):
            values = torch.cat([inputs[place].values for place in some])
            with record_states() as stacks:
                read(Inputs(inputs[some[0]].modality, values))
            if not stacks:
                raise UserError("this model has no stack of layers, so its hidden states cannot be told apart")
            layer_states = [*stacks.values()][-1]  # a decoder runs after its encoder
            rows = torch.stack(
                [layer_states[layer].float().cpu() for layer in chosen_layers(layers, max(layer_states))], 1
            )
            tokens = values.shape[1] if inputs[some[0]].modality == "tokens" else rows.shape[2]
            states |= zip(some, rows[:, :, rows.shape[2] - tokens :], strict=True)  # without virtual tokens before
    return [states[place][0] if isinstance(layers, int) else states[place] for place in range(len(inputs))]


def chosen_layers(layers: Layers, last: int) -> list[int]:
    """The numbers of layers, from 0 to `last`."""
    numbers = range(last + 1) if layers is None else [layers] if isinstance(layers, int) else layers
    for number in numbers:
        if not isinstance(number, int) or not -last - 1 <= number <= last:
            raise UserError(
                f"layers has {number!r}; expected numbers from 0 (the embeddings) to {last}, or from -1, the last layer"
            )
    return [number % (last + 1) for number in numbers]
