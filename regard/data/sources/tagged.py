"""Sentences whose words have tags: CoNLL-U, columns as in CoNLL-2003, JSONL; read for training, written by predict."""

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from sys import intern
from typing import NamedTuple, TypeGuard

from ...config.data.texts import TagData
from ...config.merge import one_of
from ...errors import UserError
from ...processors.text.words import Offset, split_words
from ..files.line_index import BLANK, VALID
from ..files.lines import TextLines
from ..files.open import plain_suffix, text_error
from ..source import Source
from ..tables.columns import TAGS, WORDS, ColumnRule
from ..tables.open import file_format, open_table
from ..tables.records import TableSource, parse_object

CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
DOCUMENT = "-DOCSTART-"
WORD_NAMES = {"token", "tokens", "word", "words"}  # of columns
TAG_NAMES = {"tag", "tags", "label", "labels", "ner", "ner_tag", "ner_tags", "pos_tag", "pos_tags"}


class Word(NamedTuple):
    """A word with its tag."""

    text: str
    tag: str


class TagFormat(ABC):
    """How sentences are written in a file. A ValueError of `word` or `words` says what is wrong with a line."""

    name: str
    word_per_line = True  # one word per line and a blank line after each sentence; else one sentence per line

    @abstractmethod
    def words(self, lines: Sequence[str], tagged: bool) -> dict[int, Word]:
        """The words of one sentence by line number, or by word number if the sentence is on one line."""

    @abstractmethod
    def with_tags(self, lines: Sequence[str], tags: Sequence[str]) -> str:
        """The same sentence with these tags."""

    def offsets(self, lines: Sequence[str]) -> list[Offset]:
        """The characters of every word in a plain text; none in other formats."""
        return []

    def blocks(self, lines: Iterable[str]) -> Iterator[str]:
        """The sentences of a stream. Split into lines, each is the input of `words` and `with_tags`.

        If a blank line ends a sentence, it is the last line of its block.
        """
        if not self.word_per_line:
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
    """The text of a sentence in a stream, with the format of the stream and the line where it begins."""

    tag_format: TagFormat
    line: int

    def __new__(cls, text: str, tag_format: TagFormat, line: int) -> "SentenceBlock":
        block = super().__new__(cls, text)
        block.tag_format, block.line = tag_format, line
        return block


class WordPerLine(TagFormat):
    """Formats with one word per line."""

    @abstractmethod
    def word(self, line: str, tagged: bool) -> Word | None:
        """The word of a line; None if it holds none, such as a comment."""

    @abstractmethod
    def line(self, line: str, tag: str) -> str:
        """The line with another tag."""

    def words(self, lines: Sequence[str], tagged: bool) -> dict[int, Word]:
        words = ((number, self.word(line, tagged)) for number, line in enumerate(lines) if line.strip())
        return {number: word for number, word in words if word}

    def with_tags(self, lines: Sequence[str], tags: Sequence[str]) -> str:
        new = dict(zip(self.words(lines, tagged=False), tags, strict=True))
        return "\n".join(self.line(line, new[number]) if number in new else line for number, line in enumerate(lines))


class Conllu(WordPerLine):
    """Universal Dependencies. Comments, ranges (3-4) and empty nodes (8.1) are not words; they are kept as they are."""

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
            raise ValueError(f"{len(cells)} columns; a line of CoNLL-U has {len(CONLLU)}, separated by tabs")
        if re.fullmatch(r"\d+[-.]\d+", cells[0]):
            return None
        if not cells[0].isdecimal():
            raise ValueError(f"the id is {cells[0]!r}; expected a number, a range such as 3-4 or a decimal such as 8.1")
        return checked_word(cells[1], cells[self.column])

    def line(self, line: str, tag: str) -> str:
        cells = line.split("\t")
        return "\t".join([*cells[: self.column], tag, *cells[self.column + 1 :]])


class Columns(WordPerLine):
    """The word in the first column, the tag in the last or in data.column; separated by tabs or spaces."""

    name = "columns"

    def __init__(self, column: str) -> None:
        if column and not (column.isdecimal() and int(column) > 1):
            raise UserError(
                f"data.column is {column!r} and these columns have no names; give a number from 2, column 1 is the word"
            )
        self.column = int(column) - 1 if column else None
        self.width = 0  # columns of the lines so far

    def word(self, line: str, tagged: bool) -> Word | None:
        cells = split_columns(line)
        if cells[0] == DOCUMENT or is_header(cells, self.column):
            return None
        if self.width and len(cells) != self.width:
            raise ValueError(f"{len(cells)} columns, and the lines before have {self.width}")
        if not tagged:
            self.width = len(cells)
            return checked_word(cells[0], "_")
        column = len(cells) - 1 if self.column is None else self.column
        if column == 0:
            raise ValueError("one column; expected a word and its tag, separated by a tab or a space")
        if column >= len(cells):
            raise ValueError(f"{len(cells)} columns, expected at least {column + 1} (data.column)")
        self.width = len(cells)
        return checked_word(cells[0], cells[column])

    def line(self, line: str, tag: str) -> str:
        cells, separator = split_columns(line), "\t" if "\t" in line else " "
        column = max(len(cells) - 1, 1) if self.column is None else self.column
        return separator.join([*cells[:column], tag, *cells[column + 1 :]])


