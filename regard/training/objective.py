"""Objectives: the modules that the training loop runs, and that compile, DDP and FSDP wrap."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from torch import Tensor, nn

from ..data.batch import Batch


@dataclass(frozen=True, eq=False)
class LossSum:
    """The loss summed over a micro-batch. The loop divides it by the counts of all batches of the step.

    `terms` are further sums with their own counts in `Batch.counts`. The loop divides each by its count over the whole
    step and adds it. The counts are not part of this class: they change with every batch, and a compiled objective
    would be compiled again.
    """

    sum: Tensor
    terms: Mapping[str, Tensor] = field(default_factory=dict)


class Objective(nn.Module, ABC):
    """A loss that adds up over micro-batches."""

    model: nn.Module

    @abstractmethod
    def forward(self, batch: Batch) -> LossSum:
        """The loss of a batch, summed over its `batch.count` predictions."""

    def bind(self, batch: Batch) -> Batch:
        """The batch with the state that the objective carries over; called outside the compiled `forward`."""
        return batch


class StepObjective(nn.Module, ABC):
    """A loss of all examples of a step together, such as a contrastive one.

    The loop gathers the features of all micro-batches and processes, computes `loss`, and runs `forward` again with the
    gradients of the features (GradCache, 2101.06983). So `forward` uses every parameter and `loss` none. A scalar for
    all examples, such as a temperature, is returned once per example. Integer features have no gradient.
    """

    model: nn.Module

    def prepare(self) -> None:
        """Called before every step, outside the compiled `forward`; it may clamp a parameter."""

    @abstractmethod
    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Features by name, each (batch, …)."""

    @abstractmethod
    def loss(self, features: Mapping[str, Tensor]) -> LossSum:
        """The loss of the features of all examples of a step."""


AnyObjective: TypeAlias = Objective | StepObjective
Forward: TypeAlias = Callable[[Batch], LossSum | dict[str, Tensor]]
