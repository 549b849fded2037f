"""A micro-batch: the fields of some examples as tensors."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from ..parts.inputs import Inputs


@dataclass(frozen=True, eq=False)
class Batch:
    """Fields by name. All examples of a batch have the same tensor kind in a field.

    `count` divides the summed loss, over all micro-batches of a step. It depends on the data alone (predicted tokens,
    labels, boxes), so it is known before the model runs and without waiting for the device.
    """

    inputs: Mapping[str, Inputs]
    count: int
    number: int = 0  # index of the micro-batch in its step, over all processes
    examples: tuple[int, ...] = ()  # indices in the data set
    counted: bool = True  # False: a process that has no micro-batch left repeats one with weight zero
    counts: Mapping[str, int] = field(default_factory=dict)  # divisors of further terms of the loss, by name

    def __getitem__(self, name: str) -> Inputs:
        return self.inputs[name]

    def __contains__(self, name: str) -> bool:
        return name in self.inputs

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Batch":
        """The batch on a device."""
        return replace(self, inputs={name: tensors.to(device, non_blocking) for name, tensors in self.inputs.items()})

    def pin(self) -> "Batch":
        """The batch in pinned memory: see `Inputs.pin`."""
        return replace(self, inputs={name: tensors.pin() for name, tensors in self.inputs.items()})
