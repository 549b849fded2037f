"""Text files as lines, read by offset; the one place that opens compressed files."""

import bisect
import glob
import gzip
import hashlib
import lzma
import os
import shutil
import tempfile
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import numpy as np

from ..errors import UserError
from .examples import LazySequence

BLOCK_BYTES = 1 << 24  # bytes scanned together
MAX_OPEN_FILES = 64  # file handles kept open at a time, far below any system's limit
VALID, BLANK, INVALID, HEADER = 0, 1, 2, 3  # the status of a line
BOM = b"\xef\xbb\xbf"
DECOMPRESSORS: dict[str, Callable[[Path], object]] = {".gz": gzip.open, ".xz": lzma.open}
ARCHIVE_ERRORS = (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError)  # raised for a damaged or truncated archive

LineCheck = Callable[[int, int, str], int]  # (file, line, text) -> line status; a ValueError says what is wrong


@dataclass(slots=True)
class LineFile:
    """One file of a `TextLines`: the offset of each line and, last, of the end of the file."""

    path: Path
    spool: IO[bytes] | None  # decompressed text, where the file itself cannot be read by offset
    offsets: np.ndarray
    digest: bytes


class TextLines(LazySequence[str]):
    """The lines of several files as one sequence. Memory holds only an offset and a status per line."""

    def __init__(
        self,
        patterns: Sequence[str],
        invalid: str = "refuse",
        check: LineCheck | None = None,
        on_skip: Callable[[int, int], None] | None = None,
    ) -> None:
        """`check` is called with every line that is text, `on_skip` with (file, line) of each line left out."""
        self.invalid, self.check, self.on_skip = invalid, check, on_skip
        self.counts = {"crlf": 0, "bom": 0}
        self._lock = threading.Lock()
        self._handles: dict[Path, IO[bytes]] = {}
        self._spool: IO[bytes] | None = None
        self._files: list[LineFile] = []
        self._first_lines = [0]
        statuses = [np.zeros(0, np.uint8)]
        for path in [path for pattern in patterns for path in matching_files(pattern)]:
            statuses.append(self._scan(path))
            self._first_lines.append(self._first_lines[-1] + len(statuses[-1]))
        self.statuses = np.concatenate(statuses)

    def __len__(self) -> int:
        return self._first_lines[-1]

    def item(self, index: int) -> str:
        number, line = self.locate(index)
        file = self._files[number]
        start, end = map(int, file.offsets[line : line + 2])
        data = self._read(file, start, end - start)
        if self.statuses[index] == INVALID:
            return ""
        try:
            text = data.decode("utf-8") if len(data) == end - start else None
        except UnicodeDecodeError:
            text = None
        if text is None:
            raise UserError(f"{file.path} was changed while it was being read; leave it alone and start again")
        return text[:-1].removesuffix("\r") if text.endswith("\n") else text

    def locate(self, index: int) -> tuple[int, int]:
        """The number of the file and of the line in it, both from 0."""
        number = bisect.bisect_right(self._first_lines, index) - 1
        return number, index - self._first_lines[number]

    def location(self, index: int) -> str:
        number, line = self.locate(index)
        return f"{self._files[number].path}:{line + 1}"

    def path(self, number: int) -> Path:
        return self._files[number].path

    @property
    def name(self) -> str:
        """The first file and the number of the others."""
        others = len(self._files) - 1
        return f"{self._files[0].path}" + (f" (and {others} more)" if others else "")

    def digest(self) -> bytes:
        """A hash of the content; it does not depend on file names or compression."""
        return b"".join(file.digest for file in self._files)

    def close(self) -> None:
        while self._handles:
            self._handles.popitem()[1].close()
        if self._spool:
            self._spool.close()

    def __del__(self) -> None:
        if hasattr(self, "_spool"):
            self.close()

    def _read(self, file: LineFile, start: int, size: int) -> bytes:
        with self._lock:
            handle = file.spool or self._handles.get(file.path)
            if handle is None:
                if len(self._handles) >= MAX_OPEN_FILES:
                    self._handles.pop(next(iter(self._handles))).close()
                handle = self._handles[file.path] = open_text(file.path)
            if hasattr(os, "pread"):  # forked processes share the position of a handle
                return os.pread(handle.fileno(), size, start)
            handle.seek(start)
            return handle.read(size)

    def _scan(self, path: Path) -> np.ndarray:
        """Read a file once, from start to end. Returns the status of each line."""
        spooled = is_compressed(path) or not path.is_file()
        stream = self._decompress(path) if spooled else open_text(path)
        try:
            scan = LineScanner(self, path, len(self._files), stream.tell())
            rest = b""
            while block := stream.read(BLOCK_BYTES):
                rest += block
                cut = rest.rfind(b"\n") + 1
                scan.add_block(rest[:cut])
                rest = rest[cut:]
            scan.add_block(rest)
        finally:
            if not spooled:
                stream.close()
        offsets = np.concatenate([*scan.offsets, [scan.end]]).astype(np.int64)
        self._files.append(LineFile(path, stream if spooled else None, offsets, scan.hash.digest()))
        return np.concatenate([np.zeros(0, np.uint8), *scan.statuses])

    def _decompress(self, path: Path) -> IO[bytes]:
        """The spool file, positioned where the plain text of `path` begins. All files share one, to save handles."""
        if self._spool is None:
            self._spool = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as this object)
        start = self._spool.seek(0, os.SEEK_END)
        try:
            with open_decompressed(path) as packed:
                shutil.copyfileobj(packed, self._spool, BLOCK_BYTES)
            self._spool.seek(start)
        except ARCHIVE_ERRORS as error:
            raise archive_error(path, error) from error
        except OSError as error:
            place = tempfile.gettempdir()
            raise UserError(
                f"{path} cannot be unpacked into {place} ({error.strerror}); free space there, or set TMPDIR"
            ) from error
        return self._spool


