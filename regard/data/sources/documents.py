"""Running text, block by block: plain files and JSONL of any size, compressed or not, and tables with texts."""

import glob
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import IO, NamedTuple

from ...config.data.base import DataFiles
from ...config.data.texts import TextData
from ...errors import UserError
from ..files.in_memory import InMemory
from ..files.line_index import BLANK, INVALID, add_file_state
from ..files.open import ARCHIVE_ERRORS, BOM, archive_error, missing_file, open_decompressed, open_text, text_error
from ..tables.cells import Row
from ..tables.columns import TEXT, ColumnRule
from ..tables.line_table import JsonParser
from ..tables.open import column_rule, file_format, open_table
from ..tables.records import Table
from .split_points import WHITESPACE_RULES, TextPart

BLOCK_BYTES = 1 << 18  # read together
SAMPLE_CHARACTERS = 1 << 26  # that a tokenizer is trained on, at most

Unit = tuple[str, bool]  # part of a document, and whether the document ends with it


class HoldoutSplit(NamedTuple):
    """One of two splits of some files: the first part to train on, or the held-out rest."""

    held_out: bool
    share: float  # of the characters, held out


class Documents:
    """The documents of some files. Every pass reads the files again; `counts` is of the last pass."""

    def __init__(
        self, files: Sequence[Path | InMemory], data: TextData, name: str, holdout: HoldoutSplit | None = None
    ) -> None:
        self.files, self.data, self.holdout = list(files), data, holdout
        self.name = name
        if holdout:
            self.name = f"{'' if holdout.held_out else 'all but '}the last {100 * holdout.share:.4g} % of {name}"
        self.counts: Counter[str] = Counter()
        self._tables: dict[Path | InMemory, Table] = {}

    def parts(self, last_split: Callable[[str], int] | None) -> Iterator[TextPart]:
        """All documents, in parts that end at `last_split`; without it, whole."""
        waiting: list[str] = []
        inner = False
        for text, last in self._units():
            waiting.append(text)
            if last:
                yield TextPart("".join(waiting), inner, True)
                waiting, inner = [], False
            elif last_split:
                whole = "".join(waiting)
                if cut := last_split(whole):
                    yield TextPart(whole[:cut], inner, False)
                    inner = True
                waiting = [whole[cut:]]

    def sample(self) -> Iterator[str]:
        """Text to train a tokenizer on: all of it or, above SAMPLE_CHARACTERS, evenly spaced parts."""
        step = 1 + sum(len(text) for text, _ in self._units()) // SAMPLE_CHARACTERS
        for number, part in enumerate(self.parts(WHITESPACE_RULES.last_split)):
            if number % step == 0:
                yield part.text

    def request(self) -> str:
        """Identifies the files and how they are read, not their content. Part of cache file names: keep it stable."""
        split = f"Half(held={self.holdout.held_out}, share={self.holdout.share})" if self.holdout else None
        ways = [self.data.format, self.data.document, self.data.invalid, self.data.verify, split]
        if columns := self.data.columns:
            ways.append(",".join(columns))
        names = (path if isinstance(path, InMemory) else str(path.absolute()) for path in self.files)
        return json.dumps([*map(str, ways), *names])

    def state(self) -> str:
        """A hash of size, time and samples of the files; of their whole content with data.verify."""
        state = hashlib.blake2b(digest_size=16)
        for path in self.files:
            if isinstance(path, InMemory):
                state.update(self._table(path).digest())
                continue
            with open_text(path) as file:
                add_file_state(state, file, self.data.verify)
        return state.hexdigest()

    def facts(self) -> list[str]:
        """A sentence about the column read from the first table; none if all files are plain text."""
        for path in self.files:
            format = self._format(path)
            if isinstance(path, Path) and format == "jsonl":
                parser = JsonParser(self._rule)
                for number, line in DocumentReader(path, True, Counter()).lines():
                    if parser.parses(0, number, line):
                        return parser.facts()
            elif format != "text":
                return self._table(path).facts()
        return []

    def _format(self, path: Path | InMemory) -> str:
        return file_format(str(path) if isinstance(path, Path) else path, self.data.format, "text")

    def _units(self) -> Iterator[Unit]:
        """The units of this split."""
        if not self.holdout:
            yield from self._all_units()
            return
        border, within = self._border
        number = offset = 0
        for text, last in self._all_units():
            before = len(text) if number < border else min(max(within - offset, 0), len(text)) * (number == border)
            over = (number, offset + len(text)) >= (border, within)  # the train split ends here or before
            if not self.holdout.held_out:
                if number < border or before:
                    yield text[:before], last or over
                if over:
                    return
            elif over and (last or before < len(text)):
                yield text[before:], last
            number, offset = (number + 1, 0) if last else (number, offset + len(text))

    @cached_property
    def _border(self) -> tuple[int, int]:
        """The document, and the character in it, where the held-out split begins.

        A document that is shorter than the held-out split is not divided.
        """
        assert self.holdout
        total = sum(len(text) for text, _ in self._all_units())
        place, before, number, size = int(total * (1 - self.holdout.share)), 0, 0, 0
        for text, last in self._all_units():
            size += len(text)
            if last:
                if before + size > place:
                    break
                number, before, size = number + 1, before + size, 0
        return (number, 0) if number and size < total - place else (number, place - before)

    def _all_units(self) -> Iterator[Unit]:
        self.counts = Counter()
        for path in self.files:
            format = self._format(path)
            if isinstance(path, Path) and format in ("text", "jsonl"):
                reader = DocumentReader(path, self.data.invalid == "skip", self.counts)
                ways = {"file": reader.file, "blank": reader.blank, "line": reader.line, "stream": reader.stream}
                units = reader.jsonl(self._rule) if format == "jsonl" else ways[self.data.document]()
            else:
                units = self._table_units(self._table(path))
            for text, last in units:
                if len(text) > BLOCK_BYTES:  # a line can have any length
                    starts = range(0, len(text), BLOCK_BYTES)
                    yield from ((text[first : first + BLOCK_BYTES], last and first == starts[-1]) for first in starts)
                else:
                    yield text, last

    @property
    def _rule(self) -> ColumnRule:
        return column_rule(self.data, (TEXT,))

    def _table(self, path: Path | InMemory) -> Table:
        if path not in self._tables:
            name = path if isinstance(path, InMemory) else str(path)
            self._tables[path] = open_table([name], self._rule, self.data.format, self.data.invalid)
        return self._tables[path]

    def _table_units(self, table: Table) -> Iterator[Unit]:
        """Every text of a table is a document."""
        statuses = table.statuses()
        self.counts["empty"] += int((statuses == BLANK).sum())
        self.counts["lines"] += int((statuses == INVALID).sum())
        for index in (statuses == 0).nonzero()[0].tolist():
            yield _text_of(table.item(index)), True


