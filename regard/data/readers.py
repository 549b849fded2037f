"""Text files as sequences that are read on demand: lines by offset, and examples of parallel text, TSV or JSONL."""

import bisect
import glob
import gzip
import hashlib
import json
import lzma
import os
import shutil
import tempfile
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..config.schema import PairData
from ..errors import UserError
from .examples import Examples, LazySequence

BLOCK = 1 << 24  # bytes looked at together while a file is scanned
HANDLES = 64  # files kept open at a time, far below any system's limit
FINE, BLANK, INVALID, HEADER = 0, 1, 2, 3  # what the scan found in a line
UNPACKERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
BROKEN = (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError)  # what these say of a file that is none, or cut off

Check = Callable[[int, int, str], int]  # (file, line, text) -> one of the four above; ValueError says what is wrong


@dataclass(slots=True)
class LineFile:
    """One file of a `Lines`: where each of its lines begins and, last, where the file ends."""

    path: Path
    spool: IO[bytes] | None  # holds the unpacked text where the file itself cannot be read by offset
    offsets: np.ndarray
    digest: bytes


class TextLines(LazySequence[str]):
    """The lines of several files as one sequence. Only their offsets and one mark per line are held in memory."""

    def __init__(
        self,
        patterns: Sequence[str],
        invalid: str = "refuse",
        check: Check | None = None,
        skipped: Callable[[int, int], None] | None = None,
    ) -> None:
        """`check` sees every line that is text, `skipped` hears (file, line) of those that are left out."""
        self.invalid, self.check, self.skipped = invalid, check, skipped
        self.counts = {"crlf": 0, "bom": 0}
        self._lock = threading.Lock()
        self._open: dict[Path, IO[bytes]] = {}
        self._spool: IO[bytes] | None = None
        self._parts: list[LineFile] = []
        self._firsts = [0]
        marks = [np.zeros(0, np.uint8)]
        for path in [path for pattern in patterns for path in matching_files(pattern)]:
            marks.append(self._scan(path))
            self._firsts.append(self._firsts[-1] + len(marks[-1]))
        self.marks = np.concatenate(marks)

    def __len__(self) -> int:
        return self._firsts[-1]

    def item(self, index: int) -> str:
        number, line = self.place(index)
        part = self._parts[number]
        start, end = map(int, part.offsets[line : line + 2])
        data = self._read(part, start, end - start)
        if self.marks[index] == INVALID:
            return ""
        try:
            text = data.decode("utf-8") if len(data) == end - start else None
        except UnicodeDecodeError:
            text = None
        if text is None:
            raise UserError(f"{part.path} was changed while it was being read; leave it alone and start again")
        return text[:-1].removesuffix("\r") if text.endswith("\n") else text

    def place(self, index: int) -> tuple[int, int]:
        """The number of the file and of the line in it, both from 0."""
        number = bisect.bisect_right(self._firsts, index) - 1
        return number, index - self._firsts[number]

    def where(self, index: int) -> str:
        number, line = self.place(index)
        return f"{self._parts[number].path}:{line + 1}"

    def path(self, number: int) -> Path:
        return self._parts[number].path

    @property
    def name(self) -> str:
        """The files in few words."""
        others = len(self._parts) - 1
        return f"{self._parts[0].path}" + (f" (and {others} more)" if others else "")

    def digest(self) -> bytes:
        """Stands for the content: the same wherever the files lie, packed or not."""
        return b"".join(part.digest for part in self._parts)

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()
        if self._spool:
            self._spool.close()

    def __del__(self) -> None:
        if hasattr(self, "_spool"):
            self.close()

    def _read(self, part: LineFile, start: int, size: int) -> bytes:
        with self._lock:
            handle = part.spool or self._open.get(part.path)
            if handle is None:
                if len(self._open) >= HANDLES:
                    self._open.pop(next(iter(self._open))).close()
                handle = self._open[part.path] = open_text(part.path)
            handle.seek(start)
            return handle.read(size)

    def _scan(self, path: Path) -> np.ndarray:
        """The one pass over a file; gives its marks."""
        spooled = path.suffix.lower() in UNPACKERS or not path.is_file()
        stream = self._unpacked(path) if spooled else open_text(path)
        try:
            scan = LineScanner(self, path, len(self._parts), stream.tell())
            rest = b""
            while block := stream.read(BLOCK):
                rest += block
                cut = rest.rfind(b"\n") + 1
                scan.take(rest[:cut])
                rest = rest[cut:]
            scan.take(rest)
        finally:
            if not spooled:
                stream.close()
        offsets = np.concatenate([*scan.offsets, [scan.end]]).astype(np.int64)
        self._parts.append(LineFile(path, stream if spooled else None, offsets, scan.hash.digest()))
        return np.concatenate([np.zeros(0, np.uint8), *scan.marks])

    def _unpacked(self, path: Path) -> IO[bytes]:
        """The spool, at the place from which it holds the plain text of `path`. One for all files: handles are few."""
        if self._spool is None:
            self._spool = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as we do)
        start = self._spool.seek(0, os.SEEK_END)
        try:
            with UNPACKERS.get(path.suffix.lower(), open_text)(path) as packed:
                shutil.copyfileobj(packed, self._spool, BLOCK)
            self._spool.seek(start)
        except BROKEN as error:
            raise broken(path, error) from error
        except OSError as error:
            place = tempfile.gettempdir()
            raise UserError(
                f"{path} cannot be unpacked into {place} ({error.strerror}); free space there, or set TMPDIR"
            ) from error
        return self._spool


