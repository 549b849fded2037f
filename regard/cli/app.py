"""The command line: each verb parses, calls one function and prints. Results go to stdout, the rest to stderr."""

import difflib
import io
import json
import os
import sys
import traceback
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import UserError
from .io import (
    check_exclusive,
    check_test_data,
    chunks,
    load_predictor,
    load_with_top,
    merge_record,
    one_line,
    open_inputs,
    parse_settings,
    print_comparison,
    print_continuation,
    print_metrics,
    print_records,
    read_examples,
    split_arguments,
)

app = typer.Typer(
    name="regard",
    help="Transformers: train, evaluate, use and look at them.",
    epilog="Settings are key=value with the keys of `regard train RECIPE --show`, such as train.steps=300.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

RunFolder = Annotated[str, typer.Argument(metavar="RUN", help="A run folder or a Hugging Face folder.")]
Settings = Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings to change.")]
Version = Annotated[bool, typer.Option("--version", is_eager=True, help="Print the version and exit.")]
TuneFolder = Annotated[
    list[str] | None,
    typer.Option(metavar="DIR", help="A run (or a PEFT folder) that tuned RUN: use it over that base."),
]
Force = Annotated[bool, typer.Option("--force", help="Use --tune over other weights than it was trained with.")]
Details = Annotated[bool, typer.Option("--details", help="One JSON record per line.")]


@app.callback(invoke_without_command=True)
def front(version: Version = False) -> None:
    if version:
        from .. import __version__

        print(f"regard {__version__}")
        raise typer.Exit


@app.command()
def demo(out: Annotated[Path, typer.Option(help="Where the run folder goes.")] = Path("runs/demo")) -> None:
    """Train, evaluate and use a small model, in minutes on a CPU."""
    from ..demo import demo

    demo(out)


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A name from `regard list`, or a .toml file.")],
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option(help="The run folder to make; runs/RECIPE if not given.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    show: Annotated[bool, typer.Option("--show", help="Print every setting and where it came from, and stop.")] = False,
    dry: Annotated[bool, typer.Option("--dry", help="Build the model, print its sizes, and stop.")] = False,
) -> None:
    """Train a model."""
    from .. import api

    changes = parse_settings(settings or [])
    if show:
        print(api.show(recipe, changes))
    elif dry:
        print(api.dry(recipe, changes))
    else:
        api.train(recipe, changes, out=out or Path("runs") / Path(recipe).stem, resume=resume, progress=True)


@app.command("eval")
def evaluate(
    run: RunFolder,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN|KEY=VALUE", help="Runs to compare with the first; settings for all of them."),
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="SIDES", help="SOURCE,TARGET or TEXTS; else the run's data.test.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    out: Annotated[Path | None, typer.Option(help="Draw which label is taken for which, as a PNG.")] = None,
    tune: TuneFolder = None,
    force: Force = False,
) -> None:
    """Measure a model on known examples or texts; several models side by side, translators with a paired bootstrap."""
    from .. import api
    from ..config.run import parse_sides
    from .embeddings import save_confusion

    changes, others = split_arguments(arguments or [])
    chosen = None if data is None else parse_sides(data)
    if chosen is None and not tune:
        check_test_data([run, *others])
    if others and tune:
        raise UserError("--tune is for one run, and several are compared; name the tuned runs themselves")
    if others and out is not None:
        raise UserError("--out draws the labels of one run, and several are compared; leave it out")
    if others:
        print_comparison(api.compare([run, *others], changes, chosen), as_json)
        return
    figures = load_predictor(run, changes, tune, force).evaluate(chosen)
    if as_json:
        print(json.dumps(figures, ensure_ascii=False))
    else:
        print_metrics(figures)
    if out is not None:  # now, for a picture that cannot be written shall not cost the figures
        save_confusion(figures, out)
        print("picture", out, file=sys.stderr)


@app.command()
def predict(
    run: RunFolder,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="FILE|KEY=VALUE", help="Files of lines (else stdin); settings.")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Continue this text, shown as it comes (language models).")
    ] = None,
    details: Details = False,
    top: Annotated[
        int | None, typer.Option(metavar="K", help="The K likeliest labels or words with their probabilities.")
    ] = None,
    embed: Annotated[bool, typer.Option("--embed", help="A vector for every line, as a JSON list.")] = False,
    similar: Annotated[
        str | None, typer.Option(metavar="FILE", help="Rank the lines of FILE by their likeness to every line.")
    ] = None,
    tune: TuneFolder = None,
    force: Force = False,
) -> None:
    """Give the model's output for every line (of tagged words: every sentence) of files or stdin, or for a prompt."""
    from .embeddings import embedding_answers
    from .records import parse_records

    changes, files = split_arguments(arguments or [])
    check_exclusive(prompt=prompt is not None, embed=embed, similar=similar is not None)
    check_exclusive(embed=embed, similar=similar is not None, details=details)
    if prompt is not None:
        if files:
            raise UserError(f"--prompt is what to continue, and {files[0]} is named as well; give one of the two")
        print_continuation(load_with_top(run, changes, top, tune, force), prompt, details)
        return
    sources, others = open_inputs(files), [] if similar is None else open_inputs([similar])
    system = load_with_top(run, changes, top, tune, force)
    lines = (line for source in sources for line in source)
    if embed or similar is not None:
        answer = embedding_answers(system, None if similar is None else [line for other in others for line in other])
        for chunk in chunks(lines):
            sys.stdout.writelines(one_line(each) + "\n" for each in answer(chunk))
            sys.stdout.flush()
        return
    blocks = getattr(system, "blocks", None)  # several lines make an item, which comes back as it was
    for chunk in chunks(parse_records(blocks(lines) if blocks else lines, getattr(system, "field", None))):
        texts = [text for text, _ in chunk]
        found = system.predict(texts, details=True) if details else system.predict(texts)
        if details or chunk[0][1] is not None:
            print_records(merge_record(record, each) for (_, record), each in zip(chunk, found, strict=True))
        else:
            sys.stdout.writelines((text if blocks else one_line(text)) + "\n" for text in found)
        sys.stdout.flush()


