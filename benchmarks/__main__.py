"""`python -m benchmarks WHAT`: time regard beside its peers, with the same weights and inputs, in one run."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.runner import run_app

from . import bench

app = typer.Typer(add_completion=False)


@app.command()
def run(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="translate, generate, encode, long, multimodal, scaling, speech, tune, vision, whisper or big-file.",
        ),
    ],
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1 (a number).")] = "auto",
    size: Annotated[str | None, typer.Option(help="Model size; default: the size of the published results.")] = None,
    rounds: Annotated[int, typer.Option(help="Rounds; every program runs once in each round.")] = 5,
    only: Annotated[str | None, typer.Option(metavar="PART", help="Run one part of the benchmark.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="PNG", help="For scaling: the picture to write.")] = None,
    lines: Annotated[int | None, typer.Option(help="For big-file: the lines of the file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Time regard beside other programs with the same weights and inputs."""
    report = bench(what, device, size, rounds, only, out, lines)
    print(json.dumps(report.values()) if as_json else report.table())


def main(arguments: list[str] | None = None) -> int:
    """Run one benchmark and return its exit code."""
    return run_app(app, "python -m benchmarks", sys.argv[1:] if arguments is None else arguments)


if __name__ == "__main__":
    sys.exit(main())
