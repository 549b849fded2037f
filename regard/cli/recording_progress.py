"""The position in long recordings, on a terminal."""

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

PAUSE = 0.2  # seconds between updates
CLEAR = "\r\x1b[K"  # go to the beginning of the line and erase it


class RecordingProgress:
    """One line with the name of a recording and the position in it."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.last = stream, 0.0

    def show(self, name: str, done: float, whole: float) -> None:
        """Nothing if the recording is complete: short ones are, after their only window."""
        from ..training.progress import format_duration

        if done >= whole or time.monotonic() - self.last < PAUSE:
            return
        text = f"{name}  {format_duration(done)} of {format_duration(whole)}"
        width = shutil.get_terminal_size().columns - 1
        self.stream.write(f"{CLEAR}{text[-width:]}")
        self.stream.flush()
        self.last = time.monotonic()

    def clear(self) -> None:
        if self.last:
            self.stream.write(CLEAR)
            self.stream.flush()


@contextmanager
def shown_progress(predictor: Any) -> Iterator[None]:
    """In this context, stderr shows the position in recordings if it is a terminal."""
    own = getattr(predictor, "predictors", {"": predictor})  # of several tuned runs
    reporting = [each for each in own.values() if hasattr(each, "on_progress")]
    if not reporting or not sys.stderr.isatty():
        yield
        return
    progress = RecordingProgress(sys.stderr)
    for each in reporting:
        each.on_progress = progress.show
    try:
        yield
    finally:
        for each in reporting:
            each.on_progress = None
        progress.clear()
