"""Texts as token ids."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
from torch import Tensor

from ...parts.inputs import Inputs, TensorKind
from ..base import Array, Rng, pad_arrays, to_array
from .tokenizers import Tokenizer, load_tokenizer


@dataclass(frozen=True)
class TextProcessor:
    """A tokenizer as a processor. It adds neither START nor END; tasks add them.

    Its file is that of the tokenizer (tokenizer.json), which other libraries read.
    """

    tokenizer: Tokenizer
    kind: ClassVar[str] = "text"
    version: ClassVar[int] = 1
    file: ClassVar[str] = "tokenizer.json"

    @property
    def modality(self) -> TensorKind:
        return "tokens"

    def encode(self, raw: str | Sequence[str], rng: Rng | None = None) -> Array:
        """The token ids of a text, or of a list of words."""
        if isinstance(raw, str):
            return np.array(self.tokenizer.encode([raw])[0], np.int32)
        return np.array([token for word in encode_words(self.tokenizer, [raw])[0] for token in word], np.int32)

    def cost(self, encoded: Array) -> int:
        return len(encoded)

    def collate(self, encoded: Sequence[Array]) -> Inputs:
        values, valid = pad_arrays(encoded, self.tokenizer.pad)
        return Inputs("tokens", values.long(), valid)

    def decode(self, values: Sequence[int] | Array | Tensor) -> str:
        """The text of token ids without START, END and padding."""
        return self.tokenizer.decode([to_array(values).tolist()])[0]

    def save(self, path: Path) -> None:
        self.tokenizer.save(path)

    @classmethod
    def load(cls, path: Path) -> Self:
        return cls(load_tokenizer(path))


def encode_words(tokenizer: Tokenizer, sentences: Sequence[Sequence[str]]) -> list[list[list[int]]]:
    """The tokens of every word, as in a text where spaces separate the words; each word has at least one."""
    text, first, later = tokenizer.encode(["a a", "a", " a"])
    separator = " " if text == [*first, *later] else ""  # else the tokenizer itself puts a space before every word
    words = [word if place == 0 else separator + word for words in sentences for place, word in enumerate(words)]
    distinct = list(dict.fromkeys(words))
    encoded = dict(zip(distinct, tokenizer.encode(distinct), strict=True))
    tokens = iter([encoded[word] for word in words])
    return [[next(tokens) or [tokenizer.unk] for _ in words] for words in sentences]