class LineScanner:
    """What is gathered while one file is read from its start to its end."""

    def __init__(self, lines: TextLines, path: Path, number: int, start: int) -> None:
        self.lines, self.path, self.number = lines, path, number
        self.first, self.end, self.line = start, start, 0
        self.offsets: list[np.ndarray] = []
        self.marks: list[np.ndarray] = []
        self.hash = hashlib.blake2b(digest_size=16)

    def take(self, data: bytes) -> None:
        """Whole lines; only the last of a file may lack its newline."""
        if not data:
            return
        start, self.end = self.end, self.end + len(data)
        if start == self.first and data.startswith(b"\xef\xbb\xbf"):
            data, start = data[3:], start + 3
            self.lines.counts["bom"] += 1
        self.hash.update(data)
        codes = np.frombuffer(data, np.uint8)
        stops = np.flatnonzero(codes == 10)
        starts = np.concatenate([[0], stops + 1])
        starts = starts[starts < len(data)]
        self.lines.counts["crlf"] += int(np.count_nonzero(codes[stops[stops > 0] - 1] == 13))
        self.offsets.append(starts + start)
        self.marks.append(np.fromiter(map(self._mark, self._texts(data)[: len(starts)]), np.uint8, len(starts)))

    def _texts(self, data: bytes) -> Sequence[str | bytes]:
        """Each line, left as bytes where it is no text."""
        if not wrong(data):
            return data.decode("utf-8").split("\n")
        return [line if wrong(line) else line.decode("utf-8") for line in data.split(b"\n")]

    def _mark(self, text: str | bytes) -> int:
        self.line += 1
        try:
            if isinstance(text, bytes):
                raise ValueError(wrong(text))
            if self.lines.check:
                return self.lines.check(self.number, self.line, text.removesuffix("\r"))
            return FINE if text.strip() else BLANK
        except UserError as error:
            raise UserError(f"{self.path}:{self.line}: {error}") from error
        except ValueError as error:
            if self.lines.invalid == "skip":
                if self.lines.skipped:
                    self.lines.skipped(self.number, self.line)
                return INVALID
            hint = "put it right, or set data.invalid=skip to leave such lines out"
            raise UserError(f"{self.path}:{self.line}: {error}; {hint}") from error


