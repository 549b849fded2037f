"""The results of items in lines and files, and the position in long recordings."""

import shutil
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from ..errors import UserError
from ..progress import track
from .inputs import Entry, InputFile, chunks

if TYPE_CHECKING:
    from ..tasks.predictor import AnyPredictor


class Output(NamedTuple):
    """An item with its request and its result; or with the error of an item that is skipped."""

    entry: Entry
    request: Any
    result: Any
    error: UserError | None = None


def results_of(
    predictor: "AnyPredictor", sources: Iterable[InputFile], details: bool = False
) -> Iterator[Iterable[Output]]:
    """The results of all items, as many at a time as are predicted together."""
    if predictor.item_reader.files is not None:
        return _file_results(predictor, sources, details)
    return _text_results(predictor, sources, details)


def _text_results(predictor: "AnyPredictor", sources: Iterable[InputFile], details: bool) -> Iterator[Iterable[Output]]:
    from ..tasks.notices import warn_once

    for chunk in track(chunks(sources), "predicted", size=len):
        requests = predictor.requests([entry.item for entry in chunk], details)
        results = predictor.predict_requests(requests)
        warn_once((notice for result in results for notice in result.notices), len(results))
        yield map(Output, chunk, requests, results)


def _file_results(predictor: "AnyPredictor", sources: Iterable[InputFile], details: bool) -> Iterator[Iterable[Output]]:
    """Notices name their file. A file that cannot be read ends the work after the results before it, or is skipped."""
    for chunk in chunks(sources, predictor.run.decode.batch):
        requests = predictor.requests([entry.item for entry in chunk], details)
        try:
            with recording_progress(predictor):
                outputs: Iterable[Output] = list(map(Output, chunk, requests, predictor.predict_requests(requests)))
        except UserError:  # find the file, and predict those before it
            outputs = (_predict_one(predictor, *pair) for pair in zip(chunk, requests, strict=True))
        yield _with_warnings(outputs)


def _with_warnings(outputs: Iterable[Output]) -> Iterator[Output]:
    for output in outputs:
        for notice in () if output.error is not None else output.result.notices:
            warnings.warn(f"{output.entry.name}: {notice}", stacklevel=2)
        yield output


def _predict_one(predictor: "AnyPredictor", entry: Entry, request: Any) -> Output:
    try:
        with recording_progress(predictor):
            (result,) = predictor.predict_requests([request])
    except UserError as error:
        named = error if entry.name in str(error) else UserError(f"{entry.name}: {error}")
        if predictor.run.data.invalid == "skip":
            return Output(entry, request, None, named)
        raise named from error
    return Output(entry, request, result)


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
