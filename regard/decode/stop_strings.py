"""Strings that end a text, however its tokens spell them."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .texts import added

SPARE = 4  # tokens beyond those that can hold a string: a character may begin in them


class StopStrings:
    """`given` has the prompt of each row, for the first tokens may be spelt otherwise at the beginning of a text."""

    def __init__(
        self, strings: Sequence[str], decode: Callable[[Sequence[Sequence[int]]], list[str]], given: Sequence[list[int]]
    ) -> None:
        self.strings, self.decode, self.given = tuple(strings), decode, given
        self.window = max(len(string.encode()) for string in strings) + SPARE  # a token has a byte at least

    def __call__(self, said: Tensor, row: Tensor, asked: Tensor) -> Tensor:
        """(rows, new) bool: which of `said` (rows, new, length), as far as asked for, end in one now."""
        found = torch.zeros_like(asked, device="cpu")
        places = asked.nonzero().tolist()
        short, numbers = said[:, :, -self.window :].tolist(), row.tolist()
        for i, j in places:
            found[i, j] = self._stops(short[i][j], self.given[numbers[i]] if said.size(2) <= self.window else None)
        return found.to(asked.device)

    def _stops(self, tokens: list[int], given: list[int] | None) -> bool:
        text = self.decode([tokens])[0] if given is None else added(self.decode, given, tokens)
        return any(string in text for string in self.strings)


def cut(text: str, strings: Sequence[str]) -> tuple[str, bool]:
    """What stands before the first of the strings, and whether there is one."""
    places = [place for string in strings if (place := text.find(string)) >= 0]
    return (text[: min(places)], True) if places else (text, False)


def held(text: str, strings: Sequence[str]) -> int:
    """How many of the last characters may still become one of the strings."""
    longest = 0
    for string in strings:
        sizes = range(min(len(string) - 1, len(text)), longest, -1)
        longest = next((size for size in sizes if text.endswith(string[:size])), longest)
    return longest
