"""The training loop. After each step it may log, evaluate and save a checkpoint."""

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import TypedDict

import torch
from torch import Tensor

from ..adapt.freeze import freeze
from ..adapt.injection import injection_of
from ..config import run_folder
from ..config.task_settings import metrics_of
from ..device import resolve_device
from ..errors import UserError
from ..progress import show_progress
from . import checkpoint, optim
from .callbacks import Callback, CallbackRunner, CustomCodeError, Moment
from .checkpoint import TrainingState
from .custom import FailedMetric, nonfinite_metrics
from .finish import MovingAverage, finish
from .nonfinite import FiniteCheck, remedy
from .progress import EventLog, Record, SilentLog, describe_training, format_best, make_display
from .protocols import JobLike, Outcome, Resampled, Stateful, StepLike, StepStats
from .ranks import ALONE, Ranks
from .schedules import Limits
from .step import GradientStep, StepLoss, compute_gradients
from .stop_signal import StopSignal


class Reporting(TypedDict, total=False):
    """Arguments of `run_loop`: who learns of its progress."""

    on_event: Callable[[Record], None] | None
    progress: bool
    callbacks: Sequence[Callback]


def run_loop(
    job: JobLike,
    folder: Path,
    *,
    resume: bool,
    on_event: Callable[[Record], None] | None = None,
    progress: bool = True,
    notes: Sequence[str] = (),
    ranks: Ranks = ALONE,
    callbacks: Sequence[Callback] = (),
) -> Outcome:
    """Train the model of a job with the settings in `job.run.train`; write to the run `folder`, which has run.json.

    With `resume`, continue from the newest intact checkpoint, or from step 0 if there is none. It reports `notes`.
    Among several processes, only the first one writes and reports.
    """
    trainer = Trainer(job, folder, ranks, callbacks)
    settings = job.run.train
    with (
        optim.deterministic(settings.deterministic),
        show_progress(quiet=True),  # training has its own display
        StopSignal(progress and ranks.first) as stop,
    ):
        notes = [*notes, *trainer.prepare(resume)]
        if not ranks.first:
            return trainer.run(SilentLog(), notes, stop)
        display = make_display() if progress else None
        with EventLog(folder, trainer.state.step, display, on_event, settings.tensorboard) as event_log:
            return trainer.run(event_log, notes, stop)


