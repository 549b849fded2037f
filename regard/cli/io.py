"""What the verbs of the command line share: settings and files among the arguments, lines in, records out."""

import dataclasses
import gzip
import json
import lzma
import re
import sys
import warnings
import zlib
from collections.abc import Iterable, Iterator
from itertools import islice, zip_longest
from pathlib import Path
from typing import IO, Any, cast

from ..errors import UserError

CHUNK = 1000  # lines read, worked on and printed at a time


def load_predictor(run: str, changes: dict[str, str], tunes: list[str] | None, force: bool) -> Any:
    from .. import api

    if tunes and len(tunes) > 1:  # and not the last of them, without a word
        raise UserError(
            f"--tune is given {len(tunes)} times and one verb uses one; ask for each by itself, or load all in Python "
            "(regard.load(base, tune=[…]))"
        )
    return api.load(run, changes, tune=tunes[0] if tunes else None, force=force)


def load_with_top(run: str, changes: dict[str, str], top: int | None, tunes: list[str] | None, force: bool) -> Any:
    """`loaded`, to tell the `top` likeliest, if it chooses among some."""
    if top is None:
        return load_predictor(run, changes, tunes, force)
    try:
        return load_predictor(run, {**changes, "decode.top": str(top)}, tunes, force)
    except UserError as error:
        if not str(error).startswith("decode.top is not a key"):
            raise
        how = "leave it out, or ask for several texts with decode.nbest=K"
        raise UserError(
            f"--top is for runs that choose among labels or words, and {run} writes texts; {how}"
        ) from error


def check_test_data(runs: list[str]) -> None:
    """Only a run of ours remembers what it is measured on; with another folder its task would take embedded data."""
    for name in runs:
        if Path(name).is_dir() and not (Path(name) / "run.json").is_file():
            raise UserError(f"{name} is no run of ours and has no test data; name some with --data")


def parse_settings(arguments: list[str]) -> dict[str, str]:
    changes, others = split_arguments(arguments)
    if others:
        raise UserError(f"{others[0]!r} is not a setting; expected key=value, such as train.steps=300")
    return changes


def split_arguments(arguments: list[str]) -> tuple[dict[str, str], list[str]]:
    """Settings and files: `a.b=…` is a setting, `./a.b=c` is a file."""
    changes: dict[str, str] = {}
    files = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if equals and re.fullmatch(r"[^\W\d]\w*(\.\w+)*", key):
            changes[key] = value
        else:
            files.append(argument)
    return changes, files


def check_exclusive(**given: bool) -> None:
    """Options of which each asks for another kind of answer."""
    names = [f"--{name}" for name, on in given.items() if on]
    if len(names) > 1:
        raise UserError(f"{' and '.join(names)} ask for different answers; give one of them")


def open_inputs(names: list[str]) -> list[Iterator[str]]:
    """The lines of each file, `-` or nothing being stdin. All are opened first: a missing one stops before any work."""
    if not names and sys.stdin.isatty():
        print("reading lines from the terminal; Ctrl-D ends", file=sys.stderr)
    return [decode_lines(open_binary(name), "stdin" if name == "-" else name) for name in names or ["-"]]


def open_binary(name: str) -> IO[bytes]:
    if name == "-":
        return sys.stdin.buffer
    opener: Any = {".gz": gzip.open, ".xz": lzma.open}.get(Path(name).suffix.lower(), open)
    try:
        return cast(IO[bytes], opener(name, "rb"))
    except OSError as error:
        raise UserError(f"{name} cannot be read: {error.strerror}; expected a file of lines") from error


def decode_lines(file: IO[bytes], name: str) -> Iterator[str]:
    number = 0
    try:
        for number, line in enumerate(file, 1):
            if b"\0" in line:
                raise UserError(f"{name}:{number} has a NUL byte; expected lines of text")
            yield line.rstrip(b"\r\n").decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{name}:{number} is not UTF-8; convert the file, for instance with iconv") from error
    except (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{name} breaks off after line {number}: {error}; pack or fetch it again") from error


def read_examples(files: list[str], sources: list[Iterator[str]], sides: int) -> Iterator[tuple[str, ...]]:
    """(text,) for every line; or (source, target) from two files, or from stdin with a tab between them."""
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


def chunks(items: Iterable[Any]) -> Iterator[list[Any]]:
    size = 1 if sys.stdin.isatty() else CHUNK  # somebody who types waits for each answer
    items = iter(items)
    while chunk := list(islice(items, size)):
        yield chunk


def one_line(text: str | list[Any] | tuple[str, float]) -> str:
    """A text as one line; several (decode.nbest, decode.top) with tabs between, a label with its probability."""
    if isinstance(text, list):
        return "\t".join(one_line(each).replace("\t", " ") for each in text)
    if isinstance(text, tuple):
        return one_line(f"{text[0]} {text[1]:.4f}")
    return text.replace("\r", " ").replace("\n", " ")


def print_records(records: Iterable[Any]) -> None:
    for record in records:
        plain = dataclasses.asdict(record) if dataclasses.is_dataclass(record) else record  # type: ignore[arg-type]
        print(json.dumps(plain, ensure_ascii=False))


def merge_record(asked: dict[str, Any] | None, found: Any) -> Any:
    """The answer; behind what was asked, if that was a record."""
    if asked is None:
        return found
    return asked | (found if isinstance(found, dict) else {"text": found})


def print_continuation(system: Any, prompt: str, details: bool) -> None:
    """As it comes; several samples one after the other, a line `---` between them. On a terminal the prompt, which is
    no output, stands before it."""
    if not hasattr(system, "stream"):
        raise UserError("--prompt is for language models, and this run is none; give it lines of text instead")
    if details:
        print_records([system.predict(prompt, details=True)])
    elif system.run.decode.nbest > 1:
        print("\n---\n".join(system.predict(prompt)))
    else:
        if sys.stderr.isatty():
            print(prompt, end="", file=sys.stderr, flush=True)
        with warnings.catch_warnings(record=True) as late:  # what is to be said of a text stands below it
            for piece in system.stream(prompt):
                print(piece, end="", flush=True)
        print(flush=True)
        for each in late:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


def print_metrics(figures: dict[str, Any]) -> None:
    for name, value in figures.items():
        print(name, f"{value:.4f}" if isinstance(value, float) else value)


def print_comparison(found: dict[str, Any], as_json: bool) -> None:
    """The figures of each run, then a line for every metric and run: p is of the difference from the first run."""
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
        return
    systems = found["systems"]
    for system in systems:
        print_metrics({name: value for name, value in system.items() if name != "bootstrap"})
        print()
    if "signatures" not in found:
        return
    print(f"paired bootstrap against {systems[0]['run']}")
    for name, signature in found["signatures"].items():
        for system in systems:
            one = system["bootstrap"][name]
            p = "" if one["p"] is None else f"  p {one['p']:.4f}"
            print(f"{name} {one['score']:.2f}  mean {one['mean']:.2f} ± {one['interval']:.2f}{p}  {system['run']}")
        print(f"{name} signature {signature}")
