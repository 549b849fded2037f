"""Plain text around decoding: sentences of a long text, and which words the pieces of a text belong to."""

import re
from codecs import getincrementaldecoder
from collections.abc import Callable, Sequence

# What ends in a dot and seldom ends a sentence, in English and German.
SHORT = re.compile(
    r"mrs?|ms|dr|prof|st|[js]r|gen|col|capt|lt|sgt|rev|hon|gov|sen|rep|vs|etc|eg|ie|cf|al|approx|dept|est|figs?|vol|nos?|"
    r"pp|eds?|inc|ltd|co|corp|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec|mon|tue|wed|thu|fri|sat|sun|hr|fr|nr|bzw|ca|"
    r"evtl|ggf|inkl|exkl|max|min|mio|mrd|std|str|tel|usw|vgl|zzgl|abs|art|aufl|bd|dipl|ing|jh|kap|sog|"
    r"\d{1,2}|(\w\.)*[^\W\di]|(\w\.)+i|[nv]\.chr",  # the 3. Oktober, J. R. R. Tolkien, z.B.; but: It was I.
    re.IGNORECASE,
)
ENDS = re.compile(r"""(?:[.!?…]+["'”’»)\]]*(?=\s)|[。！？]+[」』）]*|\n)\s*""")


def sentences(text: str) -> list[str]:
    """The sentences, each with the white space behind it: joined they are the text again."""
    found, begin, cased = [], 0, text != text.lower()
    for end in ENDS.finditer(text):
        before, after = text[begin : end.start()], text[end.end() :]
        if text[begin : end.end()].strip() and not _goes_on(before, end.group(), after, cased):
            found.append(text[begin : end.end()])
            begin = end.end()
    rest = text[begin:]
    if rest.strip() or not found:
        return [*found, rest]
    found[-1] += rest
    return found


def _goes_on(before: str, end: str, after: str, cased: bool) -> bool:
    """Is this dot, or other sign, inside a sentence?"""
    if not after or "\n" in end or end[0] in "。！？":
        return False
    if after.lstrip("\"'“‘„«‚([¿¡-–— ")[:1].islower() and cased:  # else a small letter tells nothing
        return True
    word = before.split()[-1].lstrip("\"'“‘„«‚([") if before.split() else ""
    return end.rstrip() == "." and SHORT.fullmatch(word) is not None


def words(pieces: Sequence[str]) -> list[int | None]:
    """For every piece the number of the word, between white space, in which it ends; None: it ends in white space or
    in the middle of a character. Pieces are those of a tokenizer: ▁ or a space is a space, <e2 80> are bytes."""
    utf8 = getincrementaldecoder("utf-8")("replace")
    found: list[int | None] = []
    word, gap = -1, True
    for piece in pieces:
        letters = utf8.decode(_bytes(piece))
        for letter in letters:
            word += gap and not letter.isspace()
            gap = letter.isspace()
        found.append(None if gap or not letters else word)
    return found


def _bytes(piece: str) -> bytes:
    if re.fullmatch(r"<[0-9a-f]{2}( [0-9a-f]{2})*>", piece):
        return bytes.fromhex(piece[1:-1])
    return piece.replace("▁", " ").encode("utf-8", "replace")


def word_pairs(alignment: Sequence[int], source: Sequence[str], target: Sequence[str]) -> list[list[int]]:
    """[source word, target word] for all that some piece connects; alignment has a source piece per target piece."""
    read, written = words(source), words(target)
    pairs = {(read[i], written[j]) for j, i in enumerate(alignment)}
    return [[i, j] for i, j in sorted((i, j) for i, j in pairs if i is not None and j is not None)]


def added(decode: Callable[[Sequence[Sequence[int]]], list[str]], given: Sequence[int], said: Sequence[int]) -> str:
    """The text that tokens add to what is given. A vocabulary may spell a word otherwise at the beginning of a text."""
    given = given[-NEAR:]
    before, whole = decode([given, [*given, *said]])
    return whole.removeprefix(before)


NEAR = 8  # tokens before a place that can matter to how the next ones are spelt
