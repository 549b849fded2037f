"""The end of a training: the last evaluation and checkpoint, the mean of the last checkpoints, the curves."""

from typing import TYPE_CHECKING

from . import average, checkpoint, curves
from .protocols import Outcome

if TYPE_CHECKING:
    from .loop import Trainer


def finish(trainer: "Trainer", status: str) -> Outcome:
    """Log, evaluate and save for the last time; draw the curves."""
    state = trainer.state
    trainer.check_finite()
    if status != "stopped":
        if state.count:
            trainer.log()
        trainer.evaluate()
        if trainer.callbacks.stopped_by:
            trainer.note(f"the callback {trainer.callbacks.stopped_by} ended the training after step {state.step}")
    trainer.call_back("end")
    trainer.save()
    trainer.ranks.wait()  # for the files of the first process
    if status != "stopped" and trainer.settings.average > 1:
        try_average(trainer)
    number = trainer.signal if status == "stopped" else 0
    outcome = Outcome(status, state.step, state.best, state.best_step, trainer.seconds(), number)
    best = {} if state.best is None else {state.metric: state.best, "best_step": state.best_step}
    trainer.event_log.write("end", state.step, trainer.progress(), status=status, **best, seconds=outcome.seconds)
    if trainer.ranks.first:
        curves.draw(trainer.folder)
    for warning in trainer.limits.final_warning(state.step) if status != "stopped" else ():
        trainer.note(warning)
    if status == "stopped":
        trainer.note(
            f"everything is saved in {trainer.folder}; `regard train --resume --out {trainer.folder}` continues it"
        )
    trainer.ranks.wait()
    return outcome


def try_average(trainer: "Trainer") -> None:
    """Publish the mean of the last checkpoints if its metric is better, or if there are no validation data."""
    paths, state = checkpoint.latest(trainer.folder, trainer.settings.average), trainer.state
    with average.averaged_checkpoints(trainer.model, paths):
        metrics, best = trainer.validate(), state.best
        values = {"averaged": len(paths), **metrics, "seconds": trainer.seconds()}
        trainer.event_log.write("valid", state.step, trainer.progress(), **values)
        if metrics:
            trainer.update_best(metrics)
        else:
            trainer.publish()
    if state.best != best:
        trainer.save_state()
