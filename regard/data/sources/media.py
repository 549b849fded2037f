"""Shared by sources of images and of sounds: files in tables, joined sources, files that cannot be read."""

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ...errors import UserError
from ...processors.base import FileBytes
from ...processors.image.read import RawImage
from ...processors.sound.read import RawSound
from ..files.in_memory import InMemory
from ..files.open import plain_suffix
from ..files.trees import FileTree, is_archive, open_tree
from ..source import Source
from ..tables.columns import ColumnRule, MediaValue
from ..tables.open import SUFFIXES, open_table
from ..tables.records import Table, TableSource

RawValue: TypeAlias = RawImage | RawSound  # of any modality; a text is a str
RECORD = re.compile(r"(:\d+|, record \d+)$")  # ends the location of a record, after its file


def is_tree(name: str) -> bool:
    """True for a folder or an archive."""
    return not isinstance(name, InMemory) and (Path(name).expanduser().is_dir() or is_archive(name))


def open_files(
    name: str, is_media_name: Callable[[str], bool], none: Callable[[str], UserError], rule: ColumnRule, invalid: str
) -> Iterator[tuple[str, Any]]:
    """The media files in a folder, an archive or a table of paths, or the file itself, each with its name."""
    path = Path(name).expanduser()
    if is_tree(name):
        tree = open_tree(path)
        names = [file for file in tree.names if is_media_name(file)]
        if not names:
            raise none(name)
        return ((tree.location(file), tree.content(file)) for file in names)
    if plain_suffix(name) in SUFFIXES:
        table = FileTable(open_table([name], rule, "auto", invalid))
        return ((table.file_name(index), table[index][0]) for index in range(len(table)))
    return iter([(name, path)])


def readable(problems: Iterable[str], invalid: str, hint: str) -> tuple[np.ndarray, str]:
    """The numbers of files without a problem, and the first problem. Without data.invalid=skip, it is raised."""
    numbers, first = [], ""
    for number, problem in enumerate(problems):
        if not problem:
            numbers.append(number)
        elif invalid == "skip":
            first = first or problem
        else:
            raise UserError(f"{problem}, {hint}")
    return np.array(numbers, np.int64), first


def file_cell(cell: object) -> object:
    """A cell of a table; a path or the {"bytes", "path"} of a Hugging Face data set becomes text or FileBytes."""
    if isinstance(cell, dict) and cell.keys() == {"bytes", "path"}:
        content, path = cell["bytes"], str(cell["path"] or "")
        return FileBytes(content, path or "the bytes") if content else path
    return str(os.fspath(cell)) if isinstance(cell, os.PathLike) else cell


def array_digest(media: Any) -> str:
    """Identifies an image or samples in memory."""
    media = media.detach().float().cpu().numpy() if hasattr(media, "detach") else media
    size = getattr(media, "size", 0)
    shape = f"{getattr(media, 'mode', '')}{getattr(media, 'dtype', '')}{getattr(media, 'shape', size)}"
    content = media if isinstance(media, bytes) else media.tobytes()
    return hashlib.blake2b(shape.encode() + content, digest_size=16).hexdigest()


class MediaSource(Source):
    """Images or recordings, of which some may have been left out."""

    noun: str  # "image" or "recording", for messages
    problem = ""  # of the first file that was left out

    def report(self) -> list[str]:
        count = self.counts.get("unreadable", 0)
        fact = f"{count:,} {self.noun}s left out because they cannot be read (data.invalid=skip); the first"
        return [f"{fact}: {self.problem}"] * bool(count) + super().report()


class TreeSource(MediaSource):
    """Files of a folder or an archive, each with a text."""

    tree: FileTree
    files: list[tuple[str, str]]  # name and text

    def __len__(self) -> int:
        return len(self.files)

    def item(self, index: int) -> tuple[Path | FileBytes, str]:
        name, text = self.files[index]
        return self.tree.content(name), text

    def field(self, index: int, field: int) -> Path | FileBytes | str:
        return self.files[index][1] if field == 1 else self.item(index)[field]

    def location(self, index: int) -> str:
        return self.tree.location(self.files[index][0])

    def fingerprint(self) -> str:
        return text_digest(f"{name}\0{text}\0{self.tree.digest(name)}" for name, text in self.files)


class FileTable(TableSource, MediaSource):
    """Files and texts in a table. Paths are relative to the folder of the table."""

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self._sizes = hashlib.blake2b(digest_size=16)  # of the files

    def keep(self, numbers: np.ndarray) -> None:
        """Keep only the records with these numbers."""
        self.rows = np.asarray(self.rows)[numbers]
        self.counts["examples"] = len(numbers)

    def file_problem(self, index: int, problem: Callable[[Any], str]) -> str:
        """Why the file of a record cannot be read, after the place of the record; `problem` checks the content."""
        raw, where = self.item(index)[0], self.location(index)
        if isinstance(raw, Path):
            if not raw.is_file():
                return f"{where}: there is no {self.noun} {raw}; correct the path or the line"
            self._sizes.update(b"%d " % raw.stat().st_size)
        reason = problem(raw)
        return f"{where}: {reason}" if reason else ""

    def file_name(self, index: int) -> str:
        raw = self.item(index)[0]
        return str(raw) if isinstance(raw, Path) else self.location(index)

    def item(self, index: int) -> tuple[RawValue, str]:
        raw, text = super().item(index)
        if isinstance(raw, MediaValue):
            return raw.value, text
        return Path(RECORD.sub("", self.location(index))).parent / raw, text

    def field(self, index: int, field: int) -> RawValue:
        return TableSource.item(self, index)[field] if field == 1 else self.item(index)[field]

    def text(self, index: int, field: int) -> str:
        text: str = TableSource.item(self, index)[field]
        return text

    def fingerprint(self) -> str:
        return hashlib.blake2b(super().fingerprint().encode() + self._sizes.digest(), digest_size=16).hexdigest()


def text_digest(parts: Iterable[str]) -> str:
    """A hash of texts."""
    return hashlib.blake2b("\n".join(parts).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
