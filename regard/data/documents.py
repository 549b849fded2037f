"""Running text from files, a block at a time: plain text or JSONL, packed or not, of any size."""

import glob
import gzip
import hashlib
import json
import lzma
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import IO, NamedTuple

from ..config.schema import Sides, TextData
from ..errors import UserError
from ..synthetic import stdlib
from .readers import UNPACKERS, open_text, wrong
from .split_points import ANY, TextPart

BLOCK = 1 << 18  # bytes read together
SAMPLE = 1 << 26  # characters that a tokenizer is learnt from, at most
LOOKS, LOOK = 8, 1 << 14  # places, and bytes of each, that are looked at to see whether a file has changed
BOM = b"\xef\xbb\xbf"

Unit = tuple[str, bool]  # so much of a document, and whether it ends there


class HoldoutSplit(NamedTuple):
    """One of the two parts of some files: the first, or the rest that is held out."""

    held: bool
    share: float  # that is held out


class Documents:
    """The documents of some files. Every pass reads the files again; `counts` says what the last one found."""

    def __init__(self, files: Sequence[Path], data: TextData, name: str, half: HoldoutSplit | None = None) -> None:
        self.files, self.data, self.half = list(files), data, half
        self.name = name
        if half:
            self.name = f"{'' if half.held else 'all but '}the last {100 * half.share:.4g} % of {name}"
        self.counts: Counter[str] = Counter()

    def parts(self, place: Callable[[str], int] | None) -> Iterator[TextPart]:
        """All documents, in parts that end where `place` says; without it, whole."""
        waiting: list[str] = []
        inner = False
        for text, last in self._units():
            waiting.append(text)
            if last:
                yield TextPart("".join(waiting), inner, True)
                waiting, inner = [], False
            elif place:
                whole = "".join(waiting)
                if cut := place(whole):
                    yield TextPart(whole[:cut], inner, False)
                    inner = True
                waiting = [whole[cut:]]

    def sample(self) -> Iterator[str]:
        """Text to learn a tokenizer from: all there is or, of more than SAMPLE characters, evenly spaced parts."""
        step = 1 + sum(len(text) for text, _ in self._units()) // SAMPLE
        for number, part in enumerate(self.parts(ANY.place)):
            if number % step == 0:
                yield part.text

    def request(self) -> str:
        """Stands for what is read, and how, whatever the files hold."""
        ways = [self.data.format, self.data.document, self.data.invalid, self.data.verify, self.half]
        return json.dumps([*map(str, ways), *(str(path.absolute()) for path in self.files)])

    def state(self) -> str:
        """Stands for what the files hold, without reading them whole unless data.verify asks for it."""
        state = hashlib.blake2b(digest_size=16)
        for path in self.files:
            with open_text(path) as file:
                facts = os.fstat(file.fileno())
                state.update(f"{facts.st_size} {facts.st_mtime_ns}\0".encode())
                if self.data.verify or facts.st_size <= LOOKS * LOOK:
                    while data := file.read(BLOCK):
                        state.update(data)
                    continue
                for look in range(LOOKS):
                    file.seek(max(facts.st_size - LOOK, 0) * look // (LOOKS - 1))
                    state.update(file.read(LOOK))
        return state.hexdigest()

    def _units(self) -> Iterator[Unit]:
        """Those of our half."""
        if not self.half:
            yield from self._all()
            return
        border, within = self._border
        number = at = 0
        for text, last in self._all():
            ours = len(text) if number < border else min(max(within - at, 0), len(text)) * (number == border)
            over = (number, at + len(text)) >= (border, within)  # has all of the first half been seen?
            if not self.half.held:
                if number < border or ours:
                    yield text[:ours], last or over
                if over:
                    return
            elif over and (last or ours < len(text)):
                yield text[ours:], last
            number, at = (number + 1, 0) if last else (number, at + len(text))

    @cached_property
    def _border(self) -> tuple[int, int]:
        """The document, and the character in it, with which what is held out begins, at so many of all characters.
        A document that is shorter than what is held out is not cut in two."""
        assert self.half
        total = sum(len(text) for text, _ in self._all())
        place, before, number, size = int(total * (1 - self.half.share)), 0, 0, 0
        for text, last in self._all():
            size += len(text)
            if last:
                if before + size > place:
                    break
                number, before, size = number + 1, before + size, 0
        return (number, 0) if number and size < total - place else (number, place - before)

    def _all(self) -> Iterator[Unit]:
        self.counts = Counter()
        for path in self.files:
            reader = DocumentReader(path, self.data.invalid == "skip", self.counts)
            name = path.name.lower().removesuffix(".gz").removesuffix(".xz")
            listed = self.data.format == "auto" and name.endswith((".jsonl", ".ndjson"))
            ways = {"file": reader.file, "blank": reader.blank, "line": reader.line, "stream": reader.stream}
            units = reader.jsonl() if listed or self.data.format == "jsonl" else ways[self.data.document]()
            for text, last in units:
                if len(text) > BLOCK:  # a line can have any length
                    starts = range(0, len(text), BLOCK)
                    yield from ((text[first : first + BLOCK], last and first == starts[-1]) for first in starts)
                else:
                    yield text, last


class ByteBlock(NamedTuple):
    data: bytes
    line: int  # the number of its first line
    before: int  # bytes of that line in the block before


class DocumentReader:
    """One file as units of text."""

    def __init__(self, path: Path, skip: bool, counts: Counter[str]) -> None:
        self.path, self.skip, self.counts = path, skip, counts

    def file(self) -> Iterator[Unit]:
        if self.skip and any(wrong(block.data) for block in self._blocks(lines=False)):
            self.counts["files"] += 1
            return
        begun = False
        for block in self._blocks(lines=False):
            if wrong(block.data):
                raise self._refused(block)
            begun = True
            yield self._text(block.data), False
        if begun:
            yield "", True
        else:
            self.counts["empty"] += 1

    def line(self) -> Iterator[Unit]:
        for _, line in self._lines():
            if line.strip():
                yield line, True
            else:
                self.counts["empty"] += 1

    def stream(self) -> Iterator[Unit]:
        for _, line in self._lines():
            yield line, True

    def blank(self) -> Iterator[Unit]:
        waiting: list[str] = []
        size, begun = 0, False  # of the waiting lines; is there more of this document before them?
        for _, line in self._lines():
            if line.strip():
                waiting.append(line)
                size += len(line)
            if waiting and size > BLOCK:
                yield "\n" * begun + "\n".join(waiting), False
                waiting, size, begun = [], 0, True
            elif (waiting or begun) and not line.strip():
                yield ("\n" * begun + "\n".join(waiting)) * bool(waiting), True
                waiting, size, begun = [], 0, False
        if waiting or begun:
            yield ("\n" * begun + "\n".join(waiting)) * bool(waiting), True

    def jsonl(self) -> Iterator[Unit]:
        for number, line in self._lines():
            try:
                text = _record(line) if line.strip() else ""
            except ValueError as error:
                if not self.skip:
                    raise self._mistake(number, str(error)) from error
                self.counts["lines"] += 1
                continue
            if text.strip():
                yield text, True
            else:
                self.counts["empty"] += 1

    def _lines(self) -> Iterator[tuple[int, str]]:
        """Every line with its number, but for those that are no text."""
        for data, first, _ in self._blocks(lines=True):
            if not wrong(data):
                lines = self._text(data).split("\n")
                yield from enumerate(lines if lines[-1] else lines[:-1], first)
                continue
            for number, line in enumerate(data.removesuffix(b"\n").split(b"\n"), first):
                if why := wrong(line):
                    if not self.skip:
                        raise self._mistake(number, why)
                    self.counts["lines"] += 1
                else:
                    yield number, self._text(line + b"\n")[:-1]

    def _blocks(self, lines: bool) -> Iterator[ByteBlock]:
        """Whole lines; where only characters need be whole, a long line is cut."""
        first, before, rest = 1, 0, b""
        with open_text(self.path) as raw, UNPACKERS.get(self.path.suffix.lower(), nullcontext)(raw) as file:
            while data := _read(file, max(BLOCK, len(rest)), self.path):
                if first == 1 and not rest and data.startswith(BOM):
                    data = data[len(BOM) :]
                rest += data
                cut = rest.rfind(b"\n") + 1
                if not cut and not lines:
                    cut = _characters(rest)
                if cut:
                    yield ByteBlock(rest[:cut], first, before)
                    before = 0 if rest[cut - 1] == 10 else before + cut
                    first, rest = first + rest.count(b"\n", 0, cut), rest[cut:]
        if rest:
            yield ByteBlock(rest, first, before)

    def _text(self, data: bytes) -> str:
        if crlf := data.count(b"\r\n"):
            self.counts["crlf"] += crlf
            data = data.replace(b"\r\n", b"\n")
        return data.decode("utf-8")

    def _refused(self, block: ByteBlock) -> UserError:
        for number, line in enumerate(block.data.split(b"\n"), block.line):
            if why := wrong(line, block.before if number == block.line else 0):
                return self._mistake(number, why)
        raise AssertionError("the block is text")

    def _mistake(self, number: int, why: str) -> UserError:
        return UserError(f"{self.path}:{number}: {why}; put it right, or set data.invalid=skip to leave such text out")


def _record(line: str) -> str:
    try:
        record = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"not one JSON object on one line ({error})") from error
    if not isinstance(record, dict):
        raise ValueError('not a JSON object such as {"text": …}')
    text = record.get("text")
    if "text" in record and not isinstance(text, str):
        raise ValueError(f"no text under 'text' but {json.dumps(text, ensure_ascii=False):.40}")
    if not isinstance(text, str):
        raise ValueError(f"no text under 'text'; there is {', '.join(map(str, record)) or 'nothing'}")
    if wrong(text.encode("utf-8", "surrogatepass")):
        raise ValueError("a text with a NUL or half a surrogate pair")
    return text


