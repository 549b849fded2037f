"""Texts of decoding: sentences, words of tokens, stop strings, and incremental detokenization."""

import re
from codecs import getincrementaldecoder
from collections.abc import Callable, Sequence
from os.path import commonprefix

import torch
from torch import Tensor

from ...processors.text.tokenizers import Tokenizer
from .filters import NO_TOKEN

# Abbreviations in English and German: the dot behind them seldom ends a sentence.
ABBREVIATION = re.compile(
    r"mrs?|ms|dr|prof|st|[js]r|gen|col|capt|lt|sgt|rev|hon|gov|sen|rep|vs|etc|eg|ie|cf|al|approx|dept|est|figs?|vol|nos?|"
    r"pp|eds?|inc|ltd|co|corp|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec|mon|tue|wed|thu|fri|sat|sun|hr|fr|nr|bzw|ca|"
    r"evtl|ggf|inkl|exkl|max|min|mio|mrd|std|str|tel|usw|vgl|zzgl|abs|art|aufl|bd|dipl|ing|jh|kap|sog|"
    r"\d{1,2}|(\w\.)*[^\W\di]|(\w\.)+i|[nv]\.chr",  # 3. Oktober, J. R. R. Tolkien, z.B.; but not: It was I.
    re.IGNORECASE,
)
SENTENCE_END = re.compile(r"""(?:[.!?…]+["'”’»)\]]*(?=\s)|[。！？]+[」』）]*|\n)\s*""")


def split_sentences(text: str) -> list[str]:
    """The sentences, each with the white space behind it; joined they are the text again."""
    sentences, begin, cased = [], 0, text != text.lower()
    for end in SENTENCE_END.finditer(text):
        before, after = text[begin : end.start()], text[end.end() :]
        if text[begin : end.end()].strip() and not _continues(before, end.group(), after, cased):
            sentences.append(text[begin : end.end()])
            begin = end.end()
    rest = text[begin:]
    if rest.strip() or not sentences:
        return [*sentences, rest]
    sentences[-1] += rest
    return sentences


def _continues(before: str, end: str, after: str, cased: bool) -> bool:
    """True if the sentence continues after this punctuation."""
    if not after or "\n" in end or end[0] in "。！？":
        return False
    if after.lstrip("\"'“‘„«‚([¿¡-–— ")[:1].islower() and cased:  # in a text without capitals case says nothing
        return True
    word = before.split()[-1].lstrip("\"'“‘„«‚([") if before.split() else ""
    return end.rstrip() == "." and ABBREVIATION.fullmatch(word) is not None


def word_of_token(tokens: Sequence[str]) -> list[int | None]:
    """For every token, the number of the white-space separated word in which it ends.

    None: it ends in white space or inside a character. Tokens are texts: ▁ or a space is a space, <e2 80> are bytes.
    """
    utf8 = getincrementaldecoder("utf-8")("replace")
    words: list[int | None] = []
    word, gap = -1, True
    for token in tokens:
        letters = utf8.decode(_bytes(token))
        for letter in letters:
            word += gap and not letter.isspace()
            gap = letter.isspace()
        words.append(None if gap or not letters else word)
    return words


def _bytes(token: str) -> bytes:
    if re.fullmatch(r"<[0-9a-f]{2}( [0-9a-f]{2})*>", token):
        return bytes.fromhex(token[1:-1])
    return token.replace("▁", " ").encode("utf-8", "replace")


def added_text(
    decode: Callable[[Sequence[Sequence[int]]], list[str]], prompt: Sequence[int], tokens: Sequence[int]
) -> str:
    """The text that tokens add to a prompt. A tokenizer may decode a word differently at the beginning of a text."""
    context = prompt[-CONTEXT_TOKENS:]
    before, whole = decode([context, [*context, *tokens]])
    return whole[len(commonprefix([before, whole])) :]


