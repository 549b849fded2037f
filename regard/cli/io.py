"""Input and output of the verbs: read lines, print records and metrics."""

import dataclasses
import sys
import warnings
from collections.abc import Iterable, Iterator
from itertools import islice, zip_longest
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeAlias, TypeVar

from ..errors import UserError
from ..files import json_line
from .records import Record, parse_records

if TYPE_CHECKING:
    from ..tasks.predictor import AnyPredictor

T = TypeVar("T")
Line: TypeAlias = str | float | tuple[str, float] | list[str] | list[tuple[str, float]] | None  # a prediction
CHUNK = 1000  # lines that are read, processed and printed at a time


# --- arguments and models --------------------------------------------------------------------------------------------


def load_predictor(run: str, changes: dict[str, str], tunes: list[str] | None, force: bool) -> "AnyPredictor":
    from .. import api

    if tunes and len(tunes) > 1:  # typer would use the last one silently
        raise UserError(
            f"--tune is given {len(tunes)} times, but a verb uses one; run the verb once for each, or load all in "
            "Python (regard.load(base, tune=[…]))"
        )
    return api.load(run, changes, tune=tunes[0] if tunes else None, force=force)


def load_with_top(
    run: str, changes: dict[str, str], top: int | None, tunes: list[str] | None, force: bool
) -> "AnyPredictor":
    """Load a predictor; `top` sets decode.top, which only predictors of labels or words have."""
    if top is None:
        return load_predictor(run, changes, tunes, force)
    try:
        return load_predictor(run, {**changes, "decode.top": str(top)}, tunes, force)
    except UserError as error:
        if not str(error).startswith("decode.top is not a key"):
            raise
        raise UserError(
            f"--top is for runs that predict labels or words, but {run} writes texts; leave it out, or get several "
            "texts with decode.nbest=K"
        ) from error


def check_test_data(runs: list[str]) -> None:
    """Only a run folder names its test data; for other models the task would fall back to embedded data."""
    from ..formats.hub import parse_hub_name
    from ..formats.model_source import find_model

    for name in (name for run in runs for name in ([run] if Path(run).exists() else run.split(","))):
        if (Path(name).exists() or parse_hub_name(name)) and find_model(name).kind != "run":
            raise UserError(f"{name} is not a run folder and names no test data; give some with --data")


def check_exclusive(**given: bool) -> None:
    """Raise UserError if more than one of these options is given."""
    names = [f"--{name}" for name, on in given.items() if on]
    if len(names) > 1:
        raise UserError(f"{' and '.join(names)} cannot be combined; give one of them")


# --- input -----------------------------------------------------------------------------------------------------------


def open_inputs(names: list[str]) -> list[Iterator[str]]:
    """The lines of each file; `-` or no name is stdin. All files are opened first: a missing one stops before work."""
    if not names and sys.stdin.isatty():
        print("reading lines from the terminal; Ctrl-D ends", file=sys.stderr)
    return [decode_lines(open_binary(name), "stdin" if name == "-" else name) for name in names or ["-"]]


def open_binary(name: str) -> IO[bytes]:
    """Open a file, compressed or not; `-` is stdin."""
    if name == "-":
        return sys.stdin.buffer
    from ..data.open_file import open_decompressed

    return open_decompressed(Path(name))


def decode_lines(file: IO[bytes], name: str) -> Iterator[str]:
    """The lines of a UTF-8 file without their ends; `name` is for error messages."""
    from ..data.open_file import ARCHIVE_ERRORS

    number = 0
    try:
        for number, line in enumerate(file, 1):
            if b"\0" in line:
                raise UserError(f"{name}:{number} has a NUL byte; expected lines of text")
            yield line.rstrip(b"\r\n").decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{name}:{number} is not UTF-8; convert the file, for instance with iconv") from error
    except ARCHIVE_ERRORS as error:
        raise UserError(f"{name} cannot be decompressed after line {number}: {error}; get the file again") from error


def read_examples(files: list[str], sources: list[Iterator[str]], sides: int) -> Iterator[tuple[str, ...]]:
    """(text,) for every line; with two sides (source, target) from two files, or from stdin with a tab between."""
    if sides == 1:
        return ((line,) for source in sources for line in source)
    if len(files) not in (0, 2):
        raise UserError(f"score takes two files, SOURCE and TARGET, or none (stdin then has both), not {len(files)}")
    return zip_lines(files, *sources) if files else split_at_tabs(*sources)


