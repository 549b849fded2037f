"""Recordings with transcripts: tables of paths, folders with a text beside each recording, LibriSpeech, archives.

Opening the data checks the header of every recording, which also gives its length. With data.invalid=skip, it decodes
every recording and leaves out those that fail.
"""

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from ...config.data.sound import Recordings, RecordingTable
from ...errors import UserError
from ...processors.sound.read import RawSound, Samples, is_sound, sound_info, sound_problem
from ..files.in_memory import InMemory
from ..files.line_index import BLANK
from ..files.open import BOM, SOUNDS, missing_file, plain_suffix, text_error
from ..files.trees import FileTree, is_archive, open_tree
from ..source import Source, concatenate
from ..tables.cells import text_value
from ..tables.columns import MediaValue, Role
from ..tables.open import SUFFIXES, column_rule, open_table
from ..tables.records import Table
from .media import (
    FileTable,
    MediaSource,
    TreeSource,
    array_digest,
    file_cell,
    is_tree,
    open_files,
    readable,
)

SKIP_HINT = "or set data.invalid=skip to leave such recordings out"
TRANSCRIPTS = ".trans.txt"  # LibriSpeech's: one file for all recordings of a folder

PATH_NAMES = ("audio_filepath", "audio_path", "audio_file", "wav", "wav_path", "file_path", "filepath")
FILE_NAMES = ("file", "file_name", "filename", "sound", "recording")
TEXT_NAMES = ("sentence", "transcript", "transcription", "normalized_text", "utterance")


def sound_value(cell: object, names: Sequence[str] = ()) -> str | MediaValue:
    """The path of a recording, or the recording itself."""
    cell = file_cell(cell)
    if isinstance(cell, dict) and "array" in cell:  # of a Hugging Face data set, decoded
        array = cell["array"]
        array = np.asarray(array, np.float32) if isinstance(array, list) else array
        return sound_value(Samples(array, int(cell["sampling_rate"])))
    if isinstance(cell, list) and cell and isinstance(cell[0], int | float):
        cell = np.asarray(cell, np.float32)
    if not isinstance(cell, str) and is_sound(cell):
        return MediaValue(cell, lambda: sound_digest(cell))
    return text_value(cell)


def transcript_value(cell: object, names: Sequence[str] = ()) -> str:
    """A transcript on one line."""
    return " ".join(text_value(cell).split())


def sound_digest(sound: Any) -> str:
    """Identifies a recording in memory."""
    if not isinstance(sound, tuple):
        return array_digest(sound)
    samples = sound[0] if hasattr(sound[0], "detach") else np.asarray(sound[0])
    return f"{array_digest(samples)} {sound[1]}"


PATH = Role("path", "path or sound", (("audio",), ("path",), PATH_NAMES, FILE_NAMES), sound_value)
TRANSCRIPT = Role("text", "text", (("text",), TEXT_NAMES), transcript_value)


def transcribed_sounds(files: Sequence[Sequence[str]], data: RecordingTable) -> Source:
    """The examples in these files, each a recording and its transcript. `seconds` gives the length of one."""
    if len(files) != 1:
        raise UserError(
            f"recordings and transcripts are in one place, but {len(files)} were given, separated by commas; give a "
            "table with the columns path and text, or a folder"
        )
    return concatenate([_open(place, data) for pattern in files[0] for place in _places(pattern)])


def open_sounds(name: str, data: RecordingTable) -> Iterator[tuple[str, RawSound]]:
    """The recordings in a file, a folder, an archive or a table of paths, each with its name."""
    return open_files(name, is_sound_name, _no_sounds, column_rule(data, (PATH, TRANSCRIPT), 1), data.invalid)


def is_sound_name(name: str) -> bool:
    """True if the suffix is that of a recording."""
    return PurePosixPath(name).suffix.lower() in SOUNDS


def _no_sounds(name: str) -> UserError:
    return UserError(f"{name} has no recordings; expected files such as .wav, .flac or .mp3")


def _places(pattern: str) -> list[str]:
    """The archives that match a glob; other names as they are."""
    archives = sorted(glob.glob(os.path.expanduser(pattern))) if is_archive(pattern) else []
    return archives or [pattern]


def _open(pattern: str, data: RecordingTable) -> Source:
    if is_tree(pattern):
        return TreeSounds(open_tree(Path(pattern).expanduser()), data)
    if isinstance(pattern, InMemory) or plain_suffix(pattern) in SUFFIXES or data.format != "auto":
        table = open_table([pattern], column_rule(data, (PATH, TRANSCRIPT)), data.format, data.invalid)
        return TableSounds(table, data)
    path = Path(pattern).expanduser()
    if not path.exists() and not glob.glob(str(path), recursive=True):
        raise missing_file(pattern)
    what = "is a recording without its transcript" if is_sound_name(pattern) else "is no table, folder or archive"
    raise UserError(
        f"{pattern} {what}; give a table with the columns path and text, or a folder or an archive with a .txt file "
        "beside each recording"
    )


