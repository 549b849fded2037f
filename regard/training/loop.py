"""The training loop: update after update, and at the boundary between two of them records, evaluations, checkpoints."""

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import run_folder
from ..adapt.injection import injection_of
from ..device import resolve_device
from ..errors import UserError
from . import average, checkpoint, curves, schedules
from . import optim as optim
from .checkpoint import TrainingState
from .progress import EventLog, Record, StopSignal, display
from .protocols import Outcome, Resampled, Stateful, StepLike, StepStats, TrainingObjective

LOWER = ("loss", "perplexity", "bits_per_byte", "word_perplexity")  # figures of which less is better
PATIENT = 50  # updates at most between two looks at whether all is finite, where looking waits for the device


def fit(
    task: TrainingObjective,
    model: nn.Module,
    folder: Path,
    *,
    resume: bool,
    on_event: Callable[[Record], None] | None = None,
    progress: bool = True,
    notes: Sequence[str] = (),
) -> Outcome:
    """Train the model as `task.run.train` says and keep all of it in the run `folder`, where run.json stands already.

    With `resume` it goes on from the newest whole checkpoint, or from step 0 where there is none. `notes` are told.
    """
    trainer = Trainer(task, model, folder)
    settings = task.run.train
    with optim.determinism(settings.deterministic), StopSignal() as stop:
        notes = [*notes, *trainer.begin(resume)]
        shown = display() if progress else None
        with EventLog(folder, trainer.state.step, shown, on_event, settings.tensorboard) as journal:
            return trainer.run(journal, notes, stop)


