"""Manifests: every line is a JSON object with a text, an image or a recording, its target, and perhaps its task."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...config.data.mixed import MultitaskData
from ...errors import UserError
from ...files import JsonObject
from ..files.in_memory import InMemory
from ..files.line_index import BLANK, INVALID, VALID
from ..files.lines import TextLines
from ..files.open import plain_suffix
from ..source import Source, concatenate
from ..tables.columns import MediaValue
from ..tables.records import check_encodable, parse_object
from .images import IMAGE as IMAGES
from .media import MediaSource, Medium, RawValue
from .sounds import SOUND as SOUNDS

TEXT, IMAGE, AUDIO = "text", "image", "audio"
MODALITIES = (TEXT, IMAGE, AUDIO)
MEDIA: Mapping[str, Medium[MultitaskData]] = {IMAGE: IMAGES, AUDIO: SOUNDS}
EXAMPLE = '{"image": "a.png", "target": "a red circle"}'
SKIP_HINT = "or set data.invalid=skip to leave such lines out"
SUFFIXES = (".jsonl", ".ndjson")


class SourceTag(NamedTuple):
    """The modality of an example's input, and the tag of its task."""

    modality: str
    task: str


class Line(NamedTuple):
    """The content of a line."""

    tag: SourceTag
    value: Any  # the text, the path of a file, or an image or recording in memory
    target: str


def parse_line(record: Mapping[str, object], required: bool = True) -> Line:
    """The content of a record. A ValueError says what is wrong. Without `required`, the target may be missing."""
    modalities = [modality for modality in MODALITIES if record.get(modality) is not None]
    if len(modalities) != 1:
        there = ", ".join(map(str, record)) or "nothing"
        what = f"{' and '.join(modalities)} at once" if modalities else f"no input of a known kind; there is {there}"
        raise ValueError(f"{what}; expected one of {', '.join(MODALITIES)}, as in {EXAMPLE}")
    (modality,) = modalities
    value, target, task = record[modality], record.get("target"), record.get("task", modality)
    blank = isinstance(value, str) and not value.strip() and (required or modality != TEXT)
    if blank or modality == TEXT and not isinstance(value, str):
        raise ValueError(
            f"no {modality} under {modality!r}; expected {'a text' if modality == TEXT else 'the path of a file'}"
        )
    if required and (not isinstance(target, str) or not target.strip()):
        raise ValueError(f"no text under 'target'; expected what is written for the {modality}, as in {EXAMPLE}")
    if not isinstance(task, str) or not task.strip():
        raise ValueError(f"no text under 'task'; expected a tag such as {modality!r}, or no such key")
    check_encodable(tuple(text for text in (value, target, task) if isinstance(text, str)))
    return Line(SourceTag(modality, task.strip()), value, str(target).strip() if required else "")


class ManifestSource(MediaSource):
    """Items are (SourceTag, input, target). Paths are relative to the folder of the manifest."""

    def __init__(self, name: str, data: MultitaskData, whole: Sequence[int] | np.ndarray) -> None:
        """`whole` has the numbers of the valid lines."""
        self.data = data
        self.name, self.counts, self.rows = name, {}, np.asarray(whole, np.int64)
        self._sizes = hashlib.blake2b(digest_size=16)  # of the files
        tags: list[SourceTag] = []

        def inspected() -> Iterator[tuple[str, float]]:
            for row in self.rows.tolist():
                line = self.line(row)
                tags.append(line.tag)
                yield self._inspect(row, line, data)

        usable = self.select(inspected(), data.invalid, SKIP_HINT, data.max_seconds)
        self.rows = self.rows[np.array(usable, int)]
        self.tags: list[SourceTag] = [tags[number] for number in usable]

    def line(self, row: int) -> Line:
        raise NotImplementedError

    def place(self, row: int) -> str:
        """The file and line of a row, or its number."""
        raise NotImplementedError

    def folder(self, row: int) -> Path:
        return Path()

    def content(self) -> bytes:
        """Identifies the lines."""
        raise NotImplementedError

    def raw(self, row: int, line: Line) -> RawValue:
        """The input as its processor reads it."""
        if line.tag.modality == TEXT:
            text: RawValue = line.value
            return text
        value = MEDIA[line.tag.modality].column.convert(line.value, ())
        raw: RawValue = value.value if isinstance(value, MediaValue) else self.folder(row) / str(value)
        return raw

    def _inspect(self, row: int, line: Line, data: MultitaskData) -> tuple[str, float]:
        """The problem of a line's file or "", and the length of a recording."""
        if (modality := line.tag.modality) == TEXT:
            return "", 0.0
        place = self.place(row)
        try:
            raw = self.raw(row, line)
        except ValueError as error:
            return f"{place}: no {modality} but {error}; give the path of a file", 0.0
        if isinstance(raw, Path):
            if not raw.is_file():
                return f"{place}: there is no {modality} file {raw}; correct the path or the line", 0.0
            self._sizes.update(b"%d " % raw.stat().st_size)
        problem, seconds = MEDIA[modality].inspect(raw, data)
        return f"{place}: {problem}" if problem else "", seconds

    def __len__(self) -> int:
        return len(self.rows)

    def item(self, index: int) -> tuple[SourceTag, RawValue, str]:
        row = int(self.rows[index])
        line = self.line(row)
        return line.tag, self.raw(row, line), line.target

    def field(self, index: int, field: int) -> SourceTag | RawValue:
        if field == 0:
            return self.tags[index]
        row = int(self.rows[index])
        line = self.line(row)
        if field == 2:
            return line.target
        return self.raw(row, line)

    def location(self, index: int) -> str:
        return self.place(int(self.rows[index]))

    def fingerprint(self) -> str:
        return hashlib.blake2b(self.content() + self._sizes.digest(), digest_size=16).hexdigest()

    def report(self) -> list[str]:
        facts = []
        if count := self.counts["unreadable"]:
            facts.append(f"{count:,} files left out because they cannot be read; the first: {self.problem}")
        if count := self.counts["long"]:
            facts.append(f"{count:,} recordings left out because they are longer than {self.most_seconds:g} seconds")
        return facts + Source.report(self)

    def notes(self, indices: Sequence[int] | np.ndarray) -> list[str]:
        media = {name: [index for index in indices if self.tags[index].modality == name] for name in MEDIA}
        return [note for name, own in media.items() for note in self.empty_notes(MEDIA[name], own, 1)]


