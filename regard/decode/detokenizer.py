"""From tokens that come one by one to text."""

from collections.abc import Callable, Sequence

from .stop_strings import cut_at_stop, possible_stop_length
from .texts import added_text


class IncrementalDetokenizer:
    """Tokens in, text out: only text that no later token can change."""

    def __init__(
        self, decode: Callable[[Sequence[Sequence[int]]], list[str]], prompt: Sequence[int], stops: Sequence[str]
    ) -> None:
        self.decode, self.stops = decode, stops
        self.complete = list(prompt)  # tokens that end with a whole character
        self.pending: list[int] = []  # the tokens after them: the beginning of a character
        self.text = ""  # of the complete tokens after the prompt
        self.emitted = 0  # characters of `text` that were returned

    def add(self, token: int) -> str:
        """The text that is certain after this token; often empty."""
        self.pending.append(token)
        new = added_text(self.decode, self.complete, self.pending)
        if new.endswith("\N{REPLACEMENT CHARACTER}"):
            return ""
        self.complete += self.pending
        self.pending = []
        self.text += new
        text, stopped = cut_at_stop(self.text, self.stops)
        certain = len(text) - (0 if stopped else possible_stop_length(text, self.stops))
        before, self.emitted = self.emitted, max(self.emitted, certain)
        return text[before : self.emitted]
