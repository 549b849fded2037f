"""Progress of a training: metrics.jsonl, TensorBoard, the callback, the terminal."""

import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from .. import files
from ..files import Json

if TYPE_CHECKING:
    from torch import nn
    from torch.utils.tensorboard import SummaryWriter

    from .checkpoint import TrainingState

WIDE = 120  # columns of a terminal where the bar also shows the epoch and the best value
Record = dict[str, Any]  # one line of metrics.jsonl


class EventLog:
    """Sends every record to metrics.jsonl, TensorBoard, the display and the callback."""

    def __init__(
        self,
        folder: Path,
        step: int,
        display: "PlainProgress | ProgressBar | None" = None,
        on_event: Callable[[Record], None] | None = None,
        tensorboard: bool = False,
    ):
        """Continue after `step`: later records are dropped, because these steps will run again."""
        self.path = folder / "metrics.jsonl"
        self.display = display
        self.on_event = on_event
        earlier = [record for record in read_records(self.path) if record["step"] <= step] if step else []
        with files.atomic_write(self.path) as draft:
            draft.write_bytes(b"".join(map(_json_line, earlier)))
        with self._explain_os_errors():
            self.file = self.path.open("ab", buffering=0)  # each line is written at once and whole
            self.tensorboard = _summary_writer(folder, step) if tensorboard else None

    def write(self, event: str, step: int, done: float = 0.0, **values: Json) -> None:
        """Record an event; `done` is the finished fraction of the training, for the display."""
        record = {"step": step, "event": event, **values}
        with self._explain_os_errors():
            self.file.write(_json_line(record))
            if self.tensorboard and event in ("train", "valid"):
                for name, value in values.items():
                    self.tensorboard.add_scalar(f"{event}/{name}", value, step)
                self.tensorboard.flush()
        if self.display:
            self.display.show(record, done)
        if self.on_event:
            self.on_event(record)

    @contextmanager
    def _explain_os_errors(self) -> Iterator[None]:
        """Turn an OSError into a UserError that names the run folder."""
        try:
            yield
        except OSError as error:
            raise files.explain_os_error(error, self.path.parent) from error

    def __enter__(self) -> "EventLog":
        return self

    def __exit__(self, *error: object) -> None:
        for output in (self.display, self.file, self.tensorboard):
            with suppress(OSError):  # a full disk has been reported already
                if output:
                    output.close()


class SilentLog:
    """The log of a process that reports nothing."""

    display = None

    def write(self, event: str, step: int, done: float = 0.0, **values: object) -> None:
        """Nothing."""


def _summary_writer(folder: Path, step: int) -> "SummaryWriter":
    from torch.utils.tensorboard import SummaryWriter  # 0.1 s

    return SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)


def read_records(path: Path) -> list[Record]:
    """Read the records of a metrics.jsonl; a line truncated by a crash is skipped."""
    records = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(record, dict) and isinstance(record.get("step"), int):
            records.append(record)
    return records


def _json_line(record: Record) -> bytes:
    values = {name: None if _is_nonfinite(value) else value for name, value in record.items()}  # JSON has no NaN
    return (json.dumps(values, ensure_ascii=False) + "\n").encode()


def _is_nonfinite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def make_display(stream: TextIO | None = None) -> "PlainProgress | ProgressBar":
    """A progress bar on a terminal, plain lines otherwise."""
    stream = stream or sys.stderr
    return ProgressBar(stream) if stream.isatty() else PlainProgress(stream)


class Display:
    """The base of both displays: the planned steps, and the best value so far."""

    total = math.inf
    best = ""

    def begin(self, header: str, total: float, best: str) -> None:
        """Print the header; `total` is the planned number of steps, `best` the best value of a resumed run."""
        self.total, self.best = total, best
        self.line(header if math.isinf(total) else f"{header}; {total:,.0f} steps")

    def line(self, text: str) -> None:
        """Print a line."""

    def position(self, record: Record) -> str:
        """The step of a record, the total, and the epoch, as text."""
        of = "" if math.isinf(self.total) else f"/{self.total:.0f}"
        return f"step {record['step']}{of}" + (f"  epoch {record['epoch'] + 1}" if "epoch" in record else "")


