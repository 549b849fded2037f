"""The verbs of the command line. Each parses, calls one function and prints: results to stdout, the rest to stderr."""

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..errors import UserError
from ..files import check_picture_path, json_line
from ..progress import track
from ..threads import limit_spinning
from .arguments import QUIET, add_options, parse_settings, split_arguments
from .completion import complete_recipe, complete_run
from .conversions import convert, distill, prune
from .detections import check_outputs, save_detections
from .files import print_skipped
from .info import preview, print_explanation
from .inputs import InputReader, check_files, chunks
from .io import (
    check_predict_options,
    check_test_data,
    load_predictor,
    load_with_top,
    print_comparison,
    print_continuation,
    print_fact,
    print_metrics,
    print_records,
    printed_facts,
)
from .look import look
from .options import (
    AsJson,
    CocoFile,
    Details,
    Drawings,
    Examples,
    Explain,
    Force,
    Inputs,
    Labels,
    Language,
    Mute,
    OtherRuns,
    Plugins,
    Prompt,
    Quiet,
    RunFolder,
    Settings,
    Show,
    Similar,
    SpokenTask,
    Template,
    Top,
    TranscriptFiles,
    TranscriptFormats,
    TuneFolder,
    Version,
)
from .runner import run_app
from .transcript_files import parse_outputs, save_transcripts
from .writers import stdout_writer, write_results

app = typer.Typer(
    name="regard",
    help="Train, evaluate, use and inspect Transformers.",
    epilog="Settings are key=value; `regard train RECIPE --show all` lists the keys, such as train.steps=300.",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def before_command(
    context: typer.Context, version: Version = False, plugin: Plugins = None, quiet: Quiet = False
) -> None:
    """Handle the options that stand before the verb."""
    if version:
        from .. import __version__

        print(f"regard {__version__}")
        raise typer.Exit
    for source in plugin or ():
        from ..plugins import load_plugin

        load_plugin(source)
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def demo(out: Annotated[Path, typer.Option(help="The run folder to create.")] = Path("runs/demo")) -> None:
    """Train, evaluate and use a small model, in minutes on a CPU."""
    from ..demo import run_demo

    exit_if_stopped(run_demo(out))


@app.command()
def train(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE", help="A name from `regard list`, or a .toml file.", autocompletion=complete_recipe
        ),
    ] = None,
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option(help="The run folder to create; default: runs/RECIPE.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in --out; RECIPE may be left out.")] = False,
    show: Show = False,
    dry: Annotated[bool, typer.Option("--dry", help="Only read data.train, build the model and print sizes.")] = False,
    explain: Explain = None,
    as_json: AsJson = False,
) -> None:
    """Train a model."""
    from .. import api
    from ..runs import stages

    arguments = list(settings or [])
    if everything := show and "all" in arguments:
        arguments.remove("all")
    if resume and recipe is not None and "=" in recipe:  # a setting: RECIPE is left out
        arguments, recipe = [recipe, *arguments], None
    changes = parse_settings(arguments)
    if recipe is None and (show or dry or explain or not resume):
        raise UserError("missing argument 'RECIPE'; `regard train --help` shows what is expected")
    if out is None and recipe is None:
        raise UserError("--resume without RECIPE needs the folder of the run; give --out RUN")
    out = out or Path("runs") / Path(recipe or "").stem
    if recipe is not None and explain:
        print_explanation(recipe, changes, explain, as_json)
        return
    if recipe is not None and (show or dry):
        print(preview(recipe, changes, out, show, dry, everything))
        return
    progress = not QUIET.get()
    if stages.has_stages(recipe, out, resume):
        exit_if_stopped(
            stages.run_stages(recipe, changes, out=out, resume=resume, report=print_fact, progress=progress)
        )
        return
    outcome = api.run_training(recipe, changes, out=out, resume=resume, progress=progress).outcome
    if as_json:
        print(json_line({"run": str(out), **dataclasses.asdict(outcome)}))
    exit_if_stopped(outcome.signal)


def exit_if_stopped(signal: int) -> None:
    """End with the exit code of the signal that stopped a training, if there was one."""
    if signal:
        raise typer.Exit(128 + signal)


@app.command("eval")
def evaluate(
    run: RunFolder,
    arguments: OtherRuns = None,
    data: Annotated[
        str | None, typer.Option(metavar="SIDES", help="SOURCE,TARGET or TEXTS; default: data.test of the run.")
    ] = None,
    as_json: AsJson = False,
    out: Annotated[Path | None, typer.Option(help="Draw the confusion matrix: .png, .pdf or .svg.")] = None,
    tune: TuneFolder = None,
    force: Force = False,
    mute: Mute = None,
) -> None:
    """Evaluate a model on labeled data or texts; compare several models, with a paired bootstrap for written text."""
    from .. import api
    from ..config.run import parse_data_files
    from .embeddings import save_confusion

    changes, other_runs = split_arguments(arguments or [])
    files = None if data is None else parse_data_files(data)
    if files is None and not tune:
        check_test_data([run, *other_runs])
    if other_runs and mute:
        raise UserError("--mute works with one run, but several are compared; evaluate each alone")
    if other_runs and tune:
        raise UserError("--tune works with one run, but several are compared; name the tuned runs instead")
    if other_runs and out is not None:
        raise UserError("--out draws the confusion matrix of one run, but several are compared; leave it out")
    if out is not None:
        check_picture_path(out)
    if other_runs:
        with printed_facts():
            comparison = api.compare([run, *other_runs], changes, files)
        print_comparison(comparison, as_json)
        return
    predictor = load_predictor(run, changes, tune, force, mute)
    with printed_facts():
        metrics = predictor.evaluate(files)
    if as_json:
        print(json_line(metrics))
    else:
        print_metrics(metrics)
    if out is not None:  # last: a picture that cannot be written must not lose the metrics
        save_confusion(metrics, out)
        print("picture", out, file=sys.stderr)


