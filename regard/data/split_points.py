"""Where running text may be cut so that its parts give the same numbers as the whole, and encoding that uses it.

The byte-level tokenizers cut text into words before anything else, from left to right and without looking back. Between
a character that is no space and a space they always cut, and so they do between ASCII letters or digits and ASCII
punctuation. Parts that begin there can be encoded alone, so a word that comes again is only looked up.
"""

import json
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from ..processors.tokenizers import Tokenizer

LIMIT = 1 << 20  # characters without a seam after which a text is cut all the same
KNOWN = 1 << 17  # words, or
HELD = 1 << 22  # characters of words, that are remembered twice over
NEAR = 1 << 10  # characters from the end of a text that are looked at first

SPACES = " \t\n\r"  # for everybody; of others, such as \x1c and NBSP, Python and the tokenizers think differently
MARKS = r"!-/:-@\[-`{-~"
SOLID = r"!-&(-/:-@\[-`{-~"  # without the apostrophe, which belongs to the letters after it in 's and 'll
LONG = rf"(?:\S++|[^\S{SPACES}][{SPACES}]*+)++"  # up to the next of SPACES; over other ones it goes on
SHORT = rf"[A-Za-z0-9]++(?=[{MARKS}{SPACES}]|\Z)|[{MARKS}]*[{SOLID}](?=[A-Za-z0-9])"
WORDS = re.compile(rf"[{SPACES}]*+(?:{LONG})|[{SPACES}]++")
PIECES = re.compile(rf"[{SPACES}]*+(?:{SHORT}|{LONG})|[{SPACES}]++")
SEAM = re.compile(rf"(?<=\S)(?=[{SPACES}])")
SPARE = re.compile(
    rf"(?<=[A-Za-z0-9])(?=[{MARKS}])|(?<=[{SOLID}])(?=[A-Za-z0-9])|(?<=[。！？，、；：])(?=[^\W\d_])"
)  # in a text without any space


class TextPart(NamedTuple):
    """A document, or so much of one as is read together."""

    text: str
    inner: bool  # it goes on from the part before
    last: bool  # the document ends with it


@dataclass(frozen=True)
class SplitRules:
    """How a tokenizer lets its texts be cut."""

    words: re.Pattern[str]  # finds what can be encoded alone
    spare: re.Pattern[str] | None = None  # places for a text in which there is no seam; nothing: any place
    guard: bool = False  # does it put a space before every text, which an inner part must not have?
    symbols: re.Pattern[str] | None = None  # those are cut out before anything else, and can hold spaces

    def place(self, text: str) -> int:
        """The last seam; 0 if there is none and the text is not yet too long."""
        found = self._last(SEAM, text)
        if not found and len(text) >= LIMIT:
            found = (self.spare and self._last(self.spare, text)) or len(text) - 1
        return found

    def _last(self, pattern: re.Pattern[str], text: str) -> int:
        size = NEAR
        while True:
            first = max(len(text) - size, 0)
            places = [match.start() for match in pattern.finditer(text, first)]
            places = places[1:] if places[:1] == [0] else places
            if self.symbols:
                taken = [match.span() for match in self.symbols.finditer(text, max(first - NEAR, 0))]
                places = [place for place in places if not any(a <= place <= b for a, b in taken)]
            if places or not first:
                return places[-1] if places else 0
            size *= 16


ANY = SplitRules(WORDS)  # for texts that nobody encodes yet


