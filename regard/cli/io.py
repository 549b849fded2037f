"""Predictors and output of the verbs: load models, print predictions, records and metrics."""

import dataclasses
import logging
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError
from ..files import json_line
from .arguments import QUIET
from .records import Record

if TYPE_CHECKING:
    from ..tasks.predictor import AnyPredictor


# --- arguments and models --------------------------------------------------------------------------------------------


def load_predictor(
    run: str, changes: dict[str, str], tunes: list[str] | None, force: bool, mute: str | None = None
) -> "AnyPredictor":
    """Load the model of a verb, with a tuned run over it if one is given."""
    from .. import api

    if tunes and len(tunes) > 1:  # typer would use the last one silently
        raise UserError(
            f"--tune is given {len(tunes)} times, but a verb uses one; run the verb once for each, or load all in "
            "Python (regard.load(base, tune=[…]))"
        )
    muted = {} if mute is None else {"mute": mute}
    return api.load(run, changes, tune=tunes[0] if tunes else None, force=force, **muted)


def load_with_top(
    run: str,
    changes: dict[str, str],
    top: int | None,
    tunes: list[str] | None,
    force: bool,
    mute: str | None = None,
) -> "AnyPredictor":
    """Load a predictor; `top` sets decode.top, which only predictors of labels or words have."""
    if top is None:
        return load_predictor(run, changes, tunes, force, mute)
    try:
        return load_predictor(run, {**changes, "decode.top": str(top)}, tunes, force, mute)
    except UserError as error:
        if not str(error).startswith("decode.top is not a key"):
            raise
        raise UserError(
            f"--top is for runs that predict labels or words, but {run} writes texts; leave it out, or get several "
            "texts with decode.strategy.n=K"
        ) from error


def check_test_data(runs: list[str]) -> None:
    """Refuse models that are not run folders: they name no test data, and the task would use embedded data."""
    from ..formats.hub import parse_hub_name
    from ..formats.model_source import find_model

    for name in (name for run in runs for name in ([run] if Path(run).exists() else run.split(","))):
        if (Path(name).exists() or parse_hub_name(name)) and find_model(name).format != "run":
            raise UserError(f"{name} is not a run folder and names no test data; give some with --data")


def check_exclusive(**options: bool) -> None:
    """Raise UserError if more than one of these options is given."""
    names = [f"--{name}" for name, on in options.items() if on]
    if len(names) > 1:
        raise UserError(f"{' and '.join(names)} cannot be combined; give one of them")


def check_predict_options(
    prompt: str | None, embed: bool, similar: str | None, labels: str | None, **flags: object
) -> None:
    """Refuse options of `predict` that ask for different outputs."""
    options = {
        "prompt": prompt is not None,
        "embed": embed,
        "similar": similar is not None,
        "labels": labels is not None,
    }
    options |= {name: bool(value) for name, value in flags.items()}
    for names in (
        "prompt embed similar out",
        "embed similar details out",
        "embed similar labels",
        "coco out",
        "draw out",
    ):
        check_exclusive(**{name: options[name] for name in names.split()})


@contextmanager
def printed_facts() -> Iterator[None]:
    """In this context, facts about the data that is read go to stderr, each once."""
    log, handler = logging.getLogger("regard"), FactPrinter()
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def print_fact(text: str) -> None:
    """Print a line for people to stderr, unless --quiet is given."""
    if not QUIET.get():
        print(f"regard: {text}", file=sys.stderr)


class FactPrinter(logging.Handler):
    """Prints facts about data to stderr."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = set[str]()

    def emit(self, record: logging.LogRecord) -> None:
        """Print the message, once and unless --quiet is given."""
        if (message := record.getMessage()) not in self.seen:
            self.seen.add(message)
            print_fact(message)


# --- output ----------------------------------------------------------------------------------------------------------


def print_records(records: Iterable[object]) -> None:
    """Print each record (a dict or a dataclass) as JSON on one line."""
    for record in records:
        print(json_line(plain_fields(record)))


def plain_fields(record: object) -> Record:
    """A record (a dict or a dataclass) as a dict."""
    return dataclasses.asdict(record) if dataclasses.is_dataclass(record) else record  # type: ignore[arg-type, return-value]


def print_continuation(predictor: "AnyPredictor", prompt: str, details: bool) -> None:
    """Stream the continuation of a prompt; several samples are separated by a line `---`.

    On a terminal the prompt is printed before it, to stderr: it is not output.
    """
    from ..tasks.predictor import Streaming

    if predictor.item_reader.record_field != "prompt" or not isinstance(predictor, Streaming):
        raise UserError("--prompt is for language models, but this run is none; give it lines of text instead")
    if details:
        print_records([predictor.predict(prompt, details=True)])
    elif predictor.run.decode.strategy.n > 1:
        print("\n---\n".join(predictor.predict(prompt)))
    else:
        if sys.stderr.isatty():
            print(prompt, end="", file=sys.stderr, flush=True)
        with warnings.catch_warnings(record=True) as delayed:  # print warnings below the text, not inside it
            for part in predictor.stream(prompt):
                print(part, end="", flush=True)
        print(flush=True)
        for warning in delayed:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def print_metrics(metrics: Record) -> None:
    """Print a line per metric."""
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
            test = system["bootstrap"][name]
            p = "" if test["p"] is None else f"  p {test['p']:.4f}"
            print(f"{name} {test['score']:.2f}  mean {test['mean']:.2f} ± {test['interval']:.2f}{p}  {system['run']}")
        print(f"{name} signature {signature}")