class LineScanner:
    """Collects offsets, statuses and a hash while one file is read from start to end."""

    def __init__(self, lines: TextLines, path: Path, number: int, start: int) -> None:
        self.lines, self.path, self.number = lines, path, number
        self.first, self.end, self.line = start, start, 0
        self.offsets: list[np.ndarray] = []
        self.statuses: list[np.ndarray] = []
        self.hash = hashlib.blake2b(digest_size=16)

    def add_block(self, data: bytes) -> None:
        """Add whole lines; only the last line of a file may lack its newline."""
        if not data:
            return
        start, self.end = self.end, self.end + len(data)
        if start == self.first and data.startswith(BOM):
            data, start = data[len(BOM) :], start + len(BOM)
            self.lines.counts["bom"] += 1
        self.hash.update(data)
        codes = np.frombuffer(data, np.uint8)
        stops = np.flatnonzero(codes == 10)
        starts = np.concatenate([[0], stops + 1])
        starts = starts[starts < len(data)]
        self.lines.counts["crlf"] += int(np.count_nonzero(codes[stops[stops > 0] - 1] == 13))
        self.offsets.append(starts + start)
        texts = self._decode_lines(data)[: len(starts)]
        self.statuses.append(np.fromiter(map(self._status, texts), np.uint8, len(starts)))

    def _decode_lines(self, data: bytes) -> Sequence[str | bytes]:
        """Each line as text; lines that are not valid text stay bytes."""
        if not text_error(data):
            return data.decode("utf-8").split("\n")
        return [line if text_error(line) else line.decode("utf-8") for line in data.split(b"\n")]

    def _status(self, text: str | bytes) -> int:
        self.line += 1
        try:
            if isinstance(text, bytes):
                raise ValueError(text_error(text))
            if self.lines.check:
                return self.lines.check(self.number, self.line, text.removesuffix("\r"))
            return VALID if text.strip() else BLANK
        except UserError as error:
            raise UserError(f"{self.path}:{self.line}: {error}") from error
        except ValueError as error:
            if self.lines.invalid == "skip":
                if self.lines.on_skip:
                    self.lines.on_skip(self.number, self.line)
                return INVALID
            hint = "correct it, or set data.invalid=skip to leave such lines out"
            raise UserError(f"{self.path}:{self.line}: {error}; {hint}") from error


def matching_files(pattern: str) -> list[Path]:
    """The files that match a name or glob, sorted."""
    path = Path(pattern).expanduser()
    if path.is_dir():
        raise UserError(f"{pattern} is a folder, expected files; name them, for example {pattern.rstrip('/')}/*.txt")
    if path.exists():
        return [path]  # also if the name itself contains * or [
    files = sorted(p for p in map(Path, glob.glob(str(path), recursive=True)) if not p.is_dir())
    if not files:
        raise missing_file(pattern)
    return files


def missing_file(pattern: str) -> UserError:
    kind = "no file matches" if glob.has_magic(pattern) else "there is no file"
    return UserError(f"{kind} {pattern}; check the name (the current folder is {os.getcwd()})")


def format_by_suffix(name: str, formats: Mapping[str, str], default: str) -> str:
    """The format for the suffix of a file name; a compression suffix is ignored."""
    return formats.get(Path(name.lower().removesuffix(".gz").removesuffix(".xz")).suffix, default)


# --- opening files ---------------------------------------------------------------------------------------------------


def is_compressed(path: Path) -> bool:
    return path.suffix.lower() in DECOMPRESSORS


def open_text(path: Path) -> IO[bytes]:
    """Open a file unbuffered, as it is on disk."""
    try:
        return open(path, "rb", buffering=0)
    except OSError as error:
        raise unreadable(path, error) from error


def open_decompressed(path: Path) -> IO[bytes]:
    """Open a file for reading its plain bytes: .gz and .xz are decompressed. Reading may raise ARCHIVE_ERRORS."""
    try:
        return cast(IO[bytes], DECOMPRESSORS.get(path.suffix.lower(), _open_plain)(path))
    except OSError as error:
        raise unreadable(path, error) from error


def _open_plain(path: Path) -> IO[bytes]:
    return open(path, "rb")


def unreadable(path: Path, error: OSError) -> UserError:
    return UserError(f"{path} cannot be read: {error.strerror}; check its name and permissions")


def archive_error(path: Path, error: Exception) -> UserError:
    return UserError(f"{path} is not a complete {path.suffix} archive ({error}); download or compress it again")


def text_error(data: bytes, before: int = 0) -> str:
    """Why bytes of a line are not valid text, or "". `before` is the number of bytes of the line before them."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "this is UTF-16, expected UTF-8"
    if b"\0" in data:
        return "a NUL byte, so this looks like a binary file, not text"
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"byte {before + error.start + 1} of the line is 0x{data[error.start]:02x}, which is not valid UTF-8"
    return ""
