"""From tokens and parts of an answer to deltas in order."""

from collections.abc import Sequence

from ...decode.engine.answer import Delta, Emit, TextDelta
from ...decode.search.texts import IncrementalDetokenizer
from ...processors.text.tokenizers import Tokenizer


class TextStream:
    """Emits the text of tokens: whole characters, and no part of a stop string. `finish` emits what is left."""

    def __init__(self, tokenizer: Tokenizer, emit: Emit, prompt: Sequence[int] = (), stops: Sequence[str] = ()) -> None:
        self.detokenizer, self.emit = IncrementalDetokenizer(tokenizer.decode, prompt, stops), emit

    def add(self, tokens: Sequence[int]) -> None:
        """New tokens."""
        if text := "".join(map(self.detokenizer.add, tokens)):
            self.emit(TextDelta(text))

    def finish(self, text: str) -> None:
        """The whole text is known."""
        if rest := text[self.detokenizer.emitted :]:
            self.emit(TextDelta(rest))


class OrderedParts:
    """Parts of one answer that are made side by side: a part waits until those before it are complete.

    Their texts add up to that of the whole: without white space at their ends, with `separator` between them.
    """

    def __init__(self, emit: Emit, separator: str = " ") -> None:
        self.emit, self.separator = emit, separator
        self.current, self.begun = 0, False  # the part that emits, and whether it has text
        self.space, self.any_text = "", False  # white space that may end the part; whether any part has text
        self.held: dict[int, list[Delta]] = {}
        self.complete: set[int] = set()

    def part(self, number: int) -> Emit:
        """Where one part emits."""

        def emit(delta: Delta) -> None:
            if number == self.current:
                self._send(delta)
            else:
                self.held.setdefault(number, []).append(delta)

        return emit

    def close(self, number: int) -> None:
        """A part is complete."""
        self.complete.add(number)
        while self.current in self.complete:
            self.current += 1
            self.begun, self.space = False, ""
            for delta in self.held.pop(self.current, ()):
                self._send(delta)

    def _send(self, delta: Delta) -> None:
        if not isinstance(delta, TextDelta):
            self.emit(delta)
            return
        text = self.space + delta.text
        text = text if self.begun else text.lstrip()
        kept = text.rstrip()
        self.space = text[len(kept) :]
        if kept:
            between = self.separator if self.any_text and not self.begun else ""
            self.begun = self.any_text = True
            self.emit(TextDelta(between + kept))
