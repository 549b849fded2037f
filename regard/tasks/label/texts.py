"""How encoders read texts: START, the tokens and END; longer texts are cut."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple, TypeAlias

from ...data.datasets.collate import Ids
from ...data.datasets.rows import encode_rows, pad_texts
from ...messages.media import Item
from ...metrics.bag_of_words import Target
from ...parts import Inputs
from ...processors.text.tokenizers import Tokenizer
from ..notices import Notice, cut_text, warn_once

Texts: TypeAlias = tuple[str, ...]  # a text, or a pair of texts
LabeledText: TypeAlias = tuple[str, Target] | tuple[str, Target, str]  # a text, its target, and the second text


class EncodedTexts(NamedTuple):
    """A text, or a pair, as a row of tokens, and whether it was cut."""

    row: Ids
    notices: tuple[Notice, ...]


class TextEncoder:
    """Texts, and pairs with END between them, as rows of an encoder."""

    def __init__(self, tokenizer: Tokenizer, room: int, token_types: int = 0) -> None:
        """`room`: the most tokens of a text or a pair. With two `token_types`, the second text has its own."""
        self.tokenizer, self.room, self.token_types = tokenizer, room, token_types

    def read(self, items: Sequence[Texts]) -> list[EncodedTexts]:
        """The function of `Read` jobs."""
        cut = (cut_text(self.room),)
        return [
            EncodedTexts(row, cut if was_cut else ()) for row, was_cut in encode_rows(self.tokenizer, items, self.room)
        ]

    def rows(self, texts: Iterable[str | Texts]) -> list[Ids]:
        """The rows of texts and pairs; a warning says how many were cut."""
        encoded = self.read([(text,) if isinstance(text, str) else text for text in texts])
        warn_once(chain.from_iterable(text.notices for text in encoded), len(encoded), stacklevel=4)
        return [text.row for text in encoded]

    def collate(self, rows: Sequence[Ids]) -> Inputs:
        """Rows as one batch."""
        return pad_texts(rows, self.tokenizer, self.token_types)


def item_texts(item: Item) -> Texts:
    """The texts of an item; an image or a recording is refused."""
    text = item.value_as(str)
    return (text,) if item.text_pair is None else (text, item.text_pair)


def is_empty(texts: Sequence[str]) -> bool:
    """True if there is nothing to read."""
    return not any(text.strip() for text in texts)
