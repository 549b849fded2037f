"""Splits plain text into words with their characters, as tagged corpora do: punctuation around a word stands alone."""

import re

Offset = tuple[int, int]  # of the first character, and after the last

OPENING, CLOSING = "([{\"'“‘«¿¡„", ".,;:!?)]}\"'”’»…"
EDGES = re.compile(rf"([{re.escape(OPENING)}]*)(.*?)([{re.escape(CLOSING)}]*)", re.DOTALL)
RUN = re.compile(r"(.)\1*")  # of one character
MARKS = {*",.;:!?"}
TITLES = {"dr", "jr", "mr", "mrs", "ms", "prof", "sr", "st"}  # their period belongs to them


def split_words(text: str) -> list[Offset]:
    """The words of a text. Where a mark of punctuation already stands alone, only spaces separate words."""
    words = [match.span() for match in re.finditer(r"\S+", text)]
    if any(text[start:end] in MARKS for start, end in words):
        return words
    return [part for start, end in words for part in _split_edges(text[start:end], start)]


def _split_edges(word: str, start: int) -> list[Offset]:
    """A word without the punctuation around it, whose characters are words of their own; equal ones stay together."""
    match = EDGES.fullmatch(word)
    if match is None or not any(map(str.isalnum, match[2])):
        return [(start, start + len(word))]  # an ellipsis, a dash, a smiley
    first, last = match.span(2)
    if word[last : last + 1] == "." and _is_abbreviation(match[2]):
        last += 1
    before = [part.span() for part in RUN.finditer(word, 0, first)]
    after = [part.span() for part in RUN.finditer(word, last)]
    return [(start + a, start + b) for a, b in [*before, (first, last), *after]]


def _is_abbreviation(word: str) -> bool:
    return "." in word or word.lower() in TITLES or (len(word) == 1 and word.isupper())
