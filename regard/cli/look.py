"""The verb `look`: write the attention weights for one input to a file."""

from os.path import isfile
from pathlib import Path
from typing import Annotated

import typer

from ..errors import UserError
from .arguments import split_arguments
from .inputs import read_record
from .options import RunFolder

LookInputs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TEXT|KEY=VALUE",
        help="The input text, a file with it, an image or a recording, and the target text (default: the output of "
        "the model); settings. Write a text that looks like a setting after --.",
    ),
]
LookFile = Annotated[
    Path, typer.Option("--out", help="The page (.html), picture (.png, .pdf, .svg) or numbers (.json) to write.")
]
LayerOption = Annotated[
    str | None, typer.Option("--layer", metavar="N|all", help="A layer, from 1; default: all, one in a picture.")
]
KindOption = Annotated[
    str | None,
    typer.Option("--kind", metavar="KIND", help="encoder, decoder, cross or order; default: cross, if there is some."),
]
HeadOption = Annotated[str | None, typer.Option("--head", metavar="N|all", help="A head, from 1; default: their mean.")]
RecordOption = Annotated[int | None, typer.Option("--record", metavar="N", help="The record of the file, from 1.")]

NAMES = {".html": "page", ".json": "numbers"}  # what a file is; else a picture


def look(
    run: RunFolder,
    arguments: LookInputs = None,
    out: LookFile = Path("picture.png"),
    layer: LayerOption = None,
    head: HeadOption = None,
    kind: KindOption = None,
    record: RecordOption = None,
) -> None:
    """Write the attention weights as a page, a picture or numbers."""
    from .. import api
    from ..look import check_view_path
    from ..tasks.predictor import FileItems

    changes, texts = split_arguments(arguments or [])
    if not 1 <= len(texts) <= 2:
        raise UserError(f'look takes a text and perhaps its target, not {len(texts)} texts; put each into "…"')
    check_view_path(out)
    predictor = api.load(run, changes)
    if isfile(texts[0]) and not isinstance(predictor, FileItems):
        texts[0] = read_record(predictor, changes, texts[0], record or 1)
    elif record is not None:
        raise UserError(f"--record is {record}, but {texts[0]!r:.60} is a text and not a file; leave it out")
    number = parse_number(layer)
    view = predictor.look(texts[0], texts[1] if len(texts) > 1 else None, number)
    view.save(out, number, parse_number(head), kind)
    print(NAMES.get(out.suffix.lower(), "picture"), out)


def parse_number(text: str | None) -> int | str | None:
    """The number of a layer or head, or the text if it is none."""
    return int(text) if text and text.isdecimal() else text
