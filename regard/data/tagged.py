"""Sentences whose words have tags: CoNLL-U, columns as in CoNLL-2003, JSONL; read for training, and written again."""

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from sys import intern
from typing import Any, NamedTuple

from ..config.merge import one_of
from ..config.schema import TagData
from ..errors import UserError
from .examples import Examples
from .labeled import LabelSet, in_order
from .readers import BLANK, FINE, TextLines, named_kind, wrong

CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
DOCUMENT = "-DOCSTART-"


class Word(NamedTuple):
    text: str
    tag: str


class TagFormat(ABC):
    """How sentences stand in a file. A ValueError of `word` or `words` says what is wrong with a line."""

    name: str
    lined = True  # a word a line and a blank line behind each sentence; else a sentence a line

    @abstractmethod
    def words(self, lines: Sequence[str], tagged: bool) -> dict[int, Word]:
        """The words of one sentence by the number of their line, or, where it is on one line, of the word."""

    @abstractmethod
    def written(self, lines: Sequence[str], tags: Sequence[str]) -> str:
        """The sentence again, with these tags."""

    def blocks(self, lines: Iterable[str]) -> Iterator[str]:
        """The sentences of a stream, each as the text that `words` and `written` take when it is cut into lines; where
        a blank line follows a sentence, that is its last one."""
        if not self.lined:
            yield from (SentenceBlock(line, self, number) for number, line in enumerate(lines, 1))
            return
        block: list[str] = []
        for number, line in enumerate(chain(lines, [""]), 1):
            if line.strip():
                block.append(line)
            elif block:
                yield SentenceBlock("\n".join([*block, ""]), self, number - len(block))
                block = []


class SentenceBlock(str):
    """A sentence of a stream, which knows how the whole is written and at which line it begins."""

    written_as: TagFormat
    line: int

    def __new__(cls, text: str, written_as: TagFormat, line: int) -> "SentenceBlock":
        block = super().__new__(cls, text)
        block.written_as, block.line = written_as, line
        return block


class WordPerLine(TagFormat):
    """A word a line."""

    @abstractmethod
    def word(self, line: str, tagged: bool) -> Word | None:
        """The word of a line, None where it is none, such as a comment."""

    @abstractmethod
    def line(self, line: str, tag: str) -> str: ...

    def words(self, lines: Sequence[str], tagged: bool) -> dict[int, Word]:
        found = ((number, self.word(line, tagged)) for number, line in enumerate(lines) if line.strip())
        return {number: word for number, word in found if word}

    def written(self, lines: Sequence[str], tags: Sequence[str]) -> str:
        new = dict(zip(self.words(lines, tagged=False), tags, strict=True))
        return "\n".join(self.line(line, new[number]) if number in new else line for number, line in enumerate(lines))


class Conllu(WordPerLine):
    """Universal Dependencies. Comments, ranges (3-4) and empty nodes (8.1) are no words; they stay where they are."""

    name = "conllu"

    def __init__(self, column: str) -> None:
        column = column or "upos"
        if column.isdecimal() and 1 <= int(column) <= len(CONLLU):
            column = CONLLU[int(column) - 1]
        if column not in CONLLU:
            raise UserError(f"data.column is {column!r}; {one_of(column, list(CONLLU))}, or its number from 1")
        self.column = CONLLU.index(column)

    def word(self, line: str, tagged: bool) -> Word | None:
        if line.startswith("#"):
            return None
        cells = line.split("\t")
        if len(cells) != len(CONLLU):
            raise ValueError(f"{len(cells)} columns; a line of CoNLL-U has {len(CONLLU)} with tabs between")
        if re.fullmatch(r"\d+[-.]\d+", cells[0]):
            return None
        if not cells[0].isdecimal():
            raise ValueError(f"the id is {cells[0]!r}; expected a number, a range such as 3-4 or a decimal such as 8.1")
        return checked(cells[1], cells[self.column])

    def line(self, line: str, tag: str) -> str:
        cells = line.split("\t")
        return "\t".join([*cells[: self.column], tag, *cells[self.column + 1 :]])


