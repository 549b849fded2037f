"""Media and their targets: how files of a medium are found in tables, folders and archives, and which can be read.

A `Medium` says how images, recordings or other files are named, read from cells and checked; a `Pairing` joins one with
a kind of targets. Where media are (`MediaTable`, `MediaTree`) is written once for all of them.
"""

import glob
import hashlib
import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar, cast

import numpy as np

from ...config.data.base import Data, TableData
from ...errors import UserError
from ...processors.base import FileBytes
from ...processors.image.read import RawImage
from ...processors.sound.read import RawSound
from ..files.in_memory import InMemory
from ..files.open import missing_file, plain_suffix
from ..files.trees import FileTree, is_archive, open_tree
from ..source import Source, concatenate
from ..tables.columns import MediaValue, Role
from ..tables.open import SUFFIXES, column_rule, open_table
from ..tables.records import Table, TableSource

RawValue: TypeAlias = RawImage | RawSound  # of any modality; a text is a str
EXAMINED = 200  # files of a source, evenly spread, that are examined for emptiness
RECORD = re.compile(r"(:\d+|, record \d+)$")  # ends the location of a record, after its file
D = TypeVar("D", bound=Data, contravariant=True)  # data.* that say which media are usable
T = TypeVar("T", bound=TableData, contravariant=True)


class Medium(ABC, Generic[D]):
    """A kind of files, such as images."""

    noun: ClassVar[str]  # for messages
    plural: ClassVar[str]
    examples: ClassVar[str]  # of file names, for messages
    column: Role  # of a table: a path, or the content

    @abstractmethod
    def is_name(self, name: str) -> bool:
        """True if the suffix is that of such a file."""

    @abstractmethod
    def inspect(self, raw: Any, data: D) -> tuple[str, float]:
        """Why a file cannot be read, or "", and its seconds; with data.invalid=skip, everything is decoded."""

    def longest(self, data: D) -> float:
        """The most seconds of a file that is not left out."""
        return math.inf

    empty = "are empty"  # what `is_empty` finds, for messages

    def is_empty(self, raw: Any, data: D) -> bool:
        """True for a readable file from which nothing can be learned."""
        return False

    @property
    def article(self) -> str:
        return "an" if self.noun[0] in "aeiou" else "a"

    @property
    def skip_hint(self) -> str:
        return f"or set data.invalid=skip to leave such {self.plural} out"

    def missing_in(self, name: str, where: str = "") -> UserError:
        return UserError(f"{name} has no {self.plural}; expected files such as {self.examples}{where}")


def is_tree(name: str) -> bool:
    """True for a folder or an archive."""
    return not isinstance(name, InMemory) and (Path(name).expanduser().is_dir() or is_archive(name))


def file_cell(cell: object) -> object:
    """A cell of a table; a path or the {"bytes", "path"} of a Hugging Face data set becomes text or FileBytes."""
    if isinstance(cell, dict) and cell.keys() == {"bytes", "path"}:
        content, path = cell["bytes"], str(cell["path"] or "")
        return FileBytes(content, path or "the bytes") if content else path
    return str(os.fspath(cell)) if isinstance(cell, os.PathLike) else cell


