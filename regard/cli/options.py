"""Arguments and options that commands share, or that are too long to stand in a signature."""

from pathlib import Path
from typing import Annotated

import typer

RunFolder = Annotated[
    str, typer.Argument(metavar="RUN", help="A run folder, a Hugging Face folder, a GGUF file, or org/name of the hub.")
]
Settings = Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings to change.")]
Version = Annotated[bool, typer.Option("--version", is_eager=True, help="Print the version and exit.")]
TuneFolder = Annotated[
    list[str] | None,
    typer.Option(metavar="DIR", help="A run or PEFT folder that was tuned over RUN, to use with it."),
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
    typer.Option(metavar="KEY", help="Only explain a setting or a group, such as train.lr: meaning, range, default."),
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