class Columns(WordPerLine):
    """The word in the first column, the tag in the last or in the one that is named; tabs or spaces between."""

    name = "columns"

    def __init__(self, column: str) -> None:
        if column and not (column.isdecimal() and int(column) > 1):
            raise UserError(
                f"data.column is {column!r} and these columns have no names; give a number from 2, column 1 is the word"
            )
        self.column = int(column) - 1 if column else None
        self.width = 0  # of the lines read so far

    def word(self, line: str, tagged: bool) -> Word | None:
        cells = cut(line)
        if cells[0] == DOCUMENT:
            return None
        if self.width and len(cells) != self.width:
            raise ValueError(f"{len(cells)} columns, and the lines before have {self.width}")
        if not tagged:
            self.width = len(cells)
            return checked(cells[0], "_")
        column = len(cells) - 1 if self.column is None else self.column
        if column == 0:
            raise ValueError("one column; expected a word and its tag with a tab or a space between")
        if column >= len(cells):
            raise ValueError(f"{len(cells)} columns, and column {column + 1} is needed (data.column)")
        self.width = len(cells)
        return checked(cells[0], cells[column])

    def line(self, line: str, tag: str) -> str:
        cells, joint = cut(line), "\t" if "\t" in line else " "
        column = max(len(cells) - 1, 1) if self.column is None else self.column
        return joint.join([*cells[:column], tag, *cells[column + 1 :]])


class Records(TagFormat):
    """A JSON object a line, with the words under `tokens` or `words` and the tags under `tags`."""

    name, lined = "jsonl", False

    def __init__(self, column: str) -> None:
        self.column = column or "tags"

    def words(self, lines: Sequence[str], tagged: bool) -> dict[int, Word]:
        record = self.record(lines[0])
        words: Any = record.get("tokens", record.get("words"))
        if not _listed(words):
            raise ValueError(f"no list of texts under 'tokens'; there is {', '.join(map(str, record)) or 'nothing'}")
        tags: Any = record.get(self.column) if tagged else ["_"] * len(words)
        if not _listed(tags):
            raise ValueError(f"no list of texts under {self.column!r}; there is {', '.join(record)} (data.column)")
        if len(tags) != len(words):
            raise ValueError(f"{len(words)} tokens and {len(tags)} tags; each token needs its tag")
        return {number: checked(*each) for number, each in enumerate(zip(words, tags, strict=True))}

    def written(self, lines: Sequence[str], tags: Sequence[str]) -> str:
        return json.dumps(self.record(lines[0]) | {self.column: list(tags)}, ensure_ascii=False)

    def record(self, line: str) -> dict[str, Any]:
        try:
            record = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"not one JSON object on one line ({error})") from error
        if not isinstance(record, dict):
            raise ValueError('not a JSON object such as {"tokens": …, "tags": …}')
        return record


class PlainText(TagFormat):
    """A sentence a line, its words between spaces; each gets its tag behind a slash. To be read only."""

    name, lined = "text", False

    def words(self, lines: Sequence[str], tagged: bool) -> dict[int, Word]:
        return {number: Word(word, "_") for number, word in enumerate(lines[0].split())}

    def written(self, lines: Sequence[str], tags: Sequence[str]) -> str:
        return " ".join(f"{word}/{tag}" for word, tag in zip(lines[0].split(), tags, strict=True))


FORMATS: dict[str, Any] = {"conllu": Conllu, "columns": Columns, "jsonl": Records}


def checked(word: str, tag: str) -> Word:
    if not word.strip() or not tag.strip():
        raise ValueError(f"the {'tag' if word.strip() else 'word'} is empty")
    if wrong(f"{word} {tag}".encode("utf-8", "surrogatepass")):
        raise ValueError("a word or tag with a NUL or half a surrogate pair")
    return Word(word, tag)


def cut(line: str) -> list[str]:
    return line.split("\t") if "\t" in line else line.split()