def zip_lines(names: list[str], sources: Iterator[str], targets: Iterator[str]) -> Iterator[tuple[str, str]]:
    for number, (source, target) in enumerate(zip_longest(sources, targets)):
        if source is None or target is None:
            more = 1 + sum(1 for _ in sources) + sum(1 for _ in targets)
            counts = (number, number + more) if source is None else (number + more, number)
            raise UserError(f"{names[0]} has {counts[0]} lines and {names[1]} has {counts[1]}; expected equally many")
        yield source, target


def split_at_tabs(lines: Iterator[str]) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(lines, 1):
        cells = line.split("\t")
        if len(cells) != 2:
            raise UserError(f"stdin:{number} has {len(cells) - 1} tabs; expected the source, one tab and the target")
        yield cells[0], cells[1]


def chunks(items: Iterable[T]) -> Iterator[list[T]]:
    """Lists of CHUNK items; of one item if a person types, who waits for each answer."""
    size = 1 if sys.stdin.isatty() else CHUNK
    items = iter(items)
    while chunk := list(islice(items, size)):
        yield chunk


# --- output ----------------------------------------------------------------------------------------------------------


def one_line(text: Line) -> str:
    """A text on one line; several (decode.nbest, decode.top) separated by tabs, a label with its probability."""
    if isinstance(text, list):
        return "\t".join(one_line(each).replace("\t", " ") for each in text)
    if isinstance(text, float) or text is None:  # the number of a regressor; an empty text has none
        return "" if text is None else f"{text:.7g}"
    if isinstance(text, tuple):
        return one_line(f"{text[0]} {text[1]:.4f}")
    return text.replace("\r", " ").replace("\n", " ")


def print_records(records: Iterable[object]) -> None:
    """Print each record (a dict or a dataclass) as JSON on one line."""
    for record in records:
        plain = dataclasses.asdict(record) if dataclasses.is_dataclass(record) else record  # type: ignore[arg-type]
        print(json_line(plain))


def print_predictions(predictor: "AnyPredictor", lines: Iterable[str], details: bool) -> None:
    """Print the prediction of every item: as JSON if `details` or if the input has JSON records, else as a line."""
    for chunk in chunks(parse_records(predictor.items(lines), predictor.field)):
        predictions = predictor.predict([text for text, _ in chunk], details)
        if details or chunk[0][1] is not None:
            print_records(merge_record(record, each) for (_, record), each in zip(chunk, predictions, strict=True))
        else:
            sys.stdout.writelines((text if predictor.multiline else one_line(text)) + "\n" for text in predictions)
        sys.stdout.flush()


def merge_record(record: Record | None, prediction: "str | list[str] | Record") -> "str | list[str] | Record":
    """The prediction, after the fields of the input record if there was one."""
    if record is None:
        return prediction
    return record | (prediction if isinstance(prediction, dict) else {"text": prediction})


def print_continuation(predictor: "AnyPredictor", prompt: str, details: bool) -> None:
    """Stream the continuation of a prompt; several samples are separated by a line `---`.

    On a terminal the prompt is printed before it, to stderr: it is not output.
    """
    from ..tasks.predictor import Streaming

    if predictor.field != "prompt" or not isinstance(predictor, Streaming):
        raise UserError("--prompt is for language models, but this run is none; give it lines of text instead")
    if details:
        print_records([predictor.predict(prompt, details=True)])
    elif predictor.run.decode.nbest > 1:
        print("\n---\n".join(predictor.predict(prompt)))
    else:
        if sys.stderr.isatty():
            print(prompt, end="", file=sys.stderr, flush=True)
        with warnings.catch_warnings(record=True) as late:  # print warnings below the text, not inside it
            for part in predictor.stream(prompt):
                print(part, end="", flush=True)
        print(flush=True)
        for each in late:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


def print_metrics(metrics: Record) -> None:
    for name, value in metrics.items():
        print(name, f"{value:.4f}" if isinstance(value, float) else value)


def print_comparison(comparison: Record, as_json: bool) -> None:
    """Print the metrics of each run, then a line per metric and run; p is that of the difference from the first run."""
    if as_json:
        print(json_line(comparison))
        return
    systems = comparison["systems"]
    for system in systems:
        print_metrics({name: value for name, value in system.items() if name != "bootstrap"})
        print()
    if "signatures" not in comparison:
        return
    print(f"paired bootstrap against {systems[0]['run']}")
    for name, signature in comparison["signatures"].items():
        for system in systems:
            one = system["bootstrap"][name]
            p = "" if one["p"] is None else f"  p {one['p']:.4f}"
            print(f"{name} {one['score']:.2f}  mean {one['mean']:.2f} ± {one['interval']:.2f}{p}  {system['run']}")
        print(f"{name} signature {signature}")
