"""Sentences in requests: lists of words, or text in one of the formats of files."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple, TypeAlias

from ...config.data.texts import TagData
from ...data.sources.tagged import SentenceBlock, TagFormat, detect_format, read_first_lines
from ...errors import UserError
from ...messages.labels import TaggedSpan
from ...metrics.labels import tag_spans
from ...processors.text.words import Offset

Words: TypeAlias = Sequence[str]
Sentence: TypeAlias = str | Words


class ParsedSentence(NamedTuple):
    """The words of a sentence; its lines and their format, if it was given as text."""

    words: tuple[str, ...]
    lines: list[str]
    format: TagFormat | None

    def with_tags(self, tags: Sequence[str]) -> str | None:
        """The sentence with tags, in its own format; None for a list of words."""
        return None if self.format is None else self.format.with_tags(self.lines, tags)

    @property
    def offsets(self) -> tuple[Offset, ...]:
        """The characters of every word, if it was given as plain text."""
        return () if self.format is None else tuple(self.format.offsets(self.lines))

    def spans(self, tags: Sequence[str]) -> tuple[TaggedSpan, ...]:
        """The spans that the tags mark in a plain text."""
        offsets = self.offsets
        found = [(name, offsets[first][0], offsets[end - 1][1]) for first, end, name in tag_spans(tags) if offsets]
        return tuple([TaggedSpan(name, self.lines[0][start:end], start, end) for name, start, end in found])


def parse_sentence(sentence: Sentence, data: TagData) -> ParsedSentence:
    """The words of a sentence."""
    if not isinstance(sentence, str):
        return ParsedSentence(tuple(sentence), [], None)
    lines, name = sentence.split("\n"), "the sentence"
    if isinstance(sentence, SentenceBlock):
        format, name = sentence.tag_format, f"the sentence at line {sentence.line}"
    else:
        format = detect_format(read_first_lines(iter(lines), data), data)
    if len(lines) > 1 and not format.word_per_line:
        raise UserError(
            f"{name} has several lines and looks like {format.name}, where a sentence is one line; "
            "give each sentence on its own, or set the format (data.format)"
        )
    try:
        return ParsedSentence(tuple(word.text for word in format.words(lines, tagged=False).values()), lines, format)
    except ValueError as error:
        raise UserError(f"{name}, {_shorten(sentence)}: {error}") from error


def split_stream(lines: Iterable[str], data: TagData) -> Iterator[str]:
    """The sentences of a stream of lines; the first lines determine the format."""
    lines = iter(lines)
    if head := read_first_lines(lines, data):
        yield from detect_format(head, data).blocks(chain(head, lines))


def _shorten(text: str) -> str:
    line = text.replace("\n", " ⏎ ")
    return repr(line if len(line) <= 60 else f"{line[:57]}…")
