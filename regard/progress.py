"""Progress of long work other than training: code that loops reports it, and the command line shows it.

Without `shown_progress` nothing is shown. Work that ends within PATIENCE seconds shows nothing either.
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
    """Shows how far one kind of work is: a line that changes on a terminal, plain lines elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.terminal, self.busy = stream, stream.isatty(), False
        self.began = self.last = time.monotonic()
        self.shown = False

    def start(self) -> None:
        """Begin another kind of work."""
        self.busy, self.began = True, time.monotonic()
        self.last = self.began - PAUSES[self.terminal]

    def update(self, what: str, done: int, total: int | None) -> None:
        """Show the position, if it is time to."""
        now = time.monotonic()
        if now - self.began < PATIENCE or now - self.last < PAUSES[self.terminal]:
            return
        self.last, of = now, f"/{total:,}" if total else ""
        left = (now - self.began) * (total - done) / done if total and done else None
        text = f"{what} {done:,}{of}" + (f"  {_duration(left)} left" if left is not None else "")
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
def shown_progress(quiet: bool = False, stream: TextIO | None = None) -> Iterator[None]:
    """In this context, stderr (or `stream`) shows the progress of what loops with `track`; nothing if `quiet`."""
    token = METER.set(None if quiet else Meter(stream or sys.stderr))
    try:
        yield
    finally:
        METER.reset(token)


def track(
    entries: Iterable[Entry], what: str, total: int | None = None, size: Callable[[Entry], int] = lambda entry: 1
) -> Iterator[Entry]:
    """Yield the entries and report how many are done; `size` counts what is in one, such as the texts of a batch.

    Inside another loop that reports, this one does not.
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


def stage(what: str) -> None:
    """Report that another part of long work begins, which cannot be counted; nothing if all of it is quick."""
    meter = METER.get()
    if meter is not None and not meter.busy and time.monotonic() - meter.began >= PATIENCE:
        meter.stream.write(f"regard: {what}\n")
        meter.stream.flush()


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
