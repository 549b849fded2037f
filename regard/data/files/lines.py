"""Text files as lines, read by offset."""

import bisect
import hashlib
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from ...errors import UserError
from ..source import LazySequence
from .line_index import BLANK, INVALID, VALID, LineIndex, file_state, index_path, read_index, write_index
from .open import (
    ARCHIVE_ERRORS,
    BOM,
    archive_error,
    is_compressed,
    matching_files,
    open_decompressed,
    open_text,
    text_error,
)

BLOCK_BYTES = 1 << 24  # bytes scanned together
MAX_OPEN_FILES = 64  # file handles kept open at a time, far below any system's limit
SPACE_HEADS = (0xC2, 0xE1, 0xE2, 0xE3)  # the first bytes of spaces outside ASCII, in UTF-8


LineCheck = Callable[[int, int, str], int]  # (file, line, text) -> line status; a ValueError says what is wrong


@dataclass(slots=True)
class LineFile:
    """One file of a `TextLines`."""

    path: Path
    spool: IO[bytes] | None  # decompressed text, where the file itself cannot be read by offset
    index: LineIndex


class TextLines(LazySequence[str]):
    """The lines of several files as one sequence. Memory holds only an offset and a status per line."""

    def __init__(
        self,
        patterns: Sequence[str],
        invalid: str = "refuse",
        check: LineCheck | None = None,
        on_skip: Callable[[int, int], None] | None = None,
        check_name: str = "",
    ) -> None:
        """`check` is called with every line that is text, `on_skip` with (file, line) of each line left out.

        The index of a large file is stored on disk. This requires a `check_name`, and a check that depends only on its
        line and the first line of the file.
        """
        self.invalid, self.check, self.on_skip = invalid, check, on_skip
        self._way = f"{invalid} {check_name}" if (check is None or check_name) and on_skip is None else None
        self.counts = {"crlf": 0, "bom": 0}
        self._lock = threading.Lock()
        self._handles: dict[Path, IO[bytes]] = {}
        self._spool: IO[bytes] | None = None
        self._files: list[LineFile] = []
        self._first_lines = [0]
        for path in [path for pattern in patterns for path in matching_files(pattern)]:
            file = self._open(path)
            self._files.append(file)
            self._first_lines.append(self._first_lines[-1] + len(file.index))
            for name, count in file.index.counts.items():
                self.counts[name] += count

    def __len__(self) -> int:
        return self._first_lines[-1]

    def item(self, index: int) -> str:
        number, line = self.locate(index)
        file = self._files[number]
        if file.index.status(line) == INVALID:
            return ""
        start, end = file.index.span(line)
        data = self._read(file, start, end - start)
        try:
            text = data.decode("utf-8") if len(data) == end - start else None
        except UnicodeDecodeError:
            text = None
        if text is None:
            raise UserError(f"{file.path} was changed while it was being read; leave it alone and start again")
        return text.removesuffix("\n").removesuffix("\r")

    def statuses(self) -> np.ndarray:
        """The status of every line."""
        parts = (file.index.statuses for file in self._files)
        sizes = (len(file.index) for file in self._files)
        return np.concatenate(
            [np.zeros(size, np.uint8) if part is None else part for part, size in zip(parts, sizes, strict=True)]
            or [np.zeros(0, np.uint8)]
        )

    def release_statuses(self) -> None:
        """Forget which lines are blank."""
        for file in self._files:
            file.index.release_statuses()

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
        return b"".join(file.index.digest for file in self._files)

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

    def _open(self, path: Path) -> LineFile:
        """A file with its index: from the cache, or by reading the file from start to end."""
        if is_compressed(path) or not path.is_file():
            stream = self._decompress(path)
            return LineFile(path, stream, self._scan(path, stream))
        with open_text(path) as stream:
            place = index_path(path, self._way) if self._way is not None else None
            state = file_state(path) if place else ""
            index = read_index(place, state) if place else None
            if index is None:
                index = self._scan(path, stream)
                if place and file_state(path) == state:
                    write_index(place, index, state)
                return LineFile(path, None, index)
            for line in range(len(index) if self.check else 0):  # the check may read the columns from the first line
                if index.status(line) != INVALID:
                    begin, end = index.span(line)
                    stream.seek(begin)
                    text = stream.read(end - begin).decode("utf-8").rstrip("\r\n")
                    if self.check and self.check(len(self._files), line + 1, text) != BLANK:
                        break
            return LineFile(path, None, index)

    def _scan(self, path: Path, stream: IO[bytes]) -> LineIndex:
        """Read a file once, from start to end."""
        scan = LineScanner(self, path, len(self._files), stream.tell())
        rest = b""
        while block := stream.read(BLOCK_BYTES):
            rest += block
            cut = rest.rfind(b"\n") + 1
            scan.add_block(rest[:cut])
            rest = rest[cut:]
        scan.add_block(rest)
        return scan.index()

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
    """Builds the index of one file while it is read from start to end."""

    def __init__(self, lines: TextLines, path: Path, number: int, start: int) -> None:
        self.lines, self.path, self.number = lines, path, number
        self.begin, self.end, self.line = start, start, 0
        self.firsts: list[int] = []
        self.bases: list[int] = []
        self.offsets: list[np.ndarray] = [np.zeros(0, np.uint32)]
        self.statuses: list[np.ndarray] = [np.zeros(0, np.uint8)]
        self.counts = {"crlf": 0, "bom": 0}
        self.hash = hashlib.blake2b(digest_size=16)

    def add_block(self, data: bytes) -> None:
        """Add whole lines; only the last line of a file may lack its newline."""
        if not data:
            return
        start, self.end = self.end, self.end + len(data)
        if start == self.begin and data.startswith(BOM):
            data, start = data[len(BOM) :], start + len(BOM)
            self.counts["bom"] += 1
        self.hash.update(data)
        codes = np.frombuffer(data, np.uint8)
        stops = np.flatnonzero(codes == 10)
        starts = np.concatenate([[0], stops + 1])
        starts = starts[starts < len(data)]
        self.counts["crlf"] += int(np.count_nonzero(codes[stops[stops > 0] - 1] == 13))
        self.firsts.append(self.line)
        self.bases.append(start)
        self.offsets.append(starts.astype(np.uint32 if len(data) < 2**32 else np.uint64))
        self.statuses.append(self._block_statuses(data, codes, starts))

    def index(self) -> LineIndex:
        offsets, statuses = np.concatenate(self.offsets), np.concatenate(self.statuses)
        blocks = np.array(self.firsts, np.int64), np.array(self.bases, np.int64)
        status_array = statuses if statuses.any() else None
        return LineIndex(*blocks, offsets, self.end, status_array, self.hash.digest(), self.counts)

    def _block_statuses(self, data: bytes, codes: np.ndarray, starts: np.ndarray) -> np.ndarray:
        problem = text_error(data)
        if self.lines.check is None and not problem:
            self.line += len(starts)
            return blank_lines(data, codes, starts)
        texts: Sequence[str | bytes] = data.split(b"\n") if problem else data.decode("utf-8").split("\n")
        return np.fromiter(map(self._status, texts[: len(starts)]), np.uint8, len(starts))

    def _status(self, text: str | bytes) -> int:
        self.line += 1
        try:
            if isinstance(text, bytes):
                if problem := text_error(text):
                    raise ValueError(problem)
                text = text.decode("utf-8")
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


def blank_lines(data: bytes, codes: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """The statuses of lines that need no other check. It inspects only lines that may begin with a space."""
    statuses, heads = np.full(len(starts), VALID, np.uint8), codes[starts]
    doubtful = np.flatnonzero((heads <= 32) | np.isin(heads, SPACE_HEADS))
    ends = np.append(starts[1:], len(data))
    for line, start, end in zip(doubtful.tolist(), starts[doubtful].tolist(), ends[doubtful].tolist(), strict=True):
        if not data[start:end].decode("utf-8").strip():
            statuses[line] = BLANK
    return statuses