def _listed(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def beginning(lines: Iterator[str]) -> list[str]:
    """The lines up to the first that is neither blank nor looks like a comment: what `format_of` needs to see."""
    head: list[str] = []
    for line in lines:
        head.append(line)
        if line.strip() and not line.startswith("#"):
            break
    return head


def format_of(head: Sequence[str], data: TagData) -> TagFormat:
    """How a stream that begins so is to be read: as data.format says, else by what it looks like. A line with # is a
    comment only before a line of CoNLL-U, for texts begin with one, too."""
    if data.format != "auto":
        return PlainText() if data.format == "text" else FORMATS[data.format](data.column)
    trained, line = _named(data.train) if data.train else "text", head[-1]
    looks = "columns" if trained == "columns" or "\t" in line else "text"
    commented = trained != "columns" and any(map(str.strip, head[:-1]))
    if line.count("\t") == len(CONLLU) - 1 or (commented and re.match(r"\d+([-.]\d+)?\t", line)):
        looks = "conllu"
    elif line.lstrip().startswith("{"):
        looks = "jsonl"
    return FORMATS[looks](data.column if trained == looks else "") if looks in FORMATS else PlainText()


def _named(sides: Sequence[Sequence[str]]) -> str:
    return named_kind(sides[0][0], {".conllu": "conllu", ".jsonl": "jsonl", ".json": "jsonl"}, "columns")


def tagged_sentences(sides: Sequence[Sequence[str]], data: TagData) -> "TaggedSentences":
    """The sentences in these files."""
    if len(sides) != 1:
        raise UserError(
            f"words and tags stand in one file, and {len(sides)} were given with a comma between; "
            "join several files by a glob or a TOML list"
        )
    name = _named(sides) if data.format == "auto" else data.format
    if name == "text":
        raise UserError("data.format=text has no tags to learn or to measure by; expected conllu, columns or jsonl")
    return TaggedSentences(sides[0], data, FORMATS[name](data.column))


class TaggedSentences(Examples):
    """Each example has two sides: the words, and their tags. They are held in memory."""

    def __init__(self, patterns: Sequence[str], data: TagData, format: TagFormat) -> None:
        self.format = format
        self.counts = Counter[str]()
        self.examples: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
        self.places: list[tuple[int, int]] = []  # file, and the line a sentence begins at
        self._place: tuple[int, int] | None = None  # of the sentence that is being read
        self._words, self._spoilt = list[Word](), False
        self.lines = TextLines(patterns, data.invalid, self._take, self._skip)
        self._end()
        self.name = self.lines.name
        self.counts.update(self.lines.counts)
        self.counts["examples"] = len(self.examples)

    def _take(self, file: int, line: int, text: str) -> int:
        """A line of the scan."""
        if not text.strip() or not self.format.lined:
            self._end()
        if not text.strip():
            return BLANK
        self._begin(file, line)
        self._words += self.format.words([text], tagged=True).values()
        return FINE

    def _skip(self, file: int, line: int) -> None:
        """A line that is left out: its sentence is, too."""
        self._begin(file, line)
        self._spoilt = True

    def _begin(self, file: int, line: int) -> None:
        if self._place and self._place[0] != file:
            self._end()
        self._place = self._place or (file, line)

    def _end(self) -> None:
        if self._spoilt:
            self.counts["invalid"] += 1
        elif self._words and self._place:
            words, tags = zip(*self._words, strict=True)
            self.examples.append((tuple(map(intern, words)), tuple(map(intern, tags))))
            self.places.append(self._place)
        self._place, self._words, self._spoilt = None, [], False

    def __len__(self) -> int:
        return len(self.examples)

    def item(self, index: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return self.examples[index]

    def text(self, index: int, side: int) -> str:
        return " ".join(self.examples[index][side])

    def location(self, index: int) -> str:
        file, line = self.places[index]
        return f"{self.lines.path(file)}:{line}"

    def fingerprint(self) -> str:
        parts = [self.format.name.encode(), self.lines.digest()]
        return hashlib.blake2b(b"\0".join(parts), digest_size=16).hexdigest()


def collect_tags(sentences: Examples) -> LabelSet:
    """The tags of training sentences."""
    counts = Counter(tag for i in range(len(sentences)) for tag in sentences[i][1])
    if len(counts) == 1:
        raise UserError(
            f"data.train: every tag of {sentences.name} is {next(iter(counts))!r}, and at least two are needed; "
            "choose the column that holds the tags (data.column)"
        )
    return in_order(counts)