def _text_of(row: Row) -> str:
    (text,) = row
    assert isinstance(text, str)
    return text


class ByteBlock(NamedTuple):
    """A block of bytes of a file with its position."""

    data: bytes
    line: int  # the number of its first line
    before: int  # bytes of that line in the previous blocks


class DocumentReader:
    """One file as units of text; a method per value of data.document, and `jsonl`."""

    def __init__(self, path: Path, skip: bool, counts: Counter[str]) -> None:
        self.path, self.skip, self.counts = path, skip, counts

    def file(self) -> Iterator[Unit]:
        if self.skip and any(text_error(block.data) for block in self._blocks(whole_lines=False)):
            self.counts["files"] += 1
            return
        begun = False
        for block in self._blocks(whole_lines=False):
            if text_error(block.data):
                raise self._block_error(block)
            begun = True
            yield self._decode(block.data), False
        if begun:
            yield "", True
        else:
            self.counts["empty"] += 1

    def line(self) -> Iterator[Unit]:
        for _, line in self.lines():
            if line.strip():
                yield line, True
            else:
                self.counts["empty"] += 1

    def stream(self) -> Iterator[Unit]:
        for _, line in self.lines():
            yield line, True

    def blank(self) -> Iterator[Unit]:
        waiting: list[str] = []
        size, begun = 0, False  # characters in `waiting`; True if this document has units before them
        for _, line in self.lines():
            if line.strip():
                waiting.append(line)
                size += len(line)
            if waiting and size > BLOCK_BYTES:
                yield "\n" * begun + "\n".join(waiting), False
                waiting, size, begun = [], 0, True
            elif (waiting or begun) and not line.strip():
                yield ("\n" * begun + "\n".join(waiting)) * bool(waiting), True
                waiting, size, begun = [], 0, False
        if waiting or begun:
            yield ("\n" * begun + "\n".join(waiting)) * bool(waiting), True

    def jsonl(self, rule: ColumnRule) -> Iterator[Unit]:
        parser = JsonParser(rule)
        for number, line in self.lines():
            try:
                blank = parser.check(0, number, line) == BLANK
            except UserError as error:
                raise UserError(f"{self.path}:{number}: {error}") from error
            except ValueError as error:
                if not self.skip:
                    raise self._line_error(number, str(error)) from error
                self.counts["lines"] += 1
                continue
            if blank:
                self.counts["empty"] += 1
            else:
                yield _text_of(parser.row(0, line)), True

    def lines(self) -> Iterator[tuple[int, str]]:
        """Every line that is valid text, with its number."""
        for data, first, _ in self._blocks(whole_lines=True):
            if not text_error(data):
                lines = self._decode(data).split("\n")
                yield from enumerate(lines if lines[-1] else lines[:-1], first)
                continue
            for number, line in enumerate(data.removesuffix(b"\n").split(b"\n"), first):
                if why := text_error(line):
                    if not self.skip:
                        raise self._line_error(number, why)
                    self.counts["lines"] += 1
                else:
                    yield number, self._decode(line + b"\n")[:-1]

    def _blocks(self, whole_lines: bool) -> Iterator[ByteBlock]:
        """Blocks of whole lines; without `whole_lines`, a long line may be divided between characters."""
        first, before, rest = 1, 0, b""
        with open_decompressed(self.path) as file:
            while data := _read(file, max(BLOCK_BYTES, len(rest)), self.path):
                if first == 1 and not rest and data.startswith(BOM):
                    data = data[len(BOM) :]
                rest += data
                cut = rest.rfind(b"\n") + 1
                if not cut and not whole_lines:
                    cut = _whole_characters(rest)
                if cut:
                    yield ByteBlock(rest[:cut], first, before)
                    before = 0 if rest[cut - 1] == 10 else before + cut
                    first, rest = first + rest.count(b"\n", 0, cut), rest[cut:]
        if rest:
            yield ByteBlock(rest, first, before)

    def _decode(self, data: bytes) -> str:
        if crlf := data.count(b"\r\n"):
            self.counts["crlf"] += crlf
            data = data.replace(b"\r\n", b"\n")
        return data.decode("utf-8")

    def _block_error(self, block: ByteBlock) -> UserError:
        for number, line in enumerate(block.data.split(b"\n"), block.line):
            if why := text_error(line, block.before if number == block.line else 0):
                return self._line_error(number, why)
        raise AssertionError("the block is valid text")

    def _line_error(self, number: int, why: str) -> UserError:
        return UserError(f"{self.path}:{number}: {why}; correct it, or set data.invalid=skip to leave such text out")