@app.command()
def score(
    run: RunFolder,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE|KEY=VALUE",
            help="SOURCE and TARGET, of a classifier its labels (else stdin: source, tab, target); of a language model "
            "files of lines; settings.",
        ),
    ] = None,
    details: Details = False,
    tune: TuneFolder = None,
    force: Force = False,
) -> None:
    """Give the natural-log probability of each target given its source, or of each line for a language model."""
    changes, files = split_arguments(arguments or [])
    sources = open_inputs(files)
    system = load_predictor(run, changes, tune, force)
    for chunk in chunks(read_examples(files, sources, system.sides)):
        values = system.score(*map(list, zip(*chunk, strict=True)), details=details)
        if details:
            print_records(values)
        else:
            sys.stdout.writelines(f"{value:.6f}\n" for value in values)
        sys.stdout.flush()


@app.command()
def look(
    run: RunFolder,
    text: Annotated[str, typer.Argument(help="What the model reads.")],
    target: Annotated[str | None, typer.Argument(help="What it is made to say; else its own output.")] = None,
    out: Annotated[Path, typer.Option(help="The picture to write.")] = Path("picture.png"),
) -> None:
    """Draw where the model looks."""
    from .. import api

    api.load(run, {}).look(text, target).save(out)
    print("picture", out)


@app.command()
def convert(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder.")],
    to: Annotated[str | None, typer.Option(help="The format: huggingface, ctranslate2 or peft.")] = None,
    out: Annotated[Path, typer.Option(help="The folder to make.")] = ...,  # type: ignore[assignment]
    average: Annotated[int, typer.Option(metavar="K", help="Take the mean of the last K checkpoints.")] = 0,
    precision: Annotated[str, typer.Option(help="For ctranslate2: fp32, bf16 or int8.")] = "fp32",
    data: Annotated[str | None, typer.Option(metavar="SIDES", help="Examples to measure on for the README.")] = None,
    merge: Annotated[bool, typer.Option("--merge", help="Fold what LoRA has learnt into its base.")] = False,
) -> None:
    """Write a run in another format, with averaged weights, or as one with the base that it tuned."""
    from .. import api
    from ..config.run import parse_sides

    chosen = None if data is None else parse_sides(data)
    how: dict[str, Any] = {"to": to, "average": average, "precision": precision, "data": chosen, "merge": merge}
    for name, value in api.convert(run, out=out, **how).items():
        print(name, value)