def split_rules(tokenizer: Tokenizer) -> SplitRules | None:
    """Nothing for a tokenizer whose rules are not known here: its documents are then encoded whole."""
    backend = getattr(tokenizer, "backend", None)
    if backend is None:
        return None
    rules = json.loads(backend.to_str())
    forms, cuts, model = _steps(rules["normalizer"], "normalizers"), rules["pre_tokenizer"], rules["model"]
    added = [one for one in rules["added_tokens"] if not (one["special"] and backend.encode_special_tokens)]
    if any(one["lstrip"] or one["rstrip"] or one["single_word"] for one in added):
        return None
    if not {form["type"] for form in forms} <= {"NFC", "NFKC", "Lowercase", "Prepend"} or model.get("dropout"):
        return None
    names = sorted((one["content"] for one in added), key=len, reverse=True)
    symbols = re.compile("|".join(map(re.escape, names))) if names else None
    guard = any(form["type"] == "Prepend" for form in forms)
    kinds = [cut["type"] for cut in _steps(cuts, "pretokenizers")]
    if kinds == ["ByteLevel"] and not cuts["add_prefix_space"] and cuts["use_regex"]:
        return SplitRules(
            WORDS if guard else PIECES, SPARE, guard, symbols
        )  # the guard cannot stand before half a word
    single = kinds == ["ByteLevel"] and not cuts["add_prefix_space"] and model.get("merges") == []
    if single or kinds == ["Split"] and cuts["pattern"] == {"Regex": r"[\s\S]"}:
        return SplitRules(WORDS, None, guard, symbols)
    if kinds == ["WhitespaceSplit", "ByteLevel"]:
        return SplitRules(WORDS, None, guard, symbols)
    return None


def _steps(rule: dict[str, Any] | None, inner: str) -> list[dict[str, Any]]:
    if rule is None:
        return []
    return rule[inner] if rule["type"] == "Sequence" else [rule]


class CachedEncoder:
    """The numbers of texts, equal to the tokenizer's own, as bytes of `code`. Threads may share one."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self.seams = tokenizer, split_rules(tokenizer)
        self.code = "H" if tokenizer.size <= 1 << 16 else "I"
        self._known: dict[str, bytes] = {}
        self._old: dict[str, bytes] = {}
        self._held = 0

    def encode(self, parts: Sequence[TextPart]) -> list[bytes]:
        """The numbers of each part; END is not among them."""
        if self.seams is None:
            return self._plain([part.text for part in parts])
        find, symbols = self.seams.words.findall, self.seams.symbols
        odd = [bool(symbols and symbols.search(part.text)) for part in parts]  # not looked up, for their sake
        cut = [[] if alone else find(self._spaced(part)) for part, alone in zip(parts, odd, strict=True)]
        if len(self._known) > KNOWN or self._held > HELD:  # what is not asked for until the next time is forgotten
            self._known, self._old, self._held = {}, self._known, 0
        known, old = self._known, self._old  # other threads may put new ones in their place, and add words to these
        found = {word: old.get(word) for word in set(chain.from_iterable(cut)) if word not in known}
        self._held += sum(map(len, found))
        unseen = [word for word, row in found.items() if row is None]
        found.update(zip(unseen, self._inner(unseen), strict=True))
        known.update((word, row) for word, row in found.items() if row is not None)
        rows = [b"".join(map(known.__getitem__, words)) for words in cut]
        for number, part in enumerate(parts):
            if odd[number]:
                (rows[number],) = self._inner([part.text]) if part.inner else self._plain([part.text])
        return rows

    def _plain(self, texts: list[str]) -> list[bytes]:
        return [array(self.code, row).tobytes() for row in self.tokenizer.encode(texts)]

    def _inner(self, texts: list[str]) -> list[bytes]:
        """Of texts that begin at a seam. A guard before each takes the tokenizer's space, and is then left out."""
        assert self.seams
        if not self.seams.guard:
            return self._plain(texts)
        rows = self.tokenizer.encode(["x" + text for text in texts])
        return [array(self.code, row[1:]).tobytes() for row in rows]

    def _spaced(self, part: TextPart) -> str:
        """The text with the space that the tokenizer would put before it, if it stood alone."""
        assert self.seams
        seam = part.inner and part.text[:1] in SPACES
        return part.text if seam or not part.text or not self.seams.guard else " " + part.text