def text_digest(parts: Iterable[str]) -> str:
    """A hash of texts."""
    return hashlib.blake2b("\n".join(parts).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


# --- sources ---------------------------------------------------------------------------------------------------------


class MediaSource(Source):
    """Media with their targets, of which some may have been left out."""

    medium: Medium[Any]
    data: Data
    problem = ""  # of the first file that was left out
    lengths: np.ndarray | None = None  # in seconds
    most_seconds = math.inf

    def seconds(self, index: int) -> float:
        return 0.0 if self.lengths is None else float(self.lengths[index])

    def select(
        self, inspected: Iterable[tuple[str, float]], invalid: str, hint: str, most: float = math.inf
    ) -> list[int]:
        """The numbers of the usable files; `inspected` has the problem and the seconds of each, the longest are `most`.

        Without data.invalid=skip, a problem is an error, to which `hint` is added.
        """
        usable, lengths, unreadable, long = list[int](), list[float](), 0, 0
        for number, (problem, seconds) in enumerate(inspected):
            if problem and invalid != "skip":
                raise UserError(f"{problem}, {hint}")
            if problem:
                self.problem, unreadable = self.problem or problem, unreadable + 1
            elif seconds > most:
                long += 1
            else:
                usable.append(number)
                lengths.append(seconds)
        self.lengths, self.most_seconds = np.array(lengths) if any(lengths) else None, most
        self.counts |= {"examples": len(usable), "unreadable": unreadable, "long": long}
        return usable

    def notes(self, indices: Sequence[int] | np.ndarray) -> list[str]:
        return self.empty_notes(self.medium, indices)

    def empty_notes(self, medium: Medium[D], indices: Sequence[int] | np.ndarray, field: int = 0) -> list[str]:
        """A sentence about files without content, such as silence, in this field of some examples."""
        examined, data = indices[:: -(-len(indices) // EXAMINED) or 1], cast(D, self.data)
        empty = [int(index) for index in examined if medium.is_empty(self.field(int(index), field), data)]
        if not empty:
            return []
        count = f"{len(empty):,}" if len(examined) == len(indices) else f"{len(empty)} of {len(examined)} examined"
        return [f"{count} {medium.plural} {medium.empty}; the first: {self.location(empty[0])}"]

    def report(self) -> list[str]:
        left_out = f"{self.medium.plural} left out because they"
        reasons = {
            "long": f"{left_out} are longer than data.max_seconds={self.most_seconds:g}",
            "no transcript": f"{left_out} have no transcript",
            "no recording": f"transcripts left out because they have no {self.medium.noun}",
        }
        facts = [f"{self.counts[key]:,} {why}" for key, why in reasons.items() if self.counts.get(key)]
        count = self.counts.get("unreadable", 0)
        fact = f"{count:,} {left_out} cannot be read (data.invalid=skip); the first"
        return facts + [f"{fact}: {self.problem}"] * bool(count) + super().report()


class MediaTree(MediaSource):
    """Files of a folder or an archive, each with a text."""

    def __init__(self, tree: FileTree, files: Sequence[tuple[str, str]], medium: Medium[D], data: D) -> None:
        """`files` has names and texts."""
        self.tree, self.name, self.medium, self.data = tree, str(tree.path), medium, data
        self.counts = {}
        inspected = (medium.inspect(tree.content(name), data) for name, _ in files)
        usable = self.select(inspected, data.invalid, medium.skip_hint, medium.longest(data))
        self.files = [files[number] for number in usable]

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


class MediaTable(TableSource, MediaSource):
    """Files and texts in a table. Paths are relative to the folder of the table."""

    def __init__(self, table: Table, medium: Medium[T]) -> None:
        super().__init__(table)
        self.medium = medium
        self._sizes = hashlib.blake2b(digest_size=16)  # of the files

    def leave_out(self, data: TableData) -> None:
        """Leave out files that cannot be read or are too long, or raise an error."""
        self.data = data
        inspected = (self._inspect(index, data) for index in range(len(self)))
        usable = self.select(inspected, data.invalid, self.medium.skip_hint, self.medium.longest(data))
        self.rows = np.asarray(self.rows)[np.array(usable, int)]

    def _inspect(self, index: int, data: TableData) -> tuple[str, float]:
        """Why the file of a record cannot be read, after the place of the record, and its seconds."""
        raw, where = self.item(index)[0], self.location(index)
        if isinstance(raw, Path):
            if not raw.is_file():
                return f"{where}: there is no {self.medium.noun} {raw}; correct the path or the line", 0.0
            self._sizes.update(b"%d " % raw.stat().st_size)
        problem, seconds = self.medium.inspect(raw, data)
        return f"{where}: {problem}" if problem else "", seconds

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


# --- opening ---------------------------------------------------------------------------------------------------------


class Pairing(ABC, Generic[T]):
    """Media with targets of one kind, wherever both are. The sentences are for messages."""

    target: Role  # its column of a table
    several: ClassVar[str]  # what to do if {} places are given
    expected: ClassVar[str]  # what to give in place of a file that is none of these
    where: ClassVar[str] = ""  # of media in a folder

    def __init__(self, medium: Medium[T]) -> None:
        self.medium = medium

    @abstractmethod
    def open_tree(self, tree: FileTree, data: T) -> Source:
        """The examples in a folder or an archive."""

    def open_table(self, pattern: str, data: T) -> Source:
        """The examples in a table of paths, or of media."""
        examples = MediaTable(self.table(pattern, data), self.medium)
        examples.leave_out(data)
        return examples

    def describe(self, pattern: str) -> str:
        """What a file is that is neither a table nor a folder."""
        return "is no table, folder or archive"

    def table(self, pattern: str, data: T) -> Table:
        rule = column_rule(data, (self.medium.column, self.target))
        return open_table([pattern], rule, data.format, data.invalid)

    def open(self, files: Sequence[Sequence[str]], data: T) -> Source:
        """The examples in these files, each a medium and its target."""
        if len(files) != 1:
            raise UserError(self.several.format(len(files)))
        return concatenate([self._open(place, data) for pattern in files[0] for place in _places(pattern)])

    def _open(self, pattern: str, data: T) -> Source:
        path = Path(pattern).expanduser()
        if is_tree(pattern):
            return self.open_tree(open_tree(path), data)
        if is_table(pattern, data):
            return self.open_table(pattern, data)
        if not path.exists() and not glob.glob(str(path), recursive=True):
            raise missing_file(pattern)
        raise UserError(f"{pattern} {self.describe(pattern)}; give {self.expected}")

    def items(self, name: str, data: T) -> Iterator[tuple[str, RawValue]]:
        """The media in a file, a folder, an archive or a table of paths, each with its name; targets are not needed."""
        path = Path(name).expanduser()
        if is_tree(name):
            tree = open_tree(path)
            names = [file for file in tree.names if self.medium.is_name(file)]
            if not names:
                raise self.medium.missing_in(name, self.where)
            return ((tree.location(file), tree.content(file)) for file in names)
        if plain_suffix(name) in SUFFIXES:
            rule = column_rule(data, (self.medium.column, self.target), 1)
            table = MediaTable(open_table([name], rule, "auto", data.invalid), self.medium)
            return ((table.file_name(index), table[index][0]) for index in range(len(table)))
        return iter([(name, path)])


def is_table(pattern: str, data: TableData) -> bool:
    """True for data in memory, and files of a table by their suffix or by data.format."""
    return isinstance(pattern, InMemory) or plain_suffix(pattern) in SUFFIXES or data.format != "auto"


def _places(pattern: str) -> list[str]:
    """The archives that match a glob; other names as they are."""
    archives = sorted(glob.glob(os.path.expanduser(pattern))) if is_archive(pattern) else []
    return archives or [pattern]
