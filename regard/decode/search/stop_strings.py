"""Stop strings: strings that end a text, whatever tokens spell them."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .filters import NO_TOKEN
from .texts import added_text

SPARE_TOKENS = 4  # beyond those that can hold a stop string: a character may begin in them


class StopStrings:
    """Finds stop strings in hypotheses.

    `prompts` has the prompt of each row: tokens may decode differently at the beginning of a text.
    """

    def __init__(
        self,
        strings: Sequence[str],
        decode: Callable[[Sequence[Sequence[int]]], list[str]],
        prompts: Sequence[list[int]],
    ) -> None:
        self.strings, self.decode, self.prompts = tuple(strings), decode, prompts
        self.window = max(len(string.encode()) for string in strings) + SPARE_TOKENS  # a token has at least one byte

    def __call__(self, tokens: Tensor, input_row: Tensor, candidates: Tensor) -> Tensor:
        """(rows, new) bool: which `candidates` among tokens (rows, new, length) now contain a stop string.

        The tokens end in the last column; shorter rows have NO_TOKEN on the left.
        """
        matches = torch.zeros_like(candidates, device="cpu")
        positions = candidates.nonzero().tolist()
        recent, rows = tokens[:, :, -self.window - 1 :].tolist(), input_row.tolist()
        for i, j in positions:
            own = [token for token in recent[i][j] if token != NO_TOKEN]
            prompt = self.prompts[rows[i]] if len(own) <= self.window else None
            matches[i, j] = self._matches(own[-self.window :], prompt)
        return matches.to(candidates.device)

    def _matches(self, tokens: list[int], prompt: list[int] | None) -> bool:
        text = self.decode([tokens])[0] if prompt is None else added_text(self.decode, prompt, tokens)
        return any(string in text for string in self.strings)


def cut_at_stop(text: str, strings: Sequence[str]) -> tuple[str, bool]:
    """The text before the first stop string, and whether there is one."""
    places = [place for string in strings if (place := text.find(string)) >= 0]
    return (text[: min(places)], True) if places else (text, False)


def possible_stop_length(text: str, strings: Sequence[str]) -> int:
    """How many of the last characters may still become a stop string."""
    longest = 0
    for string in strings:
        sizes = range(min(len(string) - 1, len(text)), longest, -1)
        longest = next((size for size in sizes if text.endswith(string[:size])), longest)
    return longest
