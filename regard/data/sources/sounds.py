"""Recordings with transcripts: tables of paths, folders with a text beside each recording, LibriSpeech, archives.

Opening the data checks the header of every recording, which also gives its length. With data.invalid=skip, it decodes
every recording and leaves out those that fail.
"""

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from ...config.data.sound import Recordings, RecordingTable
from ...errors import UserError
from ...processors.sound.read import RawSound, Samples, is_silent, is_sound, sound_info, sound_problem
from ..files.open import SOUNDS
from ..files.trees import FileTree
from ..source import Source, array_digest
from ..tables.cells import text_value
from ..tables.columns import MediaValue, Role
from .media import MediaTable, MediaTree, Medium, file_cell
from .pairings import TextPairing, blank_records

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


class SoundMedium(Medium[Recordings]):
    """Recordings."""

    noun, plural, examples = "recording", "recordings", ".wav, .flac or .mp3"
    column = Role("path", "path or sound", (("audio",), ("path",), PATH_NAMES, FILE_NAMES), sound_value)

    def is_name(self, name: str) -> bool:
        return PurePosixPath(name).suffix.lower() in SOUNDS

    def inspect(self, raw: RawSound, data: Recordings) -> tuple[str, float]:
        """It does not decode too long recordings."""
        try:
            seconds = sound_info(raw, data.rate).seconds
        except UserError as error:
            return str(error), 0.0
        stored = isinstance(raw, str | Path | bytes)
        if seconds > data.max_seconds or (stored and data.invalid != "skip"):
            return "", seconds
        return sound_problem(raw, decode=True), seconds

    empty = "are silent"

    def is_empty(self, raw: RawSound, data: Recordings) -> bool:
        return is_silent(raw)

    def longest(self, data: Recordings) -> float:
        return data.max_seconds


class Transcripts(TextPairing[RecordingTable]):
    """Recordings with their transcripts. `seconds` gives the length of one."""

    target = Role("text", "text", (("text",), TEXT_NAMES), transcript_value)
    noun, write = "transcript", "write what is said"
    other_place = "give a table with the columns path and text"
    several = (
        "recordings and transcripts are in one place, but {} were given, separated by commas; give a table with the "
        "columns path and text, or a folder"
    )
    expected = (
        "a table with the columns path and text, or a folder or an archive with a .txt file beside each recording"
    )

    def open_table(self, pattern: str, data: RecordingTable) -> Source:
        table = self.table(pattern, data)
        blank = [(medium, text) for _, medium, text in blank_records(table)]
        examples = MediaTable(table, self.medium)
        examples.counts |= {"empty": blank.count((True, False)), "no recording": blank.count((False, True))}
        examples.leave_out(data)
        return examples

    def open_tree(self, tree: FileTree, data: RecordingTable) -> Source:
        pairs, counts = self.texts_beside(tree, data.invalid)
        examples = MediaTree(tree, pairs, self.medium, data)
        examples.counts |= counts
        return examples


SOUND = SoundMedium()
TRANSCRIBED_SOUNDS = Transcripts(SOUND)
