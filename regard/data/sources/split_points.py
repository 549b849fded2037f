"""Split points of running text, between which the parts encode to the same tokens as the whole, and an encoder.

Byte-level tokenizers first split text into words, from left to right and without lookbehind. They always split between
a non-space and a space, and between ASCII letters or digits and ASCII punctuation. Parts that begin there can be
encoded alone, so a repeated word is only looked up.
"""

import json
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from ...processors.text.tokenizers import Tokenizer

MAX_UNSPLIT = 1 << 20  # characters without a split point after which a text is split anyway
CACHED_WORDS = 1 << 17  # words, or
CACHED_CHARACTERS = 1 << 22  # characters of words, in each of two generations of the cache
TAIL = 1 << 10  # characters at the end of a text that are searched first

SPACES = " \t\n\r"  # all agree on these; on others, such as \x1c and NBSP, Python and the tokenizers differ
PUNCTUATION = r"!-/:-@\[-`{-~"
SOLID = r"!-&(-/:-@\[-`{-~"  # without the apostrophe, which belongs to the letters after it in 's and 'll
LONG = rf"(?:\S++|[^\S{SPACES}][{SPACES}]*+)++"  # up to the next of SPACES; other spaces do not end it
SHORT = rf"[A-Za-z0-9]++(?=[{PUNCTUATION}{SPACES}]|\Z)|[{PUNCTUATION}]*[{SOLID}](?=[A-Za-z0-9])"
WORDS = re.compile(rf"[{SPACES}]*+(?:{LONG})|[{SPACES}]++")
WORD_PARTS = re.compile(rf"[{SPACES}]*+(?:{SHORT}|{LONG})|[{SPACES}]++")
SPLIT_POINT = re.compile(rf"(?<=\S)(?=[{SPACES}])")
FALLBACK_POINT = re.compile(
    rf"(?<=[A-Za-z0-9])(?=[{PUNCTUATION}])|(?<=[{SOLID}])(?=[A-Za-z0-9])|(?<=[。！？，、；：])(?=[^\W\d_])"
)  # in a text without any space


class TextPart(NamedTuple):
    """A document, or the part of one that is encoded together."""

    text: str
    inner: bool  # it continues the part before
    last: bool  # the document ends with it


@dataclass(frozen=True)
class SplitRules:
    """How texts may be split for one tokenizer."""

    words: re.Pattern[str]  # matches what can be encoded alone
    fallback: re.Pattern[str] | None = None  # split points for a text without any other; None: anywhere
    adds_space: bool = False  # the tokenizer puts a space before every text; an inner part must not have it
    symbols: re.Pattern[str] | None = None  # symbols are split off before anything else, and may contain spaces

    def last_split(self, text: str) -> int:
        """The last split point; 0 if there is none and the text is below MAX_UNSPLIT characters."""
        point = self._last_match(SPLIT_POINT, text)
        if not point and len(text) >= MAX_UNSPLIT:
            point = (self.fallback and self._last_match(self.fallback, text)) or len(text) - 1
        return point

    def _last_match(self, pattern: re.Pattern[str], text: str) -> int:
        size = TAIL
        while True:
            first = max(len(text) - size, 0)
            points = [match.start() for match in pattern.finditer(text, first)]
            points = points[1:] if points[:1] == [0] else points
            if self.symbols:
                spans = [match.span() for match in self.symbols.finditer(text, max(first - TAIL, 0))]
                points = [point for point in points if not any(a <= point <= b for a, b in spans)]
            if points or not first:
                return points[-1] if points else 0
            size *= 16


WHITESPACE_RULES = SplitRules(WORDS)  # for texts that are not encoded yet