class Trainer:
    """One training: `begin`, then `run`, which walks from `step` to `boundary` to `step` until the `end`."""

    journal: EventLog

    def __init__(self, task: TrainingObjective, model: nn.Module, folder: Path):
        self.task, self.folder = task, folder
        self.settings = train = task.run.train
        self.device = resolve_device(task.run.device)
        self.model = model.to(self.device)
        self.rate = schedules.rate(train.schedule, train.lr, train.warmup, train.steps)
        self.optimizer = optim.build_optimizer(model, train.optimizer)
        self.moving = average.MovingAverage(self.optimizer, train.ema) if train.ema else None
        self.parameters = [each for each in model.parameters() if each.requires_grad]
        frozen = injection_of(model) is not None  # a base that is tuned keeps what it has
        self.renewing = [] if frozen else [part for part in model.modules() if isinstance(part, Resampled)]
        self.compiled = optim.compile_loss(task.loss, task.static_shapes, self.device) if train.compile else task.loss
        self.state = TrainingState(compiled=train.compile)
        self.lagging = self.device.type == "cuda"  # looking at a figure there would make the device wait
        self.unseen: list[StepStats] = []  # updates whose figures nobody has looked at
        self.norm = 0.0  # of the last gradients looked at
        self.saved = -1  # the step of the last checkpoint
        self.epoch_size = 0  # examples of an epoch, once one has been seen whole
        self.logged = self.started = time.monotonic()
        self.tokens = 0  # since the last record
        self.told: set[str] = set()  # facts about the data

    # Beginning

    def begin(self, resume: bool) -> list[str]:
        """Start from the seed, or from the newest whole checkpoint; what is worth telling comes back."""
        checkpoint.sweep(self.folder)
        notes: list[str] = []
        found = checkpoint.newest(self.folder, notes.append)
        if found and not resume:
            what = f"{self.folder} holds a training already, up to {found.name}"
            raise UserError(f"{what}; add --resume to go on with it, or choose another --out")
        optim.seed_everything(self.settings.seed)
        if found:
            self.take_up(found)
            notes.append(f"going on after {self.state.step} updates")
        return notes

    def take_up(self, path: Path) -> None:
        self.state = checkpoint.load(path, self.model, self.optimizer)
        if isinstance(self.task, Stateful):
            self.task.load_state(checkpoint.load_task_state(path))
        self.saved = self.state.step
        self.state.compiled &= self.settings.compile  # once without, always without: the bits depend on it
        if self.state.metric != self.settings.metric or not (self.folder / checkpoint.MODEL).exists():
            self.state.best, self.state.waited = None, 0  # another figure chooses now, or the chosen weights are gone

    def run(self, journal: EventLog, notes: list[str], stop: StopSignal) -> Outcome:
        self.journal = journal
        if self.state.step:
            self.told.update(self.task.describe_data())
        self.tell()
        for note in notes:
            self.note(note)
        self.started = self.logged = time.monotonic()
        self.model.train()
        return self.end(self.walk(stop))

    # The walk

    def walk(self, stop: StopSignal) -> str:
        """Update after update until something ends it; says what did."""
        updates = self.updates()
        while not (status := self.over(stop)):
            epoch, update = next(updates, (0, None))
            if update is None:
                return "finished"
            self.step(epoch, update)
            self.boundary()
        return status

    def over(self, stop: StopSignal) -> str:
        train = self.settings
        late = train.minutes and self.state.step and self.seconds() >= 60 * train.minutes  # one update at least
        if late or (train.steps and self.state.step >= train.steps):
            return "finished"
        if train.patience and self.state.waited >= train.patience:
            return "early"
        return "stopped" if stop.asked else ""

    def updates(self) -> Iterator[tuple[int, Any]]:
        """Each update with its epoch, from where the data stands, epoch after epoch."""
        epoch, index = self.state.epoch, self.state.index
        while not self.settings.epochs or epoch < self.settings.epochs:
            for update in self.task.steps(epoch, index):
                index = update.index
                yield epoch, update
            if not index:
                raise UserError(f"epoch {epoch} has no training example; look at data.train and data.max_tokens")
            self.epoch_size = index
            self.tell()
            epoch, index = epoch + 1, 0

    def step(self, epoch: int, update: StepLike) -> None:
        """One update: the gradients of all pieces, clipped, and one step of the optimizer at this step's rate."""
        state, number = self.state, self.state.step + 1
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(number)
        for place, part in enumerate(self.renewing):
            part.resample(number, random.Random(f"{self.settings.seed} {number} {place}").getrandbits(63))
        loss = self.gradients(update)
        norm = optim.clip_gradients(self.parameters, self.settings.clip)
        behind = state.index if epoch == state.epoch else 0
        self.watch(StepStats(number, epoch, behind, update.index, update.examples, update.count, loss, norm))
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.moving:
            self.moving.update(number)
        state.step, state.epoch, state.index = number, epoch, update.index
        self.tokens += update.tokens

    def gradients(self, update: StepLike) -> Tensor:
        """Add up the gradients of the pieces; the mean loss per predicted token comes back, still on the device."""
        if not self.state.compiled:
            return self.backward(update, self.task.loss)
        before, carried = checkpoint.randomness(), self.carried()
        try:
            return self.backward(update, self.compiled)
        except UserError:
            raise
        except Exception as error:  # whatever the compiler trips over; a fault of the task itself comes again below
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            self.note(f"torch.compile failed ({reason}); training goes on without it")
            self.state.compiled = False
            self.optimizer.zero_grad()
            checkpoint.restore_randomness(before)
            if isinstance(self.task, Stateful):
                self.task.load_state(carried)
            return self.backward(update, self.task.loss)

    def carried(self) -> dict[str, Tensor]:
        return self.task.state() if isinstance(self.task, Stateful) else {}

    def backward(self, update: StepLike, loss_of: Callable[[nn.Module, Any], Tensor]) -> Tensor:
        total = torch.zeros((), device=self.device)
        for piece in update.micro_batches:
            with optim.autocast(self.device, self.settings.precision):
                # The divisor is the whole update's, so that cutting it into pieces changes nothing.
                loss = loss_of(self.model, piece.to(self.device)) / max(update.count, 1)
            loss.backward()
            total += loss.detach()
        return total

    # Looking for a loss or a gradient that is no number

    def watch(self, seen: "StepStats") -> None:
        """Let no bad gradient reach the weights: by looking at once, or on a GPU without waiting for it."""
        self.unseen.append(seen)
        if self.lagging:
            # The fused optimizer passes over an update that is marked so; `look` finds out before anything is saved.
            self.optimizer.found_inf = (~torch.isfinite(seen.norm + seen.loss)).float()  # type: ignore[attr-defined]
        if not self.lagging or len(self.unseen) >= PATIENT:
            self.look()

    def look(self) -> None:
        """Bring the losses from the device; stop at the first that is no number."""
        if not self.unseen:
            return
        figures = torch.stack([torch.stack([seen.loss, seen.norm]).float() for seen in self.unseen]).tolist()
        unseen, self.unseen = self.unseen, []
        for seen, (loss, norm) in zip(unseen, figures, strict=True):
            if not math.isfinite(loss + norm):
                raise UserError(self.sickness(seen, loss, norm))
            self.state.loss += loss * seen.count
            self.state.count += seen.count
            self.norm = norm

    def check(self) -> None:
        """Before anything is evaluated or saved: every figure and every weight is a finite number."""
        self.look()
        if not math.isfinite(float(torch.nn.utils.get_total_norm(self.parameters))):
            raise UserError(
                f"after update {self.state.step} the weights are no finite numbers any more; {self.advice()}"
            )

    def sickness(self, seen: "StepStats", loss: float, norm: float) -> str:
        finite = math.isfinite(loss)
        bad = f"the loss is {loss:.4g} and the norm of the gradients {norm}" if finite else f"the loss is {loss}"
        some = ", ".join(map(str, seen.examples[:5])) + (", …" if len(seen.examples) > 5 else "")
        places = f"examples {seen.behind + 1} to {seen.index} of it: numbers {some} of the data from 0"
        return f"{bad} at update {seen.step} (epoch {seen.epoch}, {places}), which was not learnt from; {self.advice()}"

    def advice(self) -> str:
        train, last = self.settings, self.folder / "checkpoints" / f"step-{self.saved}"
        return (
            f"{f'{last} is good' if self.saved > 0 else 'there is no checkpoint yet'}. "
            f"Try a lower train.lr (now {train.lr:g}), a longer train.warmup (now {train.warmup}) "
            f"or {f'a smaller train.clip (now {train.clip:g})' if train.clip else 'train.clip=1 (now off)'}"
        )

    # The boundary between two updates

    def boundary(self) -> None:
        step, train = self.state.step, self.settings
        if self.journal.display:
            self.journal.display.tick(step, self.done())
        if step % train.log_every == 0 or step == 1:
            self.log()
        if step % train.eval_every == 0:
            self.evaluate()
        if step % train.save_every == 0:
            self.save()

    def log(self) -> None:
        self.look()
        now, state = time.monotonic(), self.state
        self.journal.write(
            "train",
            state.step,
            self.done(),
            epoch=state.epoch,
            loss=state.loss / max(state.count, 1),
            lr=self.rate(state.step),
            norm=self.norm,
            tokens_per_second=self.tokens / max(now - self.logged, 1e-9),
            seconds=self.seconds(),
        )
        state.loss, state.count, self.tokens, self.logged = 0.0, 0, 0, now

    def evaluate(self) -> None:
        """Validate, and publish the weights if none were better so far."""
        if self.state.evaluated == self.state.step:
            return
        self.check()
        self.state.evaluated = self.state.step
        with self.published():
            if figures := self.figures():
                self.journal.write("valid", self.state.step, self.done(), **figures, seconds=self.seconds())
                self.judge(figures)

    def published(self) -> AbstractContextManager[None]:
        """Inside, the model has the weights that are evaluated and kept: its own, or their moving average."""
        return self.moving.instead() if self.moving else nullcontext()

    def figures(self) -> dict[str, float]:
        began, before = time.monotonic(), checkpoint.randomness()
        self.model.eval()
        with torch.no_grad(), optim.autocast(self.device, self.settings.precision):
            found = self.task.validate(self.model)
        self.model.train()
        checkpoint.restore_randomness(before)  # how often one looks must not change what is learnt
        self.logged += time.monotonic() - began  # the speed is that of training
        return found

    def judge(self, figures: dict[str, float]) -> None:
        state, metric = self.state, self.settings.metric
        if metric not in figures:
            raise UserError(f"train.metric is {metric} and the evaluation gives {', '.join(figures)}; use one of these")
        value = figures[metric]
        sign = -1 if metric in LOWER else 1
        if math.isfinite(value) and (state.best is None or sign * value > sign * state.best):
            state.best, state.best_step, state.metric, state.waited = value, state.step, metric, 0
            self.publish()
        else:
            state.waited += 1

    def publish(self) -> None:
        """Make these the run's weights. Their file says its own step: a crash before run.json follows does no harm."""
        state = self.state
        checkpoint.save_model(self.model, self.folder / checkpoint.MODEL, state.step)
        metric = None if state.best is None else state.metric
        weights = {"step": state.step, "metric": metric, "value": state.best}
        run_folder.update_run(self.folder, weights=weights)

    def save(self) -> None:
        """Write a checkpoint; as long as no evaluation has chosen weights, the newest are the run's."""
        state, began = self.state, time.monotonic()
        if not state.step:
            return
        self.check()
        if state.best is None:
            with self.published():
                self.publish()
        now = time.monotonic()
        state.seconds, self.started = state.seconds + now - self.started, now
        if self.saved == state.step:
            checkpoint.save_state(self.folder, state)  # the last evaluation may have come after it
        else:
            keep = max(self.settings.keep, self.settings.average)
            checkpoint.save(self.folder, state, self.model, self.optimizer, keep, self.carried())
        self.saved = state.step
        self.logged += time.monotonic() - began

    # The end

    def end(self, status: str) -> Outcome:
        state = self.state
        self.look()
        if status != "stopped":
            if state.count:
                self.log()
            self.evaluate()
        self.save()
        if status != "stopped" and self.settings.average > 1:
            self.average()
        outcome = Outcome(status, state.step, state.best, state.best_step, self.seconds())
        chosen = {} if state.best is None else {state.metric: state.best, "best_step": state.best_step}
        self.journal.write("end", state.step, self.done(), status=status, **chosen, seconds=outcome.seconds)
        curves.draw(self.folder)
        if status == "stopped":
            self.note(f"all is saved in {self.folder}; the same command with --resume goes on from there")
        return outcome

    def average(self) -> None:
        """Try the mean of the last checkpoints: it becomes the run's if valid data find it better, or if none exist."""
        paths = checkpoint.last(self.folder, self.settings.average)
        with average.mean_of(self.model, paths):
            figures, known = self.figures(), self.state.best
            self.journal.write(
                "valid", self.state.step, self.done(), averaged=len(paths), **figures, seconds=self.seconds()
            )
            if figures:
                self.judge(figures)
            else:
                self.publish()
        if self.state.best != known:
            checkpoint.save_state(self.folder, self.state)

    def tell(self) -> None:
        for fact in self.task.describe_data():
            if fact not in self.told:
                self.note(fact)
                self.told.add(fact)

    def note(self, text: str) -> None:
        self.journal.write("note", self.state.step, self.done(), text=text)

    def seconds(self) -> float:
        """Spent in training, evaluations and saves included, over all parts of a resumed run."""
        return self.state.seconds + time.monotonic() - self.started

    def done(self) -> float:
        """The finished share of the training, by whichever limit is nearest; 0 where nobody can know."""
        train, state = self.settings, self.state
        shares = [state.step / train.steps] if train.steps else []
        if train.minutes:
            shares.append(self.seconds() / (60 * train.minutes))
        if train.epochs and self.epoch_size:
            shares.append((state.epoch + state.index / self.epoch_size) / train.epochs)
        return min(max(shares, default=0.0), 1.0)
