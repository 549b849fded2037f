"""From tokens that come one by one to text."""

from collections.abc import Callable, Sequence

from .stop_strings import cut_at_stop, possible_stop_length
from .texts import CONTEXT_TOKENS, INCOMPLETE


class IncrementalDetokenizer:
    """Tokens in, text out: only text that no later token can change.

    It decodes a window of the last tokens, so that a token costs the same wherever it stands. UTF-8 synchronizes itself
    within a character: where the window begins does not affect the characters at its end.
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
        """The part of the held and new text that can belong to no stop string."""
        if self.stopped:
            return ""
        text, self.stopped = cut_at_stop(self.held + new, self.stops)
        certain = len(text) - (0 if self.stopped else possible_stop_length(text, self.stops))
        self.held, self.emitted = text[certain:], self.emitted + certain
        return text[:certain]
