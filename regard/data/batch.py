"""A micro-batch: the fields of some examples as tensors."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from ..parts.inputs import Inputs


@dataclass(frozen=True, eq=False)
class Batch:
    """Fields by name. In one batch a field has one modality.

    `count` is what the summed loss is divided by, over all micro-batches of a step. It is a number of the data alone
    (predicted tokens, labels, boxes), so that it is known before the model runs and without waiting for the device.
    """

    inputs: Mapping[str, Inputs]
    count: int
    number: int = 0  # of the micro-batch in its step, over all processes
    examples: tuple[int, ...] = ()  # indices in the data set
    counted: bool = True  # False: a process without a micro-batch of its own repeats one, times zero
    counts: Mapping[str, int] = field(default_factory=dict)  # of further terms of the loss, by name

    def __getitem__(self, name: str) -> Inputs:
        return self.inputs[name]

    def __contains__(self, name: str) -> bool:
        return name in self.inputs

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Batch":
        """The batch on a device."""
        return replace(self, inputs={name: each.to(device, non_blocking) for name, each in self.inputs.items()})

    def pin(self) -> "Batch":
        """The batch in pinned memory: see `Inputs.pin`."""
        return replace(self, inputs={name: each.pin() for name, each in self.inputs.items()})