def _whole_characters(data: bytes) -> int:
    """The number of leading bytes that are whole characters; a CR at the end is left for the next block."""
    end = len(data)
    for back in range(1, min(4, end) + 1):
        if data[-back] >= 0xC0:  # the first byte of a character of two to four bytes
            size = 2 + (data[-back] >= 0xE0) + (data[-back] >= 0xF0)
            end -= back if back < size else 0
            break
        if data[-back] < 0x80:
            break
    return end - data[:end].endswith(b"\r")


def _read(file: IO[bytes], size: int, path: Path) -> bytes:
    try:
        return file.read(size)
    except ARCHIVE_ERRORS as error:
        raise archive_error(path, error) from error


# --- which files -----------------------------------------------------------------------------------------------------


def open_documents(data: TextData, split: str, files: DataFiles | None = None) -> Documents:
    """The train, valid or test split: the files named for it, or the part held out of data.train.

    `files` replaces the files of the settings.
    """
    holdout = None
    if files is None and split != "test" and data.holdout and not data.valid:
        holdout, files = HoldoutSplit(split == "valid", data.holdout), data.train
    files = files or getattr(data, split)
    if not files:
        more = ", or hold out a share of data.train (data.holdout)" if split == "valid" else ""
        raise UserError(f"this run has no {split} data; name some, such as data.{split}=folder{more}")
    paths = [path for group in files for pattern in group for path in text_files(pattern)]
    name = str(paths[0]) + (f" (and {len(paths) - 1:,} more)" if len(paths) > 1 else "")
    return Documents(paths, data, name, holdout)


def text_files(pattern: str) -> "list[Path | InMemory]":
    """The files that match a name, a folder or a glob, sorted; hidden files in folders are left out."""
    if isinstance(pattern, InMemory):
        return [pattern]
    path = Path(pattern).expanduser()
    matches = [path] if path.exists() else sorted(map(Path, glob.glob(str(path), recursive=True)))
    if not matches:
        raise missing_file(pattern)
    files: list[Path | InMemory] = [
        file for match in matches for file in (_files_in(match) if match.is_dir() else [match])
    ]
    if not files:
        raise UserError(f"{pattern} holds no text file; name a folder with some, or the files themselves")
    for file in files:
        if isinstance(file, Path) and not file.is_file():
            raise UserError(f"{file} is not a regular file, and text is read more than once; write it to a file first")
    return files


def _files_in(folder: Path) -> list[Path]:
    files = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files += [Path(place, name) for name in names if not name.startswith(".")]
    return sorted(file for file in files if file.is_file())
