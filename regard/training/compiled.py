"""The gradients of a step, compiled where the compiler succeeds."""

from typing import TYPE_CHECKING

from ..errors import UserError
from . import checkpoint
from .protocols import Stateful, StepLike
from .step import StepLoss

if TYPE_CHECKING:
    from .loop import Trainer


def compute_gradients(trainer: "Trainer", number: int, step: StepLike) -> StepLoss:
    """Add up the gradients of the micro-batches of step `number`."""
    if not trainer.state.compiled:
        return trainer.gradients.run(number, step.micro_batches)
    before, objective_state = checkpoint.rng_state(), trainer.objective_state()
    try:
        return trainer.gradients.run(number, step.micro_batches)
    except UserError:
        raise
    except Exception as error:  # any compiler failure; an error of the task itself recurs below
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        if trainer.ranks.world > 1:  # the other processes wait for the compiled step
            raise UserError(f"torch.compile failed ({reason}); set train.compile=false") from error
        trainer.note(f"torch.compile failed ({reason}); training continues without it")
        trainer.state.compiled = False
        trainer.gradients.compile(False)
        trainer.optimizer.zero_grad()
        checkpoint.restore_rng_state(before)
        if isinstance(trainer.objective, Stateful):
            trainer.objective.load_state(objective_state)
        return trainer.gradients.run(number, step.micro_batches)
