"""The verb `look`: write the attention weights for one input to a file."""

from os.path import isfile
from pathlib import Path
from typing import Annotated

import typer

from ..errors import UserError
from .arguments import split_arguments
from .completion import complete_setting
from .inputs import read_record
from .io import load_predictor
from .measures import (
    DeletionFlag,
    EffectFlag,
    ExamplesOption,
    HeadsData,
    LensFlag,
    Measure,
    MeasureData,
    NGramsFlag,
    NormsFlag,
    SaliencyFlag,
    WordOption,
    as_pair,
    run_measure,
)
from .options import Mute, RunFolder

LookInputs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TEXT|KEY=VALUE",
        help="The input text, a file with it, an image or a recording, and the target text (default: the output of "
        "the model); settings. Write a text that looks like a setting after --.",
        autocompletion=complete_setting,
    ),
]
LookFile = Annotated[
    Path | None,
    typer.Option(
        "--out",
        help="The page (.html), picture (.png, .pdf, .svg) or numbers (.json) to write; default: picture.png. "
        "Measurements write pictures and numbers.",
    ),
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

NAMES = {".html": "page", ".json": "numbers"}  # by suffix; other files are pictures


def look(
    run: RunFolder,
    arguments: LookInputs = None,
    out: LookFile = None,
    layer: LayerOption = None,
    head: HeadOption = None,
    kind: KindOption = None,
    record: RecordOption = None,
    heads: HeadsData = None,
    data: MeasureData = None,
    effect: EffectFlag = False,
    word: WordOption = None,
    lens: LensFlag = False,
    saliency: SaliencyFlag = False,
    deletion: DeletionFlag = False,
    examples: ExamplesOption = 100,
    norms: NormsFlag = False,
    ngrams: NGramsFlag = False,
    mute: Mute = None,
) -> None:
    """Write the attention weights as a page, a picture or numbers; or measure what heads and tokens contribute."""
    from ..look import check_view_path

    changes, texts = split_arguments(arguments or [])
    measure = Measure(heads, data, effect, word, lens, saliency, deletion, examples, ngrams)
    if measure.is_selected:
        run_measure(load_predictor(run, changes, None, False, mute), measure, texts, out)
        return
    out = out or Path("picture.png")
    if not 1 <= len(texts) <= 2:
        raise UserError(f'look takes a text and perhaps its target, not {len(texts)} texts; put each into "…"')
    check_view_path(out)
    predictor = load_predictor(run, changes, None, False, mute)
    if norms:
        predictor = predictor.norm_weighted()
    if isfile(texts[0]) and predictor.item_reader.files is None:
        texts[0] = read_record(predictor, changes, texts[0], record or 1)
    elif record is not None:
        raise UserError(f"--record is {record}, but {texts[0]!r:.60} is a text and not a file; leave it out")
    number, items = parse_number(layer), as_pair(predictor, texts)
    view = predictor.look(items[0], str(items[1]) if len(items) > 1 else None, number)
    if view.decision is not None:
        print(view.decision.summary)
    view.save(out, number, parse_number(head), kind)
    print(NAMES.get(out.suffix.lower(), "picture"), out)


def parse_number(text: str | None) -> int | str | None:
    """The number of a layer or head, or the text if it is not a number."""
    return int(text) if text and text.isdecimal() else text
