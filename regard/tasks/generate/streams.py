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
    """Parts of one answer that are made side by side: a part waits until those before it are complete."""

    def __init__(self, emit: Emit, separator: str = " ") -> None:
        self.emit, self.separator = emit, separator
        self.current, self.begun = 0, False
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
            self.begun = False
            for delta in self.held.pop(self.current, ()):
                self._send(delta)

    def _send(self, delta: Delta) -> None:
        if isinstance(delta, TextDelta) and self.current and not self.begun:
            delta = TextDelta(self.separator + delta.text)
        self.begun = True
        self.emit(delta)