@app.command("list")
def list_all() -> None:
    """List the recipes, and the families with their sizes."""
    from .. import api
    from ..families import FAMILIES, family

    print("recipes")
    for name, header in api.recipes():
        print(f"  {name}  {header}")
    print("families")
    for name in FAMILIES:
        print(f"  {name}  sizes: {', '.join(family(name).SIZES)}")


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    return run_app(app, "regard", sys.argv[1:] if arguments is None else arguments)


def run_app(application: typer.Typer, program: str, arguments: list[str]) -> int:
    """Run a command of any typer application; exit codes: 0 fine, 1 our fault, 2 the user's mistake."""
    usage = typer.BadParameter.__base__  # click's UsageError, wherever this version of typer keeps click
    assert usage is not None
    prepare_streams()
    warnings.showwarning = lambda message, *_: print(f"regard: {message}", file=sys.stderr)
    try:
        invoke(application, program, arguments)
        sys.stdout.flush()
        return 0
    except typer.Exit as end:
        return end.exit_code
    except BrokenPipeError:  # whoever reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (KeyboardInterrupt, typer.Abort):
        return print_error("stopped")
    except UserError as mistake:
        return print_error(str(mistake))
    except OSError as error:
        return print_error(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
    except Exception as error:
        if isinstance(error, usage):
            return print_error(usage_sentence(error))
        if out_of_memory(error):
            return print_error(
                "there is not enough memory for this; ask for less at a time, such as decode.batch, decode.beam, "
                "decode.max_tokens or train.tokens, or for a smaller model"
            )
        print_error(
            f"this is a bug in regard: {type(error).__name__}: {one_line(str(error))} (where: REGARD_TRACEBACK=1)"
        )
        if os.environ.get("REGARD_TRACEBACK") == "1":
            traceback.print_exception(error)
        return 1


def prepare_streams() -> None:
    """UTF-8 whatever the locale. Python gives None for a stream that was closed from outside: then nothing."""
    sys.stdin = sys.stdin or io.TextIOWrapper(io.BytesIO())
    sys.stdout = sys.stdout or io.TextIOWrapper(io.BytesIO())
    sys.stderr = sys.stderr or io.TextIOWrapper(io.BytesIO())
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")


def invoke(application: typer.Typer, program: str, arguments: list[str]) -> None:
    """Parse and call. Click's own `main` would answer a closed pipe and Ctrl-C in its own way, before us."""
    command: Any = typer.main.get_command(application)
    known = getattr(command, "commands", None)
    verb = next((argument for argument in arguments if not argument.startswith("-")), None)
    if known is not None and verb is not None and verb not in known:
        near = difflib.get_close_matches(verb, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(known)}"
        raise UserError(f"there is no verb {verb!r}; {hint}")
    with command.make_context(program, arguments or ["--help"]) as context:
        command.invoke(context)


def usage_sentence(error: Any) -> str:
    sentence = one_line(error.format_message()).rstrip(".")
    verb = error.ctx.command_path if error.ctx else "regard"
    return f"{sentence[:1].lower()}{sentence[1:]}; `{verb} --help` shows what is expected"


def out_of_memory(error: Exception) -> bool:
    """Python's own exception, CUDA's, and what torch says of a CPU's memory or of what no memory could hold."""
    words = ("can't allocate memory", "not enough memory", "size calculation overflowed", "multiplication overflow")
    named = type(error).__name__ == "OutOfMemoryError"
    return named or isinstance(error, MemoryError) or any(each in str(error) for each in words)


def print_error(message: str) -> int:
    for line in message.splitlines():
        print(f"regard: {line}", file=sys.stderr)
    return 2