class SoundSource(MediaSource):
    """Recordings and transcripts, of which some may have been left out."""

    noun = "recording"
    lengths: np.ndarray  # of the recordings in seconds
    most_seconds = 0.0  # data.max_seconds

    def seconds(self, index: int) -> float:
        return float(self.lengths[index])

    def _select(self, checked: Iterable[tuple[str, float]], data: RecordingTable) -> np.ndarray:
        """The numbers of the usable recordings; `checked` has the problem and the length of each."""
        lengths: list[float] = []

        def problems() -> Iterator[str]:
            for problem, seconds in checked:
                lengths.append(seconds)
                yield problem

        whole, self.problem = readable(problems(), data.invalid, SKIP_HINT)
        seconds_of = np.array(lengths)[whole]
        short = seconds_of <= data.max_seconds
        self.lengths, self.most_seconds = seconds_of[short], data.max_seconds
        self.counts |= {"unreadable": len(lengths) - len(whole), "long": int((~short).sum())}
        self.counts["examples"] = int(short.sum())
        return np.asarray(whole[short])

    def report(self) -> list[str]:
        reasons = {
            "long": f"recordings left out because they are longer than data.max_seconds={self.most_seconds:g}",
            "no transcript": "recordings left out because they have no transcript",
            "no recording": "transcripts left out because they have no recording",
        }
        facts = [f"{self.counts[key]:,} {why}" for key, why in reasons.items() if self.counts.get(key)]
        return facts + super().report()


def inspect_sound(raw: RawSound, data: Recordings) -> tuple[str, float]:
    """Why a recording cannot be read, or "", and its length in seconds. It does not decode too long recordings."""
    try:
        seconds = sound_info(raw, data.rate).seconds
    except UserError as error:
        return str(error), 0.0
    stored = isinstance(raw, str | Path | bytes)
    if seconds > data.max_seconds or (stored and data.invalid != "skip"):
        return "", seconds
    return sound_problem(raw, decode=True), seconds


class TableSounds(FileTable, SoundSource):
    """Recordings and transcripts in a table."""

    def __init__(self, table: Table, data: RecordingTable) -> None:
        blank = np.flatnonzero(table.statuses() == BLANK).tolist()
        has_fields = [(index, *map(bool, _stripped(table.item(index)))) for index in blank]
        super().__init__(table)
        silent = [index for index, path, text in has_fields if path and not text]
        if silent and data.invalid != "skip":
            raise _no_text(table.location(silent[0]))
        self.counts |= {"empty": len(silent), "no recording": sum(text for _, path, text in has_fields if not path)}
        self.keep(self._select((self._check(index, data) for index in range(len(self))), data))

    def _check(self, index: int, data: RecordingTable) -> tuple[str, float]:
        lengths = [0.0]

        def problem(raw: RawSound) -> str:
            reason, lengths[0] = inspect_sound(raw, data)
            return reason

        return self.file_problem(index, problem), lengths[0]


def _stripped(fields: Sequence[Any]) -> list[Any]:
    return [field.strip() if isinstance(field, str) else field for field in fields]


def _no_text(place: str) -> UserError:
    return UserError(f"{place}: the transcript is empty; write what is said, {SKIP_HINT}")


class TreeSounds(TreeSource, SoundSource):
    """A folder or archive with a .txt file beside each recording, or with LibriSpeech's files of transcripts."""

    def __init__(self, tree: FileTree, data: RecordingTable) -> None:
        self.tree, self.name = tree, str(tree.path)
        self.counts = dict.fromkeys(("examples", "empty", "invalid", "no recording"), 0)
        sounds = {name: os.path.splitext(name)[0] for name in tree.names if is_sound_name(name)}
        if not sounds:
            raise _no_sounds(self.name)
        texts = self._transcripts({*sounds.values()}, data.invalid)
        pairs = [(name, texts[stem]) for name, stem in sounds.items() if texts.get(stem)]
        self.counts["no transcript"] = sum(stem not in texts for stem in sounds.values())
        if not texts:
            raise UserError(
                f"{self.name} has {len(sounds):,} recordings and no transcripts; put a .txt file beside each, such as "
                f"{min(sounds.values())}.txt, or give a table with the columns path and text"
            )
        usable = self._select((inspect_sound(tree.content(name), data) for name, _ in pairs), data)
        self.files = [pairs[number] for number in usable.tolist()]

    def _transcripts(self, stems: set[str], invalid: str) -> dict[str, str]:
        """Transcripts by the name of their recording without suffix; "" for transcripts that are left out."""
        transcripts: dict[str, str] = {}
        for stem, place, text in self._texts():
            if stem not in stems:
                self.counts["no recording"] += 1
                continue
            problem = text_error(text)
            if problem and invalid != "skip":
                raise UserError(f"{place}: {problem}; convert the file, for instance with iconv, {SKIP_HINT}")
            transcripts[stem] = "" if problem else " ".join(text.decode("utf-8-sig").split())
            if not transcripts[stem]:
                if invalid != "skip":
                    raise _no_text(place)
                self.counts["invalid" if problem else "empty"] += 1
        return transcripts

    def _texts(self) -> Iterator[tuple[str, str, bytes]]:
        """For each transcript: its recording without suffix, its place, and its bytes."""
        together = [name for name in self.tree.names if name.lower().endswith(TRANSCRIPTS)]
        for name in together:
            folder = name.rpartition("/")[0]
            for number, line in enumerate(self.tree.read(name).removeprefix(BOM).splitlines(), 1):
                if line.strip():
                    key, *text = line.split(maxsplit=1)
                    stem = os.path.join(folder, key.decode("utf-8", "replace"))
                    yield stem, f"{self.tree.location(name)}:{number}", b"".join(text)
        for name in () if together else self.tree.names:
            if name.lower().endswith(".txt"):
                yield os.path.splitext(name)[0], self.tree.location(name), self.tree.read(name)
