"""Texts that are written for media, such as transcripts and captions: in tables, and in .txt files beside the media."""

import os
from collections import Counter
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from ...errors import UserError
from ..files.line_index import BLANK
from ..files.open import BOM, text_error
from ..files.trees import FileTree
from ..tables.cells import MediaValue
from ..tables.records import Table
from .media import Pairing, T

TRANSCRIPTS = ".trans.txt"  # LibriSpeech's: one file for all recordings of a folder


class TextPairing(Pairing[T]):
    """Media with a text each, which must not be empty."""

    noun: ClassVar[str]  # of a text
    write: ClassVar[str]  # what to write where it is empty
    other_place: ClassVar[str]  # where texts may be if none is beside the media of {}

    def describe(self, pattern: str) -> str:
        if not self.medium.is_name(pattern):
            return super().describe(pattern)
        return f"is {self.medium.article} {self.medium.noun} without its {self.noun}"

    def empty(self, place: str) -> UserError:
        return UserError(f"{place}: the {self.noun} is empty; {self.write}, {self.medium.skip_hint}")

    def table(self, pattern: str, data: T) -> Table:
        table = super().table(pattern, data)
        silent = [row for row, medium, text in blank_records(table) if medium and not text]
        if silent and data.invalid != "skip":
            raise self.empty(table.location(silent[0]))
        return table

    def texts_beside(self, tree: FileTree, invalid: str) -> tuple[list[tuple[str, str]], Counter[str]]:
        """The media of a folder or archive with their texts, and counts of what is left out."""
        media = {name: os.path.splitext(name)[0] for name in tree.names if self.medium.is_name(name)}
        if not media:
            raise self.medium.missing_in(str(tree.path))
        stems, texts, counts = {*media.values()}, dict[str, str](), Counter[str]()
        for stem, place, content in stored_texts(tree):
            if stem not in stems:
                counts["no recording"] += 1
                continue
            problem = text_error(content)
            if problem and invalid != "skip":
                hint = f"convert the file, for instance with iconv, {self.medium.skip_hint}"
                raise UserError(f"{place}: {problem}; {hint}")
            texts[stem] = "" if problem else self.convert(content.decode("utf-8-sig"))
            if not texts[stem]:
                if invalid != "skip":
                    raise self.empty(place)
                counts["invalid" if problem else "empty"] += 1
        if not texts:
            raise UserError(
                f"{tree.path} has {len(media):,} {self.medium.noun}s and no {self.noun}s; put a .txt file beside each, "
                f"such as {min(stems)}.txt, or {self.other_place.format(tree.path)}"
            )
        counts["no transcript"] = sum(stem not in texts for stem in media.values())
        return [(name, texts[stem]) for name, stem in media.items() if texts.get(stem)], counts

    def convert(self, content: str) -> str:
        """The text in a file, on one line."""
        return " ".join(content.split())


def blank_records(table: Table) -> Iterator[tuple[int, bool, bool]]:
    """The records in which something is empty: their numbers, and whether they have a medium and a text."""
    for row in np.flatnonzero(table.statuses() == BLANK).tolist():
        medium, text = table.item(row)
        yield row, isinstance(medium, MediaValue) or bool(str(medium).strip()), bool(str(text).strip())


def stored_texts(tree: FileTree) -> Iterator[tuple[str, str, bytes]]:
    """For each text of a folder or archive: the name of its file without suffix, its place, and its bytes."""
    together = [name for name in tree.names if name.lower().endswith(TRANSCRIPTS)]
    for name in together:
        folder = name.rpartition("/")[0]
        for number, line in enumerate(tree.read(name).removeprefix(BOM).splitlines(), 1):
            if line.strip():
                key, *text = line.split(maxsplit=1)
                stem = os.path.join(folder, key.decode("utf-8", "replace"))
                yield stem, f"{tree.location(name)}:{number}", b"".join(text)
    for name in () if together else tree.names:
        if name.lower().endswith(".txt"):
            yield os.path.splitext(name)[0], tree.location(name), tree.read(name)
