"""Lines of files, pipes and terminals. Lines of a pipe are processed as they arrive."""

import os
import select
import stat
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from ..errors import UserError

GRACE = 0.01  # seconds that arrived lines wait for the next one
GATHER = 0.05  # seconds that they wait in total
BLOCK_BYTES = 1 << 16  # read together: what a pipe holds


class Lines:
    """The lines of a file, as bytes with their ends."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.file)

    def ready(self, since: float) -> bool:
        """True if the next line, or the end, comes without waiting. `since` is when the first waiting line came."""
        return True


class PipeLines(Lines):
    """The lines of a pipe or a terminal, which may come at any time."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self.number, self.ended = file.fileno(), False
        self.lines: deque[bytes] = deque()
        self.begun: list[bytes] = []  # parts of a line that has no end yet

    def __iter__(self) -> Iterator[bytes]:
        while True:
            while self.lines:
                yield self.lines.popleft()
            if self.ended:
                return
            self._read()

    def ready(self, since: float) -> bool:
        if self.lines or self.ended:
            return True
        now = time.monotonic()
        until = min(now + GRACE, since + GATHER)
        while not self.lines and not self.ended and select.select([self.number], [], [], max(until - now, 0))[0]:
            self._read()
            now = time.monotonic()
        return bool(self.lines) or self.ended

    def _read(self) -> None:
        """Wait for bytes or the end."""
        data = os.read(self.number, BLOCK_BYTES)
        first, newline, remainder = data.partition(b"\n")
        self.begun.append(first)
        if newline:
            *complete, last = remainder.split(b"\n")
            self.lines.append(b"".join(self.begun))
            self.lines += complete
            self.begun = [last]
        if not data:
            self.ended = True
            self.lines += filter(None, [b"".join(self.begun)])


def open_lines(name: str) -> Lines:
    """The lines of a file, compressed or not; `-` is stdin."""
    from ..data.files.open import is_compressed, open_decompressed

    if name == "-":
        return PipeLines(sys.stdin.buffer) if _is_pipe(sys.stdin.buffer) else Lines(sys.stdin.buffer)
    file = open_decompressed(Path(name))
    return PipeLines(file) if not is_compressed(Path(name)) and _is_pipe(file) else Lines(file)


def _is_pipe(file: IO[bytes]) -> bool:
    """True for a pipe, a terminal or a socket; on Windows `select` knows only the last."""
    try:
        return os.name != "nt" and not stat.S_ISREG(os.fstat(file.fileno()).st_mode)
    except OSError:  # a program has replaced stdin
        return False


def decode_lines(lines: Lines, name: str) -> Iterator[str]:
    """UTF-8 lines without their ends; `name` is for error messages."""
    from ..data.files.open import ARCHIVE_ERRORS

    number = 0
    try:
        for number, line in enumerate(lines, 1):
            if b"\0" in line:
                raise UserError(f"{name}:{number} has a NUL byte; expected lines of text")
            yield line.rstrip(b"\r\n").decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{name}:{number} is not UTF-8; convert the file, for instance with iconv") from error
    except ARCHIVE_ERRORS as error:
        raise UserError(f"{name} cannot be decompressed after line {number}: {error}; get the file again") from error