class Trainer:
    """One training. Call `prepare`, then `run`, which alternates `step` and `after_step` and ends with `finish`."""

    event_log: EventLog | SilentLog

    def __init__(self, job: JobLike, folder: Path, ranks: Ranks = ALONE, callbacks: Sequence[Callback] = ()):
        self.job, self.folder, self.ranks = job, folder, ranks
        self.callbacks = CallbackRunner(callbacks, ranks)
        self.settings = train = job.run.train
        self.device = resolve_device(job.run.device)
        self.objective = job.objective.to(self.device)
        self.model = model = job.objective.model
        self.limits = Limits(train)
        freeze(model, train.freeze)
        self.optimizer = optim.build_optimizer(model, train.optimizer, train.rates)
        self.ema = MovingAverage(self.optimizer, train.ema) if train.ema else None
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        frozen = injection_of(model) is not None  # a tuned base keeps its buffers
        self.resampled = [] if frozen else [part for part in model.modules() if isinstance(part, Resampled)]
        compiled = (
            optim.compile_forward(self.objective.forward, job.static_shapes, self.device) if train.compile else None
        )
        self.gradients = GradientStep(self.objective, self.device, train.seed, train.precision, ranks, compiled)
        self.state = TrainingState(compiled=train.compile)
        self.finite = FiniteCheck(self.optimizer, self.device)
        self.signal = 0  # that requested a stop, in any process
        self.saved = -1  # the step of the last checkpoint
        self.elapsed = 0.0  # seconds before the next step, by the clock of the first process
        self.logged = self.started = time.monotonic()
        self.tokens, self.data_seconds = 0, 0.0  # since the last record; the seconds that steps waited for data
        self.reported_facts: set[str] = set()
        self.step_loss: Tensor | None = None  # the mean loss of the last step, on the device

    # Start

    def prepare(self, resume: bool) -> list[str]:
        """Start from the seed, or from the newest intact checkpoint; return notes for the user."""
        notes, newest = self.ranks.idle_note(self.settings.accumulate), None
        if self.ranks.first:
            checkpoint.remove_temporary_files(self.folder)
            newest = checkpoint.newest_checkpoint(self.folder, notes.append)
        newest = self.ranks.share(newest)
        if newest and not resume:
            problem = f"{self.folder} already holds a training up to {newest.name}"
            raise UserError(f"{problem}; add --resume to continue it, or choose another --out")
        optim.seed_everything(self.settings.seed)
        if newest:
            self.resume_from(newest)
            notes += [f"resuming after step {self.state.step}", *checkpoint.realign(self.state, self.job.align)]
        return notes

    def resume_from(self, path: Path) -> None:
        """Restore the training from a checkpoint."""
        self.state = checkpoint.load_checkpoint(path, self.model, self.optimizer)
        if isinstance(self.objective, Stateful):
            self.objective.load_state(checkpoint.load_task_state(path))
        self.callbacks.load_state(self.state.callbacks)
        self.saved = self.state.step
        self.state.compiled &= self.settings.compile  # once off, it stays off: the bits depend on it
        self.gradients.compile(self.state.compiled)
        if self.state.metric != self.settings.metric or not (self.folder / checkpoint.MODEL).exists():
            self.state.best, self.state.waited = None, 0  # another metric selects now, or the best weights are gone

    def run(self, event_log: EventLog | SilentLog, notes: Sequence[str], stop: StopSignal) -> Outcome:
        """Train to the end."""
        self.event_log = event_log
        if self.state.step:
            self.reported_facts.update(self.job.describe_data())
        self.report_facts()
        if self.settings.epochs:
            self.limits.plan(self.job.planned_steps(self.settings.epochs))
        for note in [*notes, *self.limits.foreseen_warning()]:
            self.note(note)
        if self.event_log.display:
            self.event_log.display.begin(
                describe_training(self.model, self.device), self.limits.steps, format_best(self.state)
            )
        self.started = self.logged = time.monotonic()
        self.model.train()
        try:
            return finish(self, self.train(stop))
        except CustomCodeError as error:
            if self.ranks.world == 1 or not isinstance(error, FailedMetric):  # else only this process has failed
                self.save()
            raise

    # Steps

    def train(self, stop: StopSignal) -> str:
        """Run steps until the training ends; return its status."""
        steps = self.steps()
        while not (status := self.stop_reason(stop)):
            requested = time.monotonic()
            epoch, step = next(steps, (0, None))
            self.data_seconds += time.monotonic() - requested
            if step is None:
                return "finished"
            self.step(epoch, step)
            self.after_step()
        return status

    def stop_reason(self, stop: StopSignal) -> str:
        """The status to end with now, or an empty string."""
        now = round(1e6 * self.seconds()) if self.ranks.first else 0
        microseconds, stopped, numbers = self.ranks.total([now, stop.requested, stop.number])
        self.elapsed, self.signal = microseconds / 1e6, numbers // max(stopped, 1)
        if self.callbacks.stopped_by:
            return "early"
        if self.limits.reached(self.state.step, self.elapsed):
            return "finished"
        if 0 < self.settings.patience <= self.state.waited:
            return "early"
        return "stopped" if stopped else ""

    def steps(self) -> Iterator[tuple[int, StepLike]]:
        """Yield (epoch, step) from the current position in the data, epoch after epoch."""
        epoch, index, offset = self.state.epoch, self.state.index, self.state.offset
        while not self.settings.epochs or epoch < self.settings.epochs:
            for step in islice(self.job.steps(epoch, index, self.ranks.rank, self.ranks.world), offset, None):
                index = step.index
                yield epoch, step
            if not index:
                raise UserError(f"epoch {epoch} has no training example; check data.train and data.max_tokens")
            self.report_facts()
            epoch, index, offset = epoch + 1, 0, 0

    def step(self, epoch: int, step: StepLike) -> None:
        """Compute the gradients of all micro-batches, clip them and update the weights once."""
        state, number = self.state, self.state.step + 1
        if self.settings.minutes and number <= self.settings.warmup:
            state.warm_seconds = self.elapsed
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(number) * group["rate_scale"]
        for position, part in enumerate(self.resampled):
            part.resample(number, random.Random(f"{self.settings.seed} {number} {position}").getrandbits(63))
        loss = self.compute_gradients(number, step)
        self.step_loss = loss.loss
        norm = optim.clip_gradients(self.parameters, self.settings.clip)
        start, offset = (state.index, state.offset) if epoch == state.epoch else (0, 0)
        if self.finite.track(StepStats(number, epoch, start, step.index, step.examples, loss.count, loss.loss, norm)):
            self.check_finite()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.ema:
            self.ema.update(number)
        state.step, state.epoch, state.index = number, epoch, step.index
        state.offset = offset + 1 if step.index == start else 0
        self.tokens += step.tokens

    def learning_rate(self, number: int) -> float:
        """The learning rate of step `number`, by the schedule and by callbacks."""
        return self.state.rate_scale * self.limits.learning_rate(number, self.elapsed, self.state.warm_seconds)

    def compute_gradients(self, number: int, step: StepLike) -> StepLoss:
        """Add up the gradients of the micro-batches of step `number`."""
        return compute_gradients(self, number, step)

    def objective_state(self) -> dict[str, Tensor]:
        """The state that the objective carries from step to step."""
        return self.objective.state() if isinstance(self.objective, Stateful) else {}

    # Checks for non-finite losses, gradients and weights

    def check_finite(self) -> None:
        """Add the losses of the tracked steps; raise an error at the first non-finite one."""
        for loss, count in self.finite.fetch(self.remedy):
            self.state.loss += loss * count
            self.state.count += count

    def check_weights(self) -> None:
        """Check that all losses and weights are finite; runs before anything is evaluated or saved."""
        self.check_finite()
        if not math.isfinite(float(torch.nn.utils.get_total_norm(self.parameters))):
            raise UserError(f"after step {self.state.step} the weights are not finite; {self.remedy()}")

    def remedy(self) -> str:
        """The remedy for a loss that is not finite."""
        return remedy(self.settings, self.folder, self.saved)

    # Between two steps

    def after_step(self) -> None:
        """Log, evaluate and save when due."""
        step, train = self.state.step, self.settings
        if self.event_log.display:
            self.event_log.display.tick(step, self.progress())
        if step % train.log_every == 0 or step == 1:
            self.log()
        if step % train.eval_every == 0:
            self.evaluate()
        self.call_back("step")
        if step % train.save_every == 0:
            self.save()

    def call_back(self, moment: Moment, metrics: dict[str, float] | None = None) -> None:
        """Call the callbacks, before a checkpoint, so that a resumed run does not repeat their effects."""
        if self.callbacks.callbacks:
            self.callbacks.run(self, moment, metrics or {})

    def log(self) -> None:
        """Write the mean loss since the last record, the rate and the speed."""
        self.check_finite()
        now, state = time.monotonic(), self.state
        metrics = {
            "loss": state.loss / max(state.count, 1),
            "lr": self.learning_rate(state.step),
            "norm": self.finite.norm,
        }
        passed = max(now - self.logged, 1e-9)
        metrics |= {"tokens_per_second": self.tokens / passed, "data_wait": self.data_seconds / passed}
        metrics["seconds"] = self.seconds()
        self.event_log.write("train", state.step, self.progress(), epoch=state.epoch, **metrics)
        state.loss, state.count, self.tokens, self.data_seconds, self.logged = 0.0, 0, 0, 0.0, now

    def evaluate(self) -> None:
        """Validate, and publish the weights if they are the best so far."""
        if self.state.evaluated == self.state.step:
            return
        self.check_weights()
        self.state.evaluated = self.state.step
        with self.weights_to_publish():
            if metrics := self.validate():
                self.event_log.write("valid", self.state.step, self.progress(), **metrics, seconds=self.seconds())
                for name in nonfinite_metrics(metrics):
                    self.note(f"the metric {name} is {metrics[name]} at step {self.state.step} and selects no weights")
                self.update_best(metrics)
        self.call_back("valid", metrics)

    def weights_to_publish(self) -> AbstractContextManager[None]:
        """Inside this context the model has the weights to evaluate and publish: its own, or their moving average."""
        return self.ema.averaged_weights() if self.ema else nullcontext()

    def validate(self) -> dict[str, float]:
        """The metrics of the validation data, with the same values in all processes."""
        began, before = time.monotonic(), checkpoint.rng_state()
        self.model.eval()
        with torch.no_grad(), optim.autocast(self.device, self.settings.precision):
            metrics = self.ranks.share(self.job.validate() if self.ranks.first else {})
        self.model.train()
        checkpoint.restore_rng_state(before)  # the frequency of evaluations must not change the training
        self.logged += time.monotonic() - began  # the reported speed is that of training
        return metrics

    def update_best(self, metrics: dict[str, float]) -> None:
        """Publish the weights if train.metric is the best so far; otherwise count towards train.patience."""
        state, metric = self.state, self.settings.metric
        if metric not in metrics:
            raise UserError(f"train.metric is {metric} and the evaluation gives {', '.join(metrics)}; use one of these")
        if self.is_better(metrics[metric]):
            state.best, state.best_step, state.metric, state.waited = metrics[metric], state.step, metric, 0
            self.publish()
        else:
            state.waited += 1

        if self.event_log.display:
            self.event_log.display.best = format_best(self.state)

    def is_better(self, value: float) -> bool:
        """Whether a value of train.metric is better than the best so far."""
        metric = metrics_of(self.job.run.task, self.settings)[self.settings.metric]
        return metric.is_better(value, self.state.best)

    def publish(self) -> None:
        """Write the run's model.safetensors. It stores its own step, so a crash before run.json is harmless."""
        if not self.ranks.first:
            return
        state = self.state
        checkpoint.save_model(self.model, self.folder / checkpoint.MODEL, state.step)
        metric = None if state.best is None else state.metric
        run_folder.update_run(self.folder, weights={"step": state.step, "metric": metric, "value": state.best})

    def save(self) -> None:
        """Write a checkpoint. While no evaluation has selected weights, the newest ones are published."""
        state, began = self.state, time.monotonic()
        if not state.step:
            return
        self.check_weights()
        state.callbacks = self.callbacks.state()
        if state.best is None:
            with self.weights_to_publish():
                self.publish()
        now = time.monotonic()
        state.seconds, self.started = state.seconds + now - self.started, now
        if self.saved == state.step:
            self.save_state()  # the last evaluation may have come after it
        else:
            keep, carried = max(self.settings.keep, self.settings.average), self.ranks.merge(self.objective_state())
            if self.ranks.first:
                checkpoint.save_checkpoint(self.folder, state, self.model, self.optimizer, keep, carried)
        self.saved = state.step
        self.logged += time.monotonic() - began

    def save_state(self) -> None:
        """Update the state in the newest checkpoint."""
        if self.ranks.first:
            checkpoint.save_state(self.folder, self.state)

    # Reports

    def report_facts(self) -> None:
        """Report each fact about the data once."""
        for fact in self.job.describe_data():
            if fact not in self.reported_facts:
                self.note(fact)
                self.reported_facts.add(fact)

    def note(self, text: str) -> None:
        """Write a sentence for the user."""
        self.event_log.write("note", self.state.step, self.progress(), text=text)

    def seconds(self) -> float:
        """Training time with evaluations and saves, over all parts of a resumed run."""
        return self.state.seconds + time.monotonic() - self.started

    def progress(self) -> float:
        """The finished fraction of the training."""
        return self.limits.progress(self.state.step, self.seconds())
