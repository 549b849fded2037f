"""Predictions for files that are items, such as images, and the position in long recordings."""

import shutil
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any, TextIO

from ..errors import UserError
from ..files import json_line
from ..messages.base import to_json
from .inputs import Entry, InputFile, chunks


def print_files(predictor: Any, sources: Iterable[InputFile], details: bool) -> None:
    """Print a line for every file; with `details` a JSON record with its path.

    A file that cannot be read ends the work after the lines before it; with data.invalid=skip it is reported.
    """
    skipped = 0
    for entry, request, result in file_results(predictor, sources, details):
        if isinstance(result, UserError):
            skipped += 1
            print(f"regard: {result}", file=sys.stderr)
            record = {"path": entry.name, "error": str(result)}
            line = f"{entry.name}\t"
        else:
            record = {"path": entry.name, **to_json(result)} if details else {}
            line = predictor.format_line(entry.name, request, result)
        print(json_line(record) if details else line)
        sys.stdout.flush()
    print_skipped(skipped)


def file_results(
    predictor: Any, sources: Iterable[InputFile], details: bool = False
) -> Iterator[tuple[Entry, Any, Any]]:
    """Every file with its request and its result; the result of a file that is skipped is its error."""
    skip = predictor.run.data.invalid == "skip"
    for chunk in chunks(sources, predictor.run.decode.batch):
        requests = predictor.requests([entry.item for entry in chunk], details)
        try:
            with recording_progress(predictor):
                results = predictor.predict_requests(requests)
        except UserError:  # find the file, and predict those before it
            results = (
                _predict_one(predictor, entry, request, skip) for entry, request in zip(chunk, requests, strict=True)
            )
        for entry, request, result in zip(chunk, requests, results, strict=True):
            for notice in getattr(result, "notices", ()):
                warnings.warn(f"{entry.name}: {notice}", stacklevel=2)
            yield entry, request, result


def _predict_one(predictor: Any, entry: Entry, request: Any, skip: bool) -> Any:
    try:
        with recording_progress(predictor):
            (result,) = predictor.predict_requests([request])
    except UserError as error:
        named = error if entry.name in str(error) else UserError(f"{entry.name}: {error}")
        if skip:
            return named
        raise named from error
    return result


def print_skipped(count: int) -> None:
    """Report how many files could not be read, if there were any."""
    if count:
        noun = "file" if count == 1 else "files"
        print(f"regard: {count:,} {noun} cannot be read (data.invalid=skip)", file=sys.stderr)


def free_name(name: str, used: set[str], suffix: str) -> str:
    """The name of the output for a file, which is added to `used`; files of equal names get numbers."""
    stem, number = PurePosixPath(name).stem, 1
    while (candidate := f"{stem}{suffix}" if number == 1 else f"{stem}-{number}{suffix}") in used:
        number += 1
    used.add(candidate)
    return candidate


PAUSE = 0.2  # seconds between updates


CLEAR = "\r\x1b[K"  # go to the beginning of the line and erase it


class RecordingProgress:
    """One line with the name of a recording and the position in it."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.last = stream, 0.0

    def show(self, name: str, position: float, total: float) -> None:
        """Show the position, unless the recording is complete, as short ones are after their only window."""
        from ..training.progress import format_duration

        if position >= total or time.monotonic() - self.last < PAUSE:
            return
        text = f"{name}  {format_duration(position)} of {format_duration(total)}"
        width = shutil.get_terminal_size().columns - 1
        self.stream.write(f"{CLEAR}{text[-width:]}")
        self.stream.flush()
        self.last = time.monotonic()

    def clear(self) -> None:
        if self.last:
            self.stream.write(CLEAR)
            self.stream.flush()


@contextmanager
def recording_progress(predictor: Any) -> Iterator[None]:
    """In this context, stderr shows the position in recordings if it is a terminal."""
    predictors = getattr(predictor, "predictors", {"": predictor})  # of several tuned runs
    reporting = [reporter for reporter in predictors.values() if hasattr(reporter, "on_progress")]
    if not reporting or not sys.stderr.isatty():
        yield
        return
    progress = RecordingProgress(sys.stderr)
    for reporter in reporting:
        reporter.on_progress = progress.show
    try:
        yield
    finally:
        for reporter in reporting:
            reporter.on_progress = None
        progress.clear()