def without_incomplete(text: str, tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    """The text of these tokens without an incomplete last character."""
    if not text.endswith(INCOMPLETE):
        return text
    utf8 = getincrementaldecoder("utf-8")("replace")
    utf8.decode(b"".join(map(_bytes, tokenizer.tokens(tokens[-MAX_BYTES:]))))
    return text[:-1] if utf8.getstate()[0] else text


INCOMPLETE = "\N{REPLACEMENT CHARACTER}"  # how the beginning of a character decodes
MAX_BYTES = 4  # of a character, and so of tokens that only hold parts of it
CONTEXT_TOKENS = 8  # tokens before a position that can affect how the next ones decode


SPARE_TOKENS = 4  # beyond those that can hold a stop string: a character may begin in them


class StopStrings:
    """Finds the stop strings of each row in its hypotheses.

    `prompts` has the prompt of each row: tokens may decode differently at the beginning of a text.
    """

    def __init__(
        self,
        strings: Sequence[Sequence[str]],
        decode: Callable[[Sequence[Sequence[int]]], list[str]],
        prompts: Sequence[list[int]],
    ) -> None:
        self.strings, self.decode, self.prompts = strings, decode, prompts
        longest = max(len(string.encode()) for row in strings for string in row)
        self.window = longest + SPARE_TOKENS  # a token has at least one byte

    def __call__(self, tokens: Tensor, input_row: Tensor, candidates: Tensor) -> Tensor:
        """(rows, new) bool: which `candidates` among tokens (rows, new, length) now contain a stop string.

        The tokens end in the last column; shorter rows have NO_TOKEN on the left.
        """
        matches = torch.zeros_like(candidates, device="cpu")
        positions = candidates.nonzero().tolist()
        recent, rows = tokens[:, :, -self.window - 1 :].tolist(), input_row.tolist()
        for i, j in positions:
            row_tokens = [token for token in recent[i][j] if token != NO_TOKEN]
            prompt = self.prompts[rows[i]] if len(row_tokens) <= self.window else None
            matches[i, j] = self._matches(row_tokens[-self.window :], prompt, self.strings[rows[i]])
        return matches.to(candidates.device)

    def _matches(self, tokens: list[int], prompt: list[int] | None, strings: Sequence[str]) -> bool:
        text = self.decode([tokens])[0] if prompt is None else added_text(self.decode, prompt, tokens)
        return any(string in text for string in strings)


def cut_at_stop(text: str, strings: Sequence[str]) -> tuple[str, bool]:
    """The text before the first stop string, and whether there is one."""
    places = [place for string in strings if (place := text.find(string)) >= 0]
    return (text[: min(places)], True) if places else (text, False)


def possible_stop_length(text: str, strings: Sequence[str]) -> int:
    """The number of last characters that may still become a stop string."""
    longest = 0
    for string in strings:
        sizes = range(min(len(string) - 1, len(text)), longest, -1)
        longest = next((size for size in sizes if text.endswith(string[:size])), longest)
    return longest


class IncrementalDetokenizer:
    """Tokens in, text out: only text that no later token can change.

    It decodes a window of the last tokens, so that the cost of a token does not grow with its position. UTF-8
    synchronizes itself within a character: the beginning of the window does not affect the characters at its end.
    """

    def __init__(
        self, decode: Callable[[Sequence[Sequence[int]]], list[str]], prompt: Sequence[int], stops: Sequence[str]
    ) -> None:
        self.decode, self.stops = decode, stops
        self.window = list(prompt[-CONTEXT_TOKENS:])
        self.known = len(decode([self.window])[0])  # characters of the window that are the prompt's or were read before
        self.held = ""  # text that may begin a stop string
        self.stopped = False  # at a stop string
        self.emitted = 0  # characters that were returned

    def add(self, token: int) -> str:
        """The text that is certain after this token; often empty."""
        self.window.append(token)
        text = self._certain_text()
        new, self.known = text[self.known :], max(self.known, len(text))
        if len(self.window) >= 2 * CONTEXT_TOKENS:
            self.window = self.window[-CONTEXT_TOKENS:]
            self.known = len(self._certain_text())
        return self._before_stop(new)

    def _certain_text(self) -> str:
        """The text of the window without a last character that may be incomplete."""
        return self.decode([self.window])[0].removesuffix(INCOMPLETE)

    def _before_stop(self, new: str) -> str:
        """The part of the held-back and new text that cannot belong to a stop string."""
        if self.stopped:
            return ""
        text, self.stopped = cut_at_stop(self.held + new, self.stops)
        certain = len(text) - (0 if self.stopped else possible_stop_length(text, self.stops))
        self.held, self.emitted = text[certain:], self.emitted + certain
        return text[:certain]
