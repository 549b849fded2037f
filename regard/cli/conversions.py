"""The commands that derive something from a run: another format, a run with fewer heads, translations of its data."""

from pathlib import Path
from typing import Annotated

import typer

from ..files import json_line
from .arguments import parse_settings
from .completion import complete_run
from .io import print_fact
from .options import AsJson, RunFolder, Settings


def convert(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder.", autocompletion=complete_run)],
    to: Annotated[str | None, typer.Option(help="The format: huggingface, ctranslate2 or peft.")] = None,
    out: Annotated[Path, typer.Option(help="The folder to create.")] = ...,  # type: ignore[assignment]
    average: Annotated[int, typer.Option(metavar="K", help="Average the last K checkpoints.")] = 0,
    precision: Annotated[str, typer.Option(help="For ctranslate2: fp32, bf16 or int8.")] = "fp32",
    data: Annotated[str | None, typer.Option(metavar="SIDES", help="Examples to evaluate for the model card.")] = None,
    merge: Annotated[bool, typer.Option("--merge", help="Merge LoRA weights into the base.")] = False,
    as_json: AsJson = False,
) -> None:
    """Convert a run to another format, average its checkpoints, or merge it with its base."""
    from .. import api
    from ..config.run import parse_data_files

    files = None if data is None else parse_data_files(data)
    report = api.convert(run, out=out, to=to, average=average, precision=precision, data=files, merge=merge)
    print(json_line(report) if as_json else "\n".join(f"{name} {value}" for name, value in report.items()))


def prune(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder.", autocompletion=complete_run)],
    heads: Annotated[
        str, typer.Option(metavar="HEADS", help="layer.head such as 3.2,4.1; or least:K, the least useful by --effect.")
    ],
    out: Annotated[Path, typer.Option(help="The run folder to create.")],
    effect: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What `regard look RUN --effect --out FILE.json` wrote.")
    ] = None,
) -> None:
    """Remove attention heads from a run for good."""
    from .. import api

    for name, value in api.prune(run, heads=heads, out=out, effect=effect).items():
        print(name, value)


def distill(
    run: RunFolder,
    settings: Settings = None,
    data: Annotated[
        str | None, typer.Option(metavar="SOURCE", help="The texts to translate; default: data.train of the run.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The file to create; .tsv: sources with their targets.")] = ...,  # type: ignore[assignment]
    splice: Annotated[
        int, typer.Option(min=0, help="Add so many new texts for each source, made of pieces of the sources.")
    ] = 0,
) -> None:
    """Write the translations of training data, to train another model on them; run it again to continue."""
    from .. import api
    from ..config.run import parse_data_files

    files = None if data is None else parse_data_files(data)
    count = api.distill(run, parse_settings(settings or []), out=out, data=files, splice=splice, report=print_fact)
    print(f"lines {count}")
