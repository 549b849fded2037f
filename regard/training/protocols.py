"""What the loop asks of a task, what it remembers of an update, and how it ends."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from ..config.run import Run


class StepLike(Protocol):
    """What one step of the optimizer learns from."""

    micro_batches: Any  # micro-batches, each with a method `to(device)`
    index: int  # examples of the epoch, over all processes, that are behind when this update is done
    tokens: int  # its size, for the speed
    count: int  # predicted tokens over all pieces and processes: what the summed loss is divided by
    examples: list[int]  # their numbers in the data


class TrainingObjective(Protocol):
    """What the loop asks of a task."""

    run: Run
    static_shapes: bool  # has every piece the same shape, but for few?

    def steps(self, epoch: int, index: int) -> Iterator[Any]: ...

    def loss(self, model: nn.Module, piece: Any) -> Tensor: ...

    def validate(self, model: nn.Module) -> dict[str, float]: ...

    def describe_data(self) -> list[str]:
        """Sentences about the data; asked at the beginning and after every epoch, each is told once."""


@runtime_checkable
class Stateful(Protocol):
    """A task that carries something from update to update, such as the memory of a recurrent model. It is saved with
    every checkpoint, so that a resumed training goes on as if nothing had happened."""

    def state(self) -> dict[str, Tensor]:
        """What it carries, by name; no later update changes these tensors."""

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Carry this from here on; nothing, where nothing was carried."""


@runtime_checkable
class Resampled(Protocol):
    """A part of a model that training changes beside its weights, such as random features that are drawn anew."""

    def resample(self, step: int, seed: int) -> None:
        """Before update `step`; nothing but these two numbers may decide what comes, so that a resumed run agrees."""


@dataclass(frozen=True)
class Outcome:
    """How a training ended: finished, stopped (by a signal; --resume goes on) or early (train.patience)."""

    status: str
    steps: int
    best: float | None  # of train.metric on valid data
    best_step: int
    seconds: float


@dataclass(frozen=True)
class StepStats:
    """An update's place and its figures, which may still be on the way from the device."""

    step: int
    epoch: int
    behind: int  # examples of the epoch before it, and with it
    index: int
    examples: list[int]
    count: int
    loss: Tensor
    norm: Tensor