@app.command()
def predict(
    run: RunFolder,
    arguments: Inputs = None,
    prompt: Prompt = None,
    details: Details = False,
    top: Top = None,
    embed: Annotated[bool, typer.Option("--embed", help="Print the embedding of every line as a JSON list.")] = False,
    similar: Similar = None,
    labels: Labels = None,
    template: Template = None,
    coco: CocoFile = None,
    draw: Drawings = None,
    out: TranscriptFiles = None,
    format: TranscriptFormats = None,
    language: Language = None,
    task: SpokenTask = None,
    tune: TuneFolder = None,
    force: Force = False,
    mute: Mute = None,
) -> None:
    """Print the output for every line of files or stdin (taggers: every sentence), image or recording, or a prompt."""
    from .embeddings import print_embeddings

    changes, files = split_arguments(arguments or [])
    short = {"language": language, "task": task, "labels": labels, "template": template}
    changes = add_options(changes, {f"decode.{name}": value for name, value in short.items()})
    check_outputs(coco, draw)
    outputs = parse_outputs(out or [], format)
    check_predict_options(prompt, embed, similar, labels, details=details, coco=coco, draw=draw, out=outputs)
    if prompt is not None:
        if files:
            raise UserError(f"--prompt and the file {files[0]} are both given; give one of the two")
        print_continuation(load_with_top(run, changes, top, tune, force, mute), prompt, details)
        return
    check_files(files)
    check_files([] if similar is None else [similar])
    predictor = load_with_top(run, changes, top, tune, force, mute)
    reader = InputReader(predictor, changes, all_fields=details or predictor.item_reader.result_field is not None)
    if embed or similar is not None:
        ranked = None if similar is None else [entry for source in reader.items([similar]) for entry in source.entries]
        print_embeddings(predictor, reader.items(files), ranked)
    elif coco is not None or draw is not None:
        save_detections(predictor, reader.items(files), "decode.threshold" in changes, coco, draw)
    elif outputs:
        save_transcripts(predictor, reader.items(files), outputs, files)
    else:
        print_skipped(write_results(predictor, reader.items(files), stdout_writer(predictor, details)))


@app.command()
def score(
    run: RunFolder,
    arguments: Examples = None,
    details: Details = False,
    tune: TuneFolder = None,
    force: Force = False,
) -> None:
    """Print the natural-log probability of each target given its source, or of each line for a language model."""
    changes, files = split_arguments(arguments or [])
    check_files(files)
    predictor = load_predictor(run, changes, tune, force)
    if predictor.item_reader.files is not None:
        raise UserError("score reads texts, and this run reads other files; score them in Python: regard.load(…).score")
    for chunk in track(chunks(InputReader(predictor, changes).examples(files)), "scored", size=len):
        columns = [[*column] for column in zip(*(entry.item for entry in chunk), strict=True)]
        count = predictor.item_reader.columns
        texts = columns[0] if count == 1 else [*zip(*columns[:count], strict=True)]
        values = predictor.score(texts, columns[count] if len(columns) > count else None, details)
        if details:
            print_records(values)
        else:
            sys.stdout.writelines(f"{value:.6f}\n" for value in values)
        sys.stdout.flush()


app.command()(look)


@app.command()
def align(
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE", help="SOURCE and TARGET; default: stdin with source, tab, target."),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Use the attention of a translation run, not an IBM model.",
            autocompletion=complete_run,
        ),
    ] = None,
    symmetrize: Annotated[
        str, typer.Option(metavar="KIND", help="grow-diag-final-and, intersect, union, forward or reverse.")
    ] = "grow-diag-final-and",
    iterations: Annotated[int, typer.Option(help="Of EM, for the IBM model.")] = 5,
    gold: Annotated[
        str | None, typer.Option(metavar="FILE", help="Links of annotators; report the error rate to stderr.")
    ] = None,
) -> None:
    """Print which words of sentence pairs are translations of each other, in Pharaoh format (0-0 1-2)."""
    from .alignments import print_word_alignments

    print_word_alignments(files or [], run, symmetrize, iterations, gold)


@app.command("align-audio")
def align_audio(
    run: RunFolder,
    sound: Annotated[str, typer.Argument(metavar="SOUND", help="A recording, or data with transcripts.")],
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="Its words; default: those of the .txt file beside it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per recording.")] = False,
) -> None:
    """Print when each word of a known text is spoken: start and end in seconds."""
    from .. import api
    from .alignments import print_alignments

    print_alignments(api.load(run), sound, text, as_json)


for verb in (convert, prune, distill):
    app.command()(verb)


@app.command()
def info(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder.", autocompletion=complete_run)],
    as_json: AsJson = False,
) -> None:
    """Print what a run holds: task, family, parameters, data, metrics, versions and size on disk."""
    from .info import print_info

    print_info(run, as_json)


@app.command("list")
def list_all(as_json: AsJson = False) -> None:
    """List the recipes, and the families with their sizes."""
    from .info import print_lists

    print_lists(as_json)


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    limit_spinning()
    return run_app(app, "regard", sys.argv[1:] if arguments is None else arguments)
