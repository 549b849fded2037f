"""What goes out of a training: records to files, TensorBoard, a callback, the screen; and how it is told to stop."""

import json
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from .. import files

Record = dict[str, Any]


class EventLog:
    """Every record, once, to everyone who wants it."""

    def __init__(
        self,
        folder: Path,
        step: int,
        display: "PlainProgress | ProgressBar | None" = None,
        on_event: Callable[[Record], None] | None = None,
        tensorboard: bool = False,
    ):
        """Go on after `step`: what was recorded later is cut off, for it will happen again."""
        self.path = folder / "metrics.jsonl"
        self.display = display
        self.on_event = on_event
        kept = [record for record in read(self.path) if record["step"] <= step] if step else []
        with files.atomic_write(self.path) as draft:
            draft.write_bytes(b"".join(map(_line, kept)))
        with self.writing():
            self.file = self.path.open("ab", buffering=0)  # a line is there at once, or not at all
            self.board = _board(folder, step) if tensorboard else None

    def write(self, event: str, step: int, done: float = 0.0, **values: Any) -> None:
        """Record an event; `done` is the finished share of the training, for the display."""
        record = {"step": step, "event": event, **values}
        with self.writing():
            self.file.write(_line(record))
            if self.board and event in ("train", "valid"):
                for name, value in values.items():
                    self.board.add_scalar(f"{event}/{name}", value, step)
                self.board.flush()
        if self.display:
            self.display.show(record, done)
        if self.on_event:
            self.on_event(record)

    @contextmanager
    def writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise files.explain_os_error(error, self.path.parent) from error

    def __enter__(self) -> "EventLog":
        return self

    def __exit__(self, *error: object) -> None:
        for each in (self.display, self.file, self.board):
            with suppress(OSError):  # a full disk has been told already
                if each:
                    each.close()


def _board(folder: Path, step: int) -> Any:
    from torch.utils.tensorboard import SummaryWriter  # 0.1 s

    return SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)


def read(path: Path) -> list[Record]:
    """The records of a metrics.jsonl; a line cut off by a crash is left out."""
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(record, dict) and isinstance(record.get("step"), int):
            found.append(record)
    return found


def _line(record: Record) -> bytes:
    values = {name: None if _is_no_number(value) else value for name, value in record.items()}  # JSON has no NaN
    return (json.dumps(values, ensure_ascii=False) + "\n").encode()


def _is_no_number(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def display(stream: TextIO | None = None) -> "PlainProgress | ProgressBar":
    """A live bar on a terminal, plain lines anywhere else."""
    stream = stream or sys.stderr
    return ProgressBar(stream) if stream.isatty() else PlainProgress(stream)


class PlainProgress:
    """One plain line per event, those of training at most every few seconds."""

    def __init__(self, stream: TextIO, pause: float = 3.0):
        self.stream = stream
        self.pause = pause
        self.last = -pause
        self.started: tuple[float, float] | None = None  # a time, and the share that was done then

    def show(self, record: Record, done: float) -> None:
        now = time.monotonic()
        if record["event"] == "train":
            self.started = self.started or (now, done)
            if now - self.last < self.pause:
                return
            self.last = now
        left = _left(self.started, now, done) if record["event"] == "train" else None
        print(sentence(record) + (f"  {clock(left)} left" if left is not None else ""), file=self.stream, flush=True)

    def tick(self, step: int, done: float) -> None:
        """Lines come with events only."""

    def close(self) -> None:
        self.stream.flush()


class ProgressBar:
    """A rich progress bar; other events stand above it as lines."""

    def __init__(self, stream: TextIO):
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = [  # all fit into 80 characters
            TextColumn("{task.description}"),
            BarColumn(bar_width=12),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
        ]
        self.bar = Progress(*columns, console=Console(file=stream), speed_estimate_period=60, redirect_stdout=False)
        self.row = self.bar.add_task("step 0", total=None, figures="")  # it pulses until it is known how much is done

    def show(self, record: Record, done: float) -> None:
        if record["event"] == "train":
            self.bar.update(self.row, figures=_figures(record))
        else:
            self.bar.console.print(sentence(record), markup=False, highlight=False, soft_wrap=True)

    def tick(self, step: int, done: float) -> None:
        self.bar.start()
        self.bar.update(self.row, description=f"step {step}", completed=done, total=1.0 if done else None)

    def close(self) -> None:
        self.bar.stop()


def sentence(record: Record) -> str:
    """A record as a line for people."""
    if record["event"] == "note":
        return str(record["text"])
    if record["event"] == "train":
        return f"step {record['step']}  {_figures(record)}"
    if record["event"] == "end":
        return f"{record['status']} after {record['step']} updates in {clock(record['seconds'])}"
    values = (f"{name} {_number(value)}" for name, value in record.items() if name not in ("step", "event", "seconds"))
    return "  ".join([f"step {record['step']}  {record['event']}", *values])


def _figures(record: Record) -> str:
    return f"loss {record['loss']:.4f}  lr {record['lr']:.2e}  {record['tokens_per_second']:,.0f} tokens/s"


def _number(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.2f}"


def _left(started: tuple[float, float] | None, now: float, done: float) -> float | None:
    """Seconds to go at the speed so far."""
    if started is None or done <= started[1] or now <= started[0]:
        return None
    return (now - started[0]) * (1 - done) / (done - started[1])


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


class StopSignal:
    """While open, the first Ctrl-C or SIGTERM asks to stop at the next boundary; a second ends the program at once."""

    def __init__(self) -> None:
        self.asked = False
        self.before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignal":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.before[number] = signal.signal(number, self.ask)
        return self

    def ask(self, number: int, frame: Any) -> None:
        self.asked = True
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

    def __exit__(self, *error: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