def _characters(data: bytes) -> int:
    """How many of these bytes are whole characters; a CR at the end waits for what follows it."""
    end = len(data)
    for back in range(1, min(4, end) + 1):
        if data[-back] >= 0xC0:  # the first byte of a character of two to four
            size = 2 + (data[-back] >= 0xE0) + (data[-back] >= 0xF0)
            end -= back if back < size else 0
            break
        if data[-back] < 0x80:
            break
    return end - data[:end].endswith(b"\r")


def _read(file: IO[bytes], size: int, path: Path) -> bytes:
    try:
        return file.read(size)
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError) as error:
        raise UserError(f"{path} is not a whole {path.suffix} archive ({error}); fetch or pack it again") from error


# --- which files -----------------------------------------------------------------------------------------------------


def documents(data: TextData, part: str, sides: Sides | None = None) -> Documents:
    """The part train, valid or test of the data: the files named for it, what is held out of data.train, or else the
    embedded sources. `sides` names other files."""
    if sides is None and not getattr(data, part) and not data.train:
        return Documents(stdlib.files(part), data.model_copy(update=stdlib.READ), stdlib.name(part))
    half = None
    if sides is None and part != "test" and data.holdout and not data.valid:
        half, sides = HoldoutSplit(part == "valid", data.holdout), data.train
    sides = sides or getattr(data, part)
    if not sides:
        more = ", or hold out a share of data.train (data.holdout)" if part == "valid" else ""
        raise UserError(f"this run has no {part} data; name some, such as data.{part}=folder{more}")
    files = [path for side in sides for pattern in side for path in text_files(pattern)]
    name = f"{files[0]}" + (f" (and {len(files) - 1:,} more)" if len(files) > 1 else "")
    return Documents(files, data, name, half)


def text_files(pattern: str) -> list[Path]:
    """The files that a name, a folder or a glob stands for, sorted; hidden ones in folders are passed over."""
    path = Path(pattern).expanduser()
    matches = [path] if path.exists() else sorted(map(Path, glob.glob(str(path), recursive=True)))
    if not matches:
        kind = "no file matches" if glob.has_magic(pattern) else "there is no file"
        raise UserError(f"{kind} {pattern}; check the name (this is {os.getcwd()})")
    files = [file for match in matches for file in (_inside(match) if match.is_dir() else [match])]
    if not files:
        raise UserError(f"{pattern} holds no text file; name a folder with some, or the files themselves")
    for file in files:
        if not file.is_file():
            raise UserError(f"{file} is no ordinary file, and text is read more than once; write it to a file first")
    return files


def _inside(folder: Path) -> list[Path]:
    files = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files += [Path(place, name) for name in names if not name.startswith(".")]
    return sorted(file for file in files if file.is_file())