class ManifestFile(ManifestSource):
    """The lines of JSONL files, which stay on disk."""

    def __init__(self, pattern: str, data: MultitaskData) -> None:
        self.lines = TextLines([pattern], data.invalid, _check_line, check_name="multitask manifest")
        statuses = self.lines.statuses()
        super().__init__(self.lines.name, data, np.flatnonzero(statuses == VALID))
        self.counts |= {"invalid": int((statuses == INVALID).sum()), **self.lines.counts}

    def line(self, row: int) -> Line:
        return parse_line(parse_object(self.lines[row], EXAMPLE))

    def place(self, row: int) -> str:
        return self.lines.location(row)

    def folder(self, row: int) -> Path:
        return self.lines.path(self.lines.locate(row)[0]).parent

    def content(self) -> bytes:
        return self.lines.digest()


class ManifestRecords(ManifestSource):
    """Records that a program hands over."""

    def __init__(self, name: str, records: Sequence[Any], data: MultitaskData) -> None:
        self.records = records
        whole = []
        for number, record in enumerate(records):
            try:
                if not isinstance(record, Mapping):
                    raise ValueError(f"a {type(record).__name__}; expected a dict such as {EXAMPLE}")
                parse_line(record)
                whole.append(number)
            except ValueError as error:
                if data.invalid != "skip":
                    raise UserError(f"{name}, record {number + 1}: {error}, {SKIP_HINT}") from error
        super().__init__(name, data, whole)
        self.counts["invalid"] = len(records) - len(whole)

    def line(self, row: int) -> Line:
        return parse_line(self.records[row])

    def place(self, row: int) -> str:
        return f"{self.name}, record {row + 1}"

    def content(self) -> bytes:
        parts = [f"{line.tag} {line.value!r:.200} {line.target}" for line in map(self.line, self.rows.tolist())]
        return "\n".join(parts).encode("utf-8", "surrogateescape")


def open_manifests(files: Sequence[Sequence[str]], data: MultitaskData) -> Source:
    """The examples of all manifests, one after the other."""
    return concatenate([_open(pattern, data) for group in files for pattern in group])


def _open(pattern: str, data: MultitaskData) -> Source:
    if isinstance(pattern, InMemory):
        if not isinstance(pattern.data, list | tuple):
            raise UserError(f"the data are {pattern}; expected a list of dicts such as {EXAMPLE}, or a .jsonl file")
        return ManifestRecords(pattern, pattern.data, data)
    if plain_suffix(pattern) not in SUFFIXES:
        raise UserError(f"{pattern} is no manifest; expected a .jsonl file with lines such as {EXAMPLE}")
    return ManifestFile(pattern, data)


def _check_line(file: int, line: int, text: str) -> int:
    """The status of a line; blank lines are left out."""
    if not text.strip():
        return BLANK
    parse_line(parse_object(text, EXAMPLE))
    return VALID


# --- items of prediction ---------------------------------------------------------------------------------------------


def is_media_name(name: str) -> bool:
    """True if the suffix is that of an image or a recording."""
    return modality_of_name(name) is not None


def modality_of_name(name: str) -> str | None:
    """The modality of a file by its suffix; None: neither an image nor a recording."""
    return next((modality for modality, medium in MEDIA.items() if medium.is_name(name)), None)


def manifest_items(name: str) -> Iterator[tuple[str, JsonObject]]:
    """The inputs in a manifest, each with its place; targets are not needed."""
    lines = TextLines([name])
    folder = Path(name).expanduser().parent
    for number, text in enumerate(lines):
        if not text.strip():
            continue
        try:
            record = parse_object(text, EXAMPLE)
            line = parse_line(record, required=False)
        except ValueError as error:
            raise UserError(f"{lines.location(number)}: {error}") from error
        value = line.value if line.tag.modality == TEXT else folder / str(line.value)
        yield lines.location(number), {line.tag.modality: value, "task": record.get("task")}