def split_rules(tokenizer: Tokenizer) -> SplitRules | None:
    """The split rules of a tokenizer; None if it is unknown: its documents are then encoded whole."""
    backend = getattr(tokenizer, "backend", None)
    if backend is None:
        return None
    rules = json.loads(backend.to_str())
    normalizers, pre_tokenizer = _steps(rules["normalizer"], "normalizers"), rules["pre_tokenizer"]
    model = rules["model"]
    added = [token for token in rules["added_tokens"] if not (token["special"] and backend.encode_special_tokens)]
    if any(token["lstrip"] or token["rstrip"] or token["single_word"] for token in added):
        return None
    if not {step["type"] for step in normalizers} <= {"NFC", "NFKC", "Lowercase", "Prepend"} or model.get("dropout"):
        return None
    names = sorted((token["content"] for token in added), key=len, reverse=True)
    symbols = re.compile("|".join(map(re.escape, names))) if names else None
    adds_space = any(step["type"] == "Prepend" for step in normalizers)
    steps = [step["type"] for step in _steps(pre_tokenizer, "pretokenizers")]
    if steps == ["ByteLevel"] and not pre_tokenizer["add_prefix_space"] and pre_tokenizer["use_regex"]:
        words = WORDS if adds_space else WORD_PARTS  # the added space must not stand before half a word
        return SplitRules(words, FALLBACK_POINT, adds_space, symbols)
    bytes_only = steps == ["ByteLevel"] and not pre_tokenizer["add_prefix_space"] and model.get("merges") == []
    if bytes_only or steps == ["Split"] and pre_tokenizer["pattern"] == {"Regex": r"[\s\S]"}:
        return SplitRules(WORDS, None, adds_space, symbols)
    if steps == ["WhitespaceSplit", "ByteLevel"]:
        return SplitRules(WORDS, None, adds_space, symbols)
    return None


def _steps(rule: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    if rule is None:
        return []
    return rule[key] if rule["type"] == "Sequence" else [rule]


class CachedEncoder:
    """Encodes texts exactly as the tokenizer does, with a cache of words. Threads may share one.

    Token ids are returned as bytes of the array type `typecode`.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self.rules = tokenizer, split_rules(tokenizer)
        self.typecode = "H" if tokenizer.size <= 1 << 16 else "I"
        self._recent: dict[str, bytes] = {}
        self._older: dict[str, bytes] = {}
        self._characters = 0  # of the recent words

    def encode(self, parts: Sequence[TextPart]) -> list[bytes]:
        """The token ids of each part, without END."""
        if self.rules is None:
            return self._encode_texts([part.text for part in parts])
        find, symbols = self.rules.words.findall, self.rules.symbols
        whole = [bool(symbols and symbols.search(part.text)) for part in parts]  # parts with symbols bypass the cache
        split = [[] if bypass else find(self._add_space(part)) for part, bypass in zip(parts, whole, strict=True)]
        if len(self._recent) > CACHED_WORDS or self._characters > CACHED_CHARACTERS:  # drop the older generation
            self._recent, self._older, self._characters = {}, self._recent, 0
        recent, older = self._recent, self._older  # other threads may replace both, and add words to these
        new = {word: older.get(word) for word in set(chain.from_iterable(split)) if word not in recent}
        self._characters += sum(map(len, new))
        unseen = [word for word, row in new.items() if row is None]
        new.update(zip(unseen, self._encode_inner(unseen), strict=True))
        recent.update((word, row) for word, row in new.items() if row is not None)
        rows = [b"".join(map(recent.__getitem__, words)) for words in split]
        for number, part in enumerate(parts):
            if whole[number]:
                (rows[number],) = self._encode_inner([part.text]) if part.inner else self._encode_texts([part.text])
        return rows

    def _encode_texts(self, texts: list[str]) -> list[bytes]:
        return [array(self.typecode, row).tobytes() for row in self.tokenizer.encode(texts)]

    def _encode_inner(self, texts: list[str]) -> list[bytes]:
        """Encode texts that begin at a split point. A leading "x" takes the tokenizer's space; its token is dropped."""
        assert self.rules
        if not self.rules.adds_space:
            return self._encode_texts(texts)
        rows = self.tokenizer.encode(["x" + text for text in texts])
        return [array(self.typecode, row[1:]).tobytes() for row in rows]

    def _add_space(self, part: TextPart) -> str:
        """The text with the space that the tokenizer would put before it if it stood alone."""
        assert self.rules
        continued = part.inner and part.text[:1] in SPACES
        return part.text if continued or not part.text or not self.rules.adds_space else " " + part.text
