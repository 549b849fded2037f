"""Callbacks: user functions that the loop calls between steps. They may stop training or scale its learning rate."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor, nn

from ..config.registry import describe_error
from ..errors import UserError
from ..files import JsonMapping, JsonObject
from .ranks import ALONE, Ranks

if TYPE_CHECKING:
    from .loop import Trainer

Moment: TypeAlias = Literal["step", "valid", "end"]


class CustomCodeError(UserError):
    """A custom callback, loss or metric failed. The loop saves a checkpoint before it ends."""


@dataclass
class CallbackContext:
    """The argument of a callback: after every step, after every evaluation ("valid"), and at the end of training."""

    moment: Moment
    step: int  # finished steps
    epoch: int
    model: nn.Module
    optimizer: torch.optim.Optimizer
    rate: float  # the learning rate of the last step
    rate_scale: float  # the factor of all later learning rates; assign it to change them. Checkpoints store it
    folder: Path
    metrics: Mapping[str, float] = field(default_factory=dict)  # of the evaluation, if the moment is "valid"
    loss_tensor: Tensor | None = None  # the mean loss of the last step, on the device
    stopped: bool = False

    @property
    def loss(self) -> float:
        """The mean loss of the last step. Reading it waits for the device."""
        return float("nan") if self.loss_tensor is None else float(self.loss_tensor)

    def stop(self) -> None:
        """End the training after this step, as train.patience does: with a last evaluation and a checkpoint."""
        self.stopped = True


Callback: TypeAlias = Callable[[CallbackContext], object]


@runtime_checkable
class StatefulCallback(Protocol):
    """A callback with state, which checkpoints store as JSON, so that a resumed run continues exactly."""

    def state(self) -> JsonObject:
        """The state as JSON values."""

    def load_state(self, state: JsonObject) -> None:
        """Continue from this state."""


def name_of(function: object) -> str:
    """The name of a function, or of the class of an object, for messages."""
    return str(getattr(function, "__name__", type(function).__name__))


class CallbackRunner:
    """Calls the callbacks in all processes, and collects their requests."""

    def __init__(self, callbacks: Sequence[Callback] = (), ranks: Ranks = ALONE) -> None:
        for callback in callbacks:
            if not callable(callback):
                raise UserError(f"callbacks has a {type(callback).__name__}; expected functions of a CallbackContext")
        self.callbacks, self.ranks = list(callbacks), ranks
        self.stopped_by = ""  # the name of the callback that ended the training

    def run(self, trainer: "Trainer", moment: Moment, metrics: Mapping[str, float]) -> None:
        """Call every callback, and store the factor of later learning rates that they set."""
        state, rate = trainer.state, trainer.learning_rate(max(trainer.state.step, 1))
        context = CallbackContext(
            moment, state.step, state.epoch, trainer.model, trainer.optimizer, rate, state.rate_scale, trainer.folder,
            metrics, trainer.step_loss,
        )  # fmt: skip
        for callback in self.callbacks:
            self._call(callback, context)
            if context.stopped and not self.stopped_by:
                self.stopped_by = name_of(callback)
        if not 0 <= context.rate_scale < float("inf"):
            raise CustomCodeError(f"a callback set rate_scale={context.rate_scale}; expected a number of 0 or more")
        state.rate_scale, self.stopped_by = self.ranks.share((context.rate_scale, self.stopped_by))
        trainer.model.train()  # a callback may have evaluated the model

    def _call(self, callback: Callback, context: CallbackContext) -> None:
        """Call one callback. A failure in one process stops all; each saves first."""
        failure: Exception | None = None
        try:
            callback(context)
        except Exception as error:
            failure = error
        if self.ranks.total([failure is not None])[0]:
            reason = describe_error(failure) if failure else "in another process"
            raise CustomCodeError(
                f"the callback {name_of(callback)} failed after step {context.step} ({reason}); everything is saved in "
                f"{context.folder}: correct it and resume"
            ) from failure

    def state(self) -> JsonObject:
        """The state of the callbacks that have one, by position and name."""
        named = self._stateful()
        return {name: callback.state() for name, callback in named.items()}

    def load_state(self, states: JsonMapping) -> None:
        """Restore the state of every callback; a callback that is missing in the checkpoint starts afresh."""
        for name, callback in self._stateful().items():
            if name in states:
                callback.load_state(states[name])

    def _stateful(self) -> dict[str, StatefulCallback]:
        numbered: list[tuple[int, object]] = list(enumerate(self.callbacks))
        return {
            f"{place} {name_of(callback)}": callback
            for place, callback in numbered
            if isinstance(callback, StatefulCallback)
        }