class Records(TagFormat):
    """A JSON object per line, with the words under `tokens` or `words`; the tags are written under `tags`.

    For prediction only: the readers of tables read records for training.
    """

    name, word_per_line = "jsonl", False

    def __init__(self, column: str) -> None:
        self.column = column or "tags"

    def words(self, lines: Sequence[str], tagged: bool) -> dict[int, Word]:
        record = self.record(lines[0])
        words = record.get("tokens", record.get("words"))
        if not _is_text_list(words):
            raise ValueError(f"no list of texts under 'tokens'; there is {', '.join(map(str, record)) or 'nothing'}")
        return {number: checked_word(word, "_") for number, word in enumerate(words)}

    def with_tags(self, lines: Sequence[str], tags: Sequence[str]) -> str:
        return json.dumps(self.record(lines[0]) | {self.column: list(tags)}, ensure_ascii=False)

    def record(self, line: str) -> dict[str, object]:
        return parse_object(line, '{"tokens": …, "tags": …}')


class PlainText(TagFormat):
    """A sentence per line; its words are written as word/TAG. It holds no tags to train on."""

    name, word_per_line = "text", False

    def words(self, lines: Sequence[str], tagged: bool) -> dict[int, Word]:
        return {number: Word(lines[0][slice(*span)], "_") for number, span in enumerate(self.offsets(lines))}

    def with_tags(self, lines: Sequence[str], tags: Sequence[str]) -> str:
        words = self.words(lines, tagged=False).values()
        return " ".join(f"{word.text}/{tag}" for word, tag in zip(words, tags, strict=True))

    def offsets(self, lines: Sequence[str]) -> list[Offset]:
        return split_words(lines[0])


FORMATS: dict[str, Callable[[str], TagFormat]] = {"conllu": Conllu, "columns": Columns, "jsonl": Records}


def checked_word(word: str, tag: str) -> Word:
    """The word; a ValueError if it or its tag is empty or not valid text."""
    if not word.strip() or not tag.strip():
        raise ValueError(f"the {'tag' if word.strip() else 'word'} is empty")
    if text_error(f"{word} {tag}".encode("utf-8", "surrogatepass")):
        raise ValueError("a word or tag with a NUL or half a surrogate pair")
    return Word(word, tag)


def is_header(cells: Sequence[str], column: int | None) -> bool:
    """True for a line that names the columns of words and tags, such as token and tag."""
    last = len(cells) - 1 if column is None else column
    return cells[0].lower() in WORD_NAMES and 0 < last < len(cells) and cells[last].lower() in TAG_NAMES


def split_columns(line: str) -> list[str]:
    """The columns of a line."""
    return line.split("\t") if "\t" in line else line.split()


def _is_text_list(values: object) -> TypeGuard[list[str]]:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def read_first_lines(lines: Iterator[str], data: TagData) -> list[str]:
    """The first lines, for `detect_format`: to one that is neither blank nor a comment; to two that may be columns."""
    head: list[str] = []
    rows = 0
    for line in lines:
        head.append(line)
        if line.strip() and not line.startswith("#"):
            rows += 1
            if rows == 2 or data.format != "auto" or not _columns_of(line, data) or split_columns(line)[0] == DOCUMENT:
                break
    return head


def detect_format(head: Sequence[str], data: TagData) -> TagFormat:
    """The format of a stream that begins with these lines: data.format, or a guess.

    A line with # counts as a comment only before a line of CoNLL-U, because plain text may begin with one, too. Plain
    text may have as many words as a line of columns, so only a second line like the first shows that they are columns.
    """
    if data.format != "auto":
        return PlainText() if data.format == "text" else FORMATS[data.format](data.column)
    trained = _format_of_files(data.train) if data.train else "text"
    rows = [line for line in head if line.strip()] or [""]
    line = next((row for row in rows if not row.startswith("#")), rows[-1])
    counts = [_columns_of(row, data) for row in rows]
    columns = counts[0] > 0 and len({*counts}) == 1 and len(rows) > 1
    guess = "columns" if columns or split_columns(line)[:1] == [DOCUMENT] else "text"
    commented = trained != "columns" and rows[0] != line
    if line.count("\t") == len(CONLLU) - 1 or (commented and re.match(r"\d+([-.]\d+)?\t", line)):
        guess = "conllu"
    elif line.lstrip().startswith("{"):
        guess = "jsonl"
    return FORMATS[guess](data.column if trained == guess else "") if guess in FORMATS else PlainText()


