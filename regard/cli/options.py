"""Arguments and options that commands share, or that are too long to stand in a signature."""

from pathlib import Path
from typing import Annotated

import typer

from .completion import complete_key, complete_run, complete_setting

RunFolder = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run folder, a Hugging Face folder, a GGUF file, or org/name of the hub.",
        autocompletion=complete_run,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Settings to change.", autocompletion=complete_setting),
]
OtherRuns = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RUN|KEY=VALUE",
        help="More runs to compare with the first; settings for all.",
        autocompletion=complete_setting,
    ),
]
Inputs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FILE|KEY=VALUE",
        help="Files of lines (default: stdin), images, recordings; settings.",
        autocompletion=complete_setting,
    ),
]
Examples = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FILE|KEY=VALUE",
        help="SOURCE and TARGET (classifiers: labels); default: stdin with source, tab, target. Language models: "
        "files of lines. Settings.",
        autocompletion=complete_setting,
    ),
]
Version = Annotated[bool, typer.Option("--version", is_eager=True, help="Print the version and exit.")]
TuneFolder = Annotated[
    list[str] | None,
    typer.Option(
        metavar="DIR",
        help="A run or PEFT folder that was tuned over RUN, to use with it.",
        autocompletion=complete_run,
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Use --tune even if RUN has other weights than its base.")]
Mute = Annotated[
    str | None,
    typer.Option(
        metavar="HEADS", help="Attention heads whose outputs become zeros: layer.head such as 3.2,4.1; 3.* is a layer."
    ),
]
Details = Annotated[bool, typer.Option("--details", "--json", help="Print one JSON record per line.")]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress and no facts on stderr; it may stand anywhere.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Show = Annotated[
    bool,
    typer.Option(
        "--show", help="Only print the settings that differ from the defaults, with their origins; --show all: all."
    ),
]
Explain = Annotated[
    str | None,
    typer.Option(
        metavar="KEY",
        help="Only explain a setting or a group, such as train.lr: meaning, range, default; all: every setting.",
        autocompletion=complete_key,
    ),
]
Plugins = Annotated[
    list[str] | None,
    typer.Option("--plugin", metavar="FILE", help="Load a .py file or module that registers a family or a task."),
]
Prompt = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Continue this text and stream the output (language models).")
]
Top = Annotated[
    int | None, typer.Option(metavar="K", help="Print the K most likely labels or words with probabilities.")
]
Similar = Annotated[
    str | None, typer.Option(metavar="FILE", help="Rank the lines of FILE by similarity to every input line.")
]
Labels = Annotated[
    str | None,
    typer.Option(metavar="TEXTS", help='Labels to choose from, as "a dog,a cat" (runs of the task contrastive).'),
]
Template = Annotated[
    str | None, typer.Option(metavar="TEXT", help='The text of a label, as "a photo of {}" (decode.template).')
]
CocoFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write the detected objects as a COCO result array (.json).")
]
Drawings = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Draw the images with their detected objects into a folder.")
]
TranscriptFiles = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE|DIR",
        help="Write the transcript of a recording to a file: .srt or .vtt (subtitles), .tsv (start, end, text of the "
        "segments), .txt (a line per segment) or .json (what --json prints). Several recordings need a folder and "
        "--format.",
    ),
]
TranscriptFormats = Annotated[
    str | None,
    typer.Option(metavar="NAMES", help="The files in the folder --out: srt, vtt, tsv, txt or json; srt,txt for two."),
]
Language = Annotated[
    str | None, typer.Option(metavar="CODE", help="The language of recordings, such as de (decode.language).")
]
SpokenTask = Annotated[
    str | None,
    typer.Option("--task", metavar="NAME", help="What to do with recordings: transcribe or translate (decode.task)."),
]
