"""Progress of long loops other than training: code reports it by `track`, and the command line shows it.

Only inside `show_progress`, and only after PATIENCE seconds, is anything shown.
"""

import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TextIO, TypeVar

Entry = TypeVar("Entry")
PATIENCE = 2.0  # seconds before anything is shown
PAUSES = {True: 0.2, False: 15.0}  # seconds between two updates, on a terminal and elsewhere
CLEAR = "\r\x1b[K"  # go to the beginning of the line and erase it


class Meter:
    """Shows the progress of a loop: a line that changes on a terminal, plain lines elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.terminal, self.busy = stream, stream.isatty(), False
        self.began = self.last = time.monotonic()
        self.shown = False

    def start(self) -> None:
        """Begin another loop."""
        self.busy, self.began = True, time.monotonic()
        self.last = self.began - PAUSES[self.terminal]

    def update(self, what: str, done: int, total: int | None) -> None:
        """Show the position, if it is time to."""
        now = time.monotonic()
        if now - self.began < PATIENCE or now - self.last < PAUSES[self.terminal]:
            return
        self.last, out_of = now, f"/{total:,}" if total else ""
        remaining = (now - self.began) * (total - done) / done if total and done else None
        text = f"{what} {done:,}{out_of}" + (f"  {_duration(remaining)} left" if remaining is not None else "")
        if self.terminal:
            self.stream.write(CLEAR + text[: shutil.get_terminal_size().columns - 1])
        else:
            self.stream.write(f"regard: {text}\n")
        self.shown = True
        self.stream.flush()

    def finish(self) -> None:
        """Remove the line from a terminal."""
        if self.shown and self.terminal:
            self.stream.write(CLEAR)
            self.stream.flush()
        self.busy = self.shown = False


METER: ContextVar[Meter | None] = ContextVar("regard_meter", default=None)


@contextmanager
def show_progress(quiet: bool = False, stream: TextIO | None = None) -> Iterator[None]:
    """In this context, stderr (or `stream`) shows the progress of `track`; nothing if `quiet`."""
    token = METER.set(None if quiet else Meter(stream or sys.stderr))
    try:
        yield
    finally:
        METER.reset(token)


def track(
    entries: Iterable[Entry], what: str, total: int | None = None, size: Callable[[Entry], int] = lambda entry: 1
) -> Iterator[Entry]:
    """Yield the entries and report the number done; `size` counts the items of an entry, such as texts of a batch.

    A loop inside another tracked loop is not reported.
    """
    meter = METER.get()
    if meter is None or meter.busy:
        yield from entries
        return
    meter.start()
    done = 0
    try:
        for entry in entries:
            yield entry
            done += size(entry)
            meter.update(what, done, total)
    finally:
        meter.finish()


def report_stage(what: str) -> None:
    """Report the beginning of a stage that cannot be counted; nothing within PATIENCE seconds."""
    meter = METER.get()
    if meter is not None and not meter.busy and time.monotonic() - meter.began >= PATIENCE:
        meter.stream.write(f"regard: {what}\n")
        meter.stream.flush()


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