def matching_files(pattern: str) -> list[Path]:
    """The files that a name or glob stands for, sorted."""
    path = Path(pattern).expanduser()
    if path.is_dir():
        raise UserError(
            f"{pattern} is a folder and files are needed; name them, for example {pattern.rstrip('/')}/*.txt"
        )
    if path.exists():
        return [path]  # also where the name itself holds a * or a [
    files = sorted(p for p in map(Path, glob.glob(str(path), recursive=True)) if not p.is_dir())
    if not files:
        kind = "no file matches" if glob.has_magic(pattern) else "there is no file"
        raise UserError(f"{kind} {pattern}; check the name (this is {os.getcwd()})")
    return files


def named_kind(name: str, kinds: Mapping[str, str], otherwise: str) -> str:
    """What the end of a file's name says of its format, packed or not."""
    return kinds.get(Path(name.lower().removesuffix(".gz").removesuffix(".xz")).suffix, otherwise)


def open_text(path: Path) -> IO[bytes]:
    try:
        return open(path, "rb", buffering=0)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check its name and permissions") from error


def broken(path: Path, error: Exception) -> UserError:
    return UserError(f"{path} is not a whole {path.suffix} archive ({error}); fetch or pack it again")


def wrong(data: bytes, before: int = 0) -> str:
    """Why these bytes of a line, after so many others, are no text; nothing if they are."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "this is UTF-16, and UTF-8 is needed"
    if b"\0" in data:
        return "a NUL byte, so this looks like a binary file, not like text"
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"byte {before + error.start + 1} of the line is 0x{data[error.start]:02x}, which is not valid UTF-8"
    return ""


def references(text: str) -> list[str]:
    """The right answers in a target of evaluation data, where a tab separates them."""
    return [one for one in text.split("\t") if one.strip()] or [""]


class PairExamples(Examples):
    """Examples read from files: one `Lines` per side, or one that a `Table` splits into sides."""

    def __init__(self, lines: Sequence[TextLines], table: "ColumnSplitter | None" = None) -> None:
        self.lines, self.table = lines, table
        self.name = ", ".join(side.name for side in lines)
        first = lines[0]
        for other in lines[1:]:
            if len(other) != len(first):
                raise UserError(
                    f"the sides of the data differ in length: {first.name} has {len(first):,} lines and {other.name} "
                    f"has {len(other):,}; line i of one must belong to line i of the other"
                )
        marks = np.stack([side.marks for side in lines])
        invalid, header = (marks == INVALID).any(0), (marks == HEADER).any(0)
        empty = (marks == BLANK).any(0) & ~invalid
        fine = ~(invalid | header | empty)
        self.rows: Sequence[int] | np.ndarray = range(len(first)) if fine.all() else np.flatnonzero(fine)
        self.counts = {"examples": len(self.rows), "empty": int(empty.sum()), "invalid": int(invalid.sum())}
        self.counts |= {key: sum(side.counts[key] for side in lines) for key in ("crlf", "bom")}

    def __len__(self) -> int:
        return len(self.rows)

    def item(self, index: int) -> tuple[str, ...]:
        if self.table:
            row = int(self.rows[index])
            return self.table.split(self.lines[0].place(row)[0], self.lines[0][row])
        return tuple(self.text(index, side) for side in range(len(self.lines)))

    def text(self, index: int, side: int) -> str:
        return self.item(index)[side] if self.table else self.lines[side][int(self.rows[index])]

    def location(self, index: int) -> str:
        return ", ".join(side.where(int(self.rows[index])) for side in self.lines)

    def fingerprint(self) -> str:
        parts = [self.table.name.encode() if self.table else b"text", *(side.digest() for side in self.lines)]
        return hashlib.blake2b(b"\0".join([b"%d" % len(self), *parts]), digest_size=16).hexdigest()


class ColumnSplitter:
    """How a line of TSV or JSONL splits into the sides of an example."""

    def __init__(self, format: str, columns: Sequence[str], references: bool) -> None:
        self.json = format == "jsonl"
        self.columns = tuple(columns) or (("source", "target") if self.json else ("1", "2"))
        if len(self.columns) < 2:
            raise UserError(f"data.columns={','.join(columns)} names one column, and two are needed: source, target")
        if not references:
            self.columns = self.columns[:2]  # what follows are further right answers, for evaluation only
        self.headed = not self.json and not all(column.isdecimal() for column in self.columns)
        self._numbers = [] if self.json or self.headed else [int(column) - 1 for column in self.columns]
        if -1 in self._numbers:
            raise UserError(f"data.columns={','.join(columns)} holds 0; columns are counted from 1")
        self.name = f"{format} {self.columns}"
        self._places: dict[int, list[int]] = {}  # of the columns, per file

    def check(self, file: int, line: int, text: str) -> int:
        if file not in self._places:
            self._places[file] = self._header(text) if self.headed else self._numbers
            if self.headed:
                return HEADER
        if not text.strip():
            return BLANK
        return FINE if all(side.strip() for side in self.split(file, text)) else BLANK

    def _header(self, text: str) -> list[int]:
        names = text.split("\t")
        for column in self.columns:
            if column not in names:
                raise UserError(
                    f"the header has no column {column!r} (data.columns), it has {', '.join(names)}; "
                    "name one of these, or a number"
                )
        return [names.index(column) for column in self.columns]

    def split(self, file: int, text: str) -> tuple[str, str]:
        cells = self._fields(text) if self.json else self._cells(text.split("\t"), self._places[file])
        return cells[0], "\t".join(cell for cell in cells[1:] if cell.strip())

    def _cells(self, cells: list[str], places: list[int]) -> list[str]:
        if len(cells) <= max(places[:2]):
            raise ValueError(f"{len(cells)} columns, and column {max(places[:2]) + 1} is needed (data.columns)")
        return [cells[place] for place in places if place < len(cells)]

    def value(self, record: Mapping[str, Any], column: str) -> Any:
        return record.get(column)

    def _fields(self, text: str) -> list[str]:
        try:
            record = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"not one JSON object on one line ({error})") from error
        if not isinstance(record, dict):
            such = ", ".join(f'"{column}": …' for column in self.columns[:2])
            raise ValueError(f"not a JSON object such as {{{such}}}")
        values = [self.value(record, column) for column in self.columns]
        for column, value in zip(self.columns[:2], values, strict=False):
            if not isinstance(value, str):
                raise ValueError(
                    f"no text under {column!r}; there is {', '.join(map(str, record)) or 'nothing'} (data.columns)"
                )
        cells = [value for value in values if isinstance(value, str)]
        if any(wrong(cell.encode("utf-8", "surrogatepass")) for cell in cells):
            raise ValueError("a text with a NUL or half a surrogate pair")
        return cells


def pairs(sides: Sequence[Sequence[str]], data: PairData, references: bool = False) -> PairExamples:
    """The examples in these files. With `references`, `data.columns` after the second are further right answers."""
    if not sides or not all(sides):
        raise UserError("no data file is named; give two sides such as data.train=train.en,train.de")
    kinds = {".tsv": "tsv", ".jsonl": "jsonl", ".json": "jsonl"}
    format = named_kind(sides[0][0], kinds, "text") if data.format == "auto" else data.format
    if format == "text":
        if len(sides) != 2:
            raise UserError(
                f"text data need two sides, source and target, not {len(sides)} ({sides[0][0]} …); write them with "
                "a comma between, as in data.train=a,b, or give one .tsv or .jsonl file (data.format)"
            )
        return PairExamples([TextLines(side, data.invalid) for side in sides])
    if len(sides) != 1:
        raise UserError(
            f"{format} data hold both sides in one file, and {len(sides)} sides were given; join several files by a "
            "glob or a TOML list, or set data.format=text"
        )
    table = ColumnSplitter(format, data.columns, references)
    return PairExamples([TextLines(sides[0], data.invalid, table.check)], table)
