"""Transcripts in files on the command line (--out, --format): a file holds the transcript of one recording."""

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import UserError
from ..files import atomic_write, json_line
from ..formats.subtitles import FORMATS, SECONDS
from ..messages.base import to_json
from .files import Output, free_name, print_skipped
from .inputs import Entry, InputFile
from .writers import ResultWriter, write_results

NAMES = (*FORMATS, "json")
EXPECTED = f"{', '.join(NAMES[:-1])} or {NAMES[-1]}"


class TranscriptOutput(NamedTuple):
    """A file for one recording, or a folder with files for each."""

    path: Path
    formats: tuple[str, ...]
    is_folder: bool


def parse_outputs(out: Sequence[str], format: str | None) -> list[TranscriptOutput]:
    """The outputs of --out and --format; paths that cannot be written are refused, before any work."""
    formats = tuple(format.split(",")) if format is not None else ()
    for name in formats:
        if name not in NAMES:
            raise UserError(f"--format has {name!r}; expected {EXPECTED}, or several of them separated by commas")
    if formats and not out:
        raise UserError("--format names the files of a folder; give the folder too, such as --out subtitles/")
    return [_parse_output(name, formats) for name in out]


def _parse_output(name: str, formats: tuple[str, ...]) -> TranscriptOutput:
    path, suffix = Path(name), Path(name).suffix[1:].lower()
    folder = path.is_dir() or name.endswith(("/", os.sep))
    if formats and not folder and suffix in NAMES:
        raise UserError(f"--out {name} names a file, whose suffix chooses the format; leave --format out")
    folder = folder or bool(formats)
    if folder and not formats:
        raise UserError(f"--out {name} is a folder; choose its files with --format {EXPECTED}")
    if not folder and suffix not in NAMES:
        raise UserError(f"--out {name} has no known suffix; expected that of {EXPECTED}, or a folder with --format")
    if not path.parent.is_dir() or (folder and path.is_file()):
        needed = "a folder with another name than that file"
        expected = needed if path.is_file() else "a file or folder in an existing folder"
        raise UserError(f"--out {name} cannot be written; give {expected}")
    return TranscriptOutput(path, formats or (suffix,), folder)


def save_transcripts(
    predictor: Any, sources: Sequence[InputFile], outputs: Sequence[TranscriptOutput], inputs: Sequence[str]
) -> None:
    """Write the transcript of every recording to its files, and print the recording and each file that is written."""
    if predictor.run.task != "transcribe":
        raise UserError(
            f"--out and --format are for runs of the task transcribe, and this one is of {predictor.run.task}; "
            "write its output to a file with > FILE"
        )
    sources = _one_recording(sources, [output for output in outputs if not output.is_folder])
    details = needs_words({name for output in outputs for name in output.formats}, predictor.longest_segment)
    writer = TranscriptWriter(outputs, inputs, details)
    print_skipped(write_results(predictor, writer.plan_files(sources), writer))


def needs_words(formats: set[str], longest: float) -> bool:
    """True if files need the times of words, which cost a second pass: JSON, and subtitles of long segments."""
    return "json" in formats or (bool(formats & {"srt", "vtt"}) and longest > SECONDS)


def _one_recording(sources: Sequence[InputFile], files: Sequence[TranscriptOutput]) -> Sequence[InputFile]:
    """The sources; if there are outputs that are no folders, with a check that they have one recording."""
    if not files:
        return sources
    entries = chain.from_iterable(source.entries for source in sources)
    first = list(islice(entries, 2))
    if len(first) != 1:
        path, (name, *_), _ = files[0]
        json = "; --json prints them all" if name == "json" else ""
        count = "several are" if first else "none is"
        raise UserError(
            f"--out {path} is for one recording, and {count} given; for several, name a folder, such as "
            f"--out {path.stem}/ --format {name}{json}"
        )
    return [InputFile(first)]


class TranscriptWriter(ResultWriter):
    """A file for every recording and format; stdout names the recording and the file."""

    def __init__(self, outputs: Sequence[TranscriptOutput], inputs: Sequence[str], details: bool) -> None:
        self.outputs, self.details = outputs, details
        self.inputs = {Path(name).resolve() for name in inputs}
        self.used_names: list[set[str]] = [set() for _ in outputs]
        self.planned: deque[list[tuple[str, Path]]] = deque()  # of the recordings that are being transcribed

    def plan_files(self, sources: Iterable[InputFile]) -> Iterator[InputFile]:
        """The sources; when a recording is read, its files are chosen, and refused if they would replace another."""

        def entries(source: InputFile) -> Iterator[Entry]:
            for entry in source.entries:
                self.planned.append(list(self._files(entry)))
                yield entry

        return (InputFile(entries(source), source.ready) for source in sources)

    def _files(self, entry: Entry) -> Iterator[tuple[str, Path]]:
        for (path, formats, is_folder), names in zip(self.outputs, self.used_names, strict=True):
            for name in formats:
                file = path / free_name(entry.name, names, f".{name}") if is_folder else path
                _refuse_loss(file, entry, self.inputs, is_folder and name == "txt")
                yield name, file

    def write(self, output: Output) -> None:
        for name, path in self.planned.popleft():
            record = {"path": output.entry.name, **to_json(output.result)} if name == "json" else {}
            text = f"{json_line(record)}\n" if name == "json" else FORMATS[name](output.result)
            path.parent.mkdir(exist_ok=True)
            with atomic_write(path) as draft:
                draft.write_text(text, encoding="utf-8", newline="\n")
            print(f"{output.entry.name}\t{path}", flush=True)

    def skip(self, entry: Entry, error: UserError) -> None:
        self.planned.popleft()


def _refuse_loss(file: Path, entry: Entry, inputs: set[Path], maybe_transcript: bool) -> None:
    """Refuse to overwrite an input, or the text beside a recording, which is training data."""
    if file.resolve() in inputs:
        raise UserError(f"{file} is an input and would be replaced; choose another name (--out)")
    if maybe_transcript and file.exists() and file.resolve().parent == Path(entry.name).resolve().parent:
        raise UserError(f"{file} lies beside {entry.name} and may be its transcript; choose another folder (--out)")
