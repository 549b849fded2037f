"""Types of the training loop: the interface of a job, the statistics of a step, and the outcome."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from ..config.train import Train
from ..data.batch import Batch
from .objective import AnyObjective


class StepLike(Protocol):
    """The data of one optimizer step."""

    @property
    def micro_batches(self) -> Sequence[Batch]:
        """This process's share of the step."""

    @property
    def index(self) -> int:
        """Examples of the epoch, over all processes, consumed once this step is done."""

    @property
    def tokens(self) -> int:
        """The size of the step; the reported speed counts it."""

    @property
    def examples(self) -> list[int]:
        """Indices of the examples in the data, over all processes."""


class RunLike(Protocol):
    """The settings that the loop reads."""

    @property
    def task(self) -> str:
        """The name of the task; empty for a user's module."""

    @property
    def train(self) -> Train:
        """The settings of the loop."""

    @property
    def device(self) -> str:
        """The device by name."""


class JobLike(Protocol):
    """The interface of a job that the loop runs."""

    @property
    def run(self) -> RunLike:
        """The settings."""

    @property
    def objective(self) -> AnyObjective:
        """The loss that is minimized."""

    @property
    def static_shapes(self) -> bool:
        """True if almost all micro-batches share one shape (CUDA graphs pay off)."""

    def steps(self, epoch: int, index: int, rank: int, world: int) -> Iterator[StepLike]:
        """The share of process `rank` of the steps of an epoch after its first `index` examples."""

    def planned_steps(self, epochs: int) -> float:
        """The number of steps of the first `epochs` epochs; an estimate where it is unknown before reading them."""

    def align(self, epoch: int, index: int) -> int:
        """The end of the last step within the first `index` examples of an epoch; for checkpoints of another PLAN."""

    def validate(self) -> dict[str, float]:
        """Metrics on the validation data; none without them."""

    def describe_data(self) -> list[str]:
        """Facts about the data. The loop calls it at the start and after every epoch, and reports each fact once."""


@runtime_checkable
class Stateful(Protocol):
    """An objective with state that carries over from step to step, such as the memory of a recurrent model.

    The state is saved with every checkpoint, so that a resumed run continues exactly.
    """

    def state(self) -> dict[str, Tensor]:
        """The state by name. No later step changes these tensors."""

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Continue from this state; an empty dict means no state."""


@runtime_checkable
class Resampled(Protocol):
    """A module with buffers that training resamples, such as random features."""

    def resample(self, step: int, seed: int) -> None:
        """Resample before `step`. The result must depend on these two numbers only, so that resumed runs agree."""


@dataclass(frozen=True)
class Outcome:
    """How a training ended: finished, stopped (by a signal; --resume continues), early (patience or a callback)."""

    status: str
    steps: int
    best: float | None  # of train.metric on valid data
    best_step: int
    seconds: float
    signal: int = 0  # the signal that stopped it


@dataclass(frozen=True)
class StepStats:
    """The position of a step, its loss and its gradient norm, which may still be on the device."""

    step: int
    epoch: int
    start_index: int  # examples of the epoch consumed before the step, and after it
    index: int
    examples: list[int]
    count: int
    loss: Tensor
    norm: Tensor