def _columns_of(line: str, data: TagData) -> int:
    """The number of columns of a line; 0 if it is no line of columns as in the training data, or between tabs."""
    count = len(split_columns(line))
    if data.train and _format_of_files(data.train) == "columns":
        return count if count in (data.column_count or count, 1) else 0  # of words alone: 1
    return count if "\t" in line else 0


def _format_of_files(files: Sequence[Sequence[str]]) -> str:
    format = file_format(files[0][0], "auto", "conllu" if plain_suffix(files[0][0]) == ".conllu" else "columns")
    return "columns" if format in ("tsv", "csv") else format


def tagged_sentences(files: Sequence[Sequence[str]], data: TagData) -> Source:
    """The sentences in these files."""
    if len(files) != 1:
        raise UserError(
            f"words and tags are in one file, but {len(files)} were given, separated by commas; "
            "join several files by a glob or a TOML list"
        )
    name = _format_of_files(files) if data.format == "auto" else data.format
    if name == "text":
        raise UserError("data.format=text has no tags for training or evaluation; use conllu, columns or jsonl")
    if name in ("conllu", "columns"):
        return TaggedSentences(files[0], data, FORMATS[name](data.column))
    return TableSource(open_table(files[0], tag_columns(data), data.format, data.invalid))


def column_count(sentences: Source) -> int:
    """The columns of every line of the file; 0 if its format is another."""
    source = sentences.origin(0)[0] if len(sentences) else sentences
    return source.format.width if isinstance(source, TaggedSentences) and isinstance(source.format, Columns) else 0


def tag_columns(data: TagData, required: int = 0) -> ColumnRule:
    """The rule for the columns of tables: the words by known names, the tags in data.column or by known names."""
    columns = ("", data.column) if data.column else ()
    return ColumnRule((WORDS, TAGS), columns, names=data.names, required=required, key="data.column")


class TaggedSentences(Source):
    """Sentences held in memory. Each example has two fields: the words, and their tags."""

    def __init__(self, patterns: Sequence[str], data: TagData, format: TagFormat) -> None:
        self.format = format
        self.counts = Counter[str]()
        self.examples: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
        self.starts: list[tuple[int, int]] = []  # the file and first line of each sentence
        self._start: tuple[int, int] | None = None  # of the sentence that is being read
        self._words, self._invalid = list[Word](), False
        self.lines = TextLines(patterns, data.invalid, self._add_line, self._skip_line)
        self._end_sentence()
        self.name = self.lines.name
        self.counts.update(self.lines.counts)
        self.counts["examples"] = len(self.examples)

    def _add_line(self, file: int, line: int, text: str) -> int:
        if not text.strip() or not self.format.word_per_line:
            self._end_sentence()
        if not text.strip():
            return BLANK
        self._begin_sentence(file, line)
        self._words += self.format.words([text], tagged=True).values()
        return VALID

    def _skip_line(self, file: int, line: int) -> None:
        """Leave out the sentence of an invalid line."""
        self._begin_sentence(file, line)
        self._invalid = True

    def _begin_sentence(self, file: int, line: int) -> None:
        if self._start and self._start[0] != file:
            self._end_sentence()
        self._start = self._start or (file, line)

    def _end_sentence(self) -> None:
        if self._invalid:
            self.counts["invalid"] += 1
        elif self._words and self._start:
            words, tags = zip(*self._words, strict=True)
            self.examples.append((tuple(map(intern, words)), tuple(map(intern, tags))))
            self.starts.append(self._start)
        self._start, self._words, self._invalid = None, [], False

    def __len__(self) -> int:
        return len(self.examples)

    def item(self, index: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return self.examples[index]

    def text(self, index: int, field: int) -> str:
        return " ".join(self.examples[index][field])

    def location(self, index: int) -> str:
        file, line = self.starts[index]
        return f"{self.lines.path(file)}:{line}"

    def fingerprint(self) -> str:
        parts = [self.format.name.encode(), self.lines.digest()]
        return hashlib.blake2b(b"\0".join(parts), digest_size=16).hexdigest()