def describe_training(model: "nn.Module", device: object) -> str:
    """The device and the number of parameters, as text."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    count, trained = sum(size for size, _ in sizes), sum(size for size, is_trained in sizes if is_trained)
    return f"device {device}, {count:,} parameters" + (f", {trained:,} of them trained" if trained < count else "")


def format_best(state: "TrainingState") -> str:
    """The best value so far and its step; empty before the first evaluation."""
    return "" if state.best is None else f"best {state.metric} {state.best:.4g} at {state.best_step}"


class PlainProgress(Display):
    """Prints one line per event; train records at most every `pause` seconds."""

    def __init__(self, stream: TextIO, pause: float = 3.0):
        self.stream = stream
        self.pause = pause
        self.last = -pause
        self.started: tuple[float, float] | None = None  # a time, and the fraction that was done then

    def show(self, record: Record, done: float) -> None:
        now = time.monotonic()
        if record["event"] == "train":
            self.started = self.started or (now, done)
            if now - self.last < self.pause:
                return
            self.last = now
        left = _seconds_left(self.started, now, done) if record["event"] == "train" else None
        self.line(
            format_record(record, self) + (f"  {format_duration(left)} left" if left is not None else ""),
        )

    def line(self, text: str) -> None:
        """Print a line."""
        print(text, file=self.stream, flush=True)

    def tick(self, step: int, done: float) -> None:
        """Nothing: lines are printed for events only."""

    def close(self) -> None:
        self.stream.flush()


class ProgressBar(Display):
    """A rich progress bar; other events are printed above it."""

    def __init__(self, stream: TextIO):
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = [  # all fit into 80 characters
            TextColumn("{task.description}"),
            BarColumn(bar_width=12),
            TextColumn("{task.fields[metrics]}"),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
        ]
        self.bar = Progress(*columns, console=Console(file=stream), speed_estimate_period=60, redirect_stdout=False)
        self.row = self.bar.add_task("step 0", total=None, metrics="")  # it pulses until the total is known

    def show(self, record: Record, done: float) -> None:
        if record["event"] == "train":
            more = [f"epoch {record['epoch'] + 1}", self.best] if self.bar.console.width >= WIDE else []
            self.bar.update(self.row, metrics="  ".join(filter(None, [_format_train_metrics(record), *more])))
        else:
            self.line(format_record(record, self))

    def line(self, text: str) -> None:
        """Print a line above the bar."""
        self.bar.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def tick(self, step: int, done: float) -> None:
        """Move the bar."""
        self.bar.start()
        text = self.position({"step": step})
        self.bar.update(self.row, description=text, completed=done, total=1.0 if done else None)

    def close(self) -> None:
        self.bar.stop()


def format_record(record: Record, display: Display | None = None) -> str:
    """Format a record as a line; `display` has the planned steps and the best value."""
    display = display or Display()
    if record["event"] == "note":
        return str(record["text"])
    if record["event"] == "train":
        return "  ".join(filter(None, (display.position(record), _format_train_metrics(record), display.best)))
    if record["event"] == "end":
        return f"{record['status']} after {record['step']} steps in {format_duration(record['seconds'])}"
    values = (
        f"{name} {_format_value(value)}" for name, value in record.items() if name not in ("step", "event", "seconds")
    )
    return "  ".join([f"step {record['step']}  {record['event']}", *values])


def _format_train_metrics(record: Record) -> str:
    return f"loss {record['loss']:.4f}  lr {record['lr']:.2e}  {record['tokens_per_second']:,.0f} tokens/s"


def _format_value(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.2f}"


def _seconds_left(started: tuple[float, float] | None, now: float, done: float) -> float | None:
    """Estimate the remaining seconds from the speed so far."""
    if started is None or done <= started[1] or now <= started[0]:
        return None
    return (now - started[0]) * (1 - done) / (done - started[1])


def format_duration(seconds: float) -> str:
    """Format seconds as h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
