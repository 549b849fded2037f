"""The reader of a predictor: the tokens of a text with START and END, and the forward pass over them."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..data.datasets.collate import pad_tokens
from ..data.datasets.rows import add_start_end
from ..errors import UserError
from ..families.protocols import as_module
from ..look.word_links import WordRow
from ..parts import Inputs
from ..processors.text.processor import encode_words
from ..processors.text.tokenizers import Tokenizer
from ..tasks.label.encoder import EncoderPredictor
from ..tasks.language.task import LanguagePredictor
from ..tasks.muting import require_one_model
from ..tasks.predictor import AnyPredictor
from ..tasks.translate.task import TranslatePredictor

WORD = re.compile(r"\s*(\w+(?:['’]\w+)*|[^\w\s])")  # with its spaces; punctuation marks are words


@dataclass(frozen=True)
class TextReader:
    """Reads rows of tokens."""

    tokenizer: Tokenizer
    before: list[int]  # tokens before a text, such as START
    after: list[int]
    room: int | None  # the most tokens of a text; None: any number
    causal: bool
    read: Callable[[Inputs], Any]  # one forward pass over rows of tokens

    def word_rows(self, sentences: Sequence[Sequence[str]]) -> list[WordRow | None]:
        """The tokens of words; None for a sentence that is too long."""
        return [self._row(words) for words in encode_words(self.tokenizer, sentences)]

    def text_row(self, text: str) -> tuple[list[str], WordRow]:
        """The words of a text, with punctuation marks as words of their own, and its tokens."""
        matches = list(WORD.finditer(text.strip()))
        if not matches:
            raise UserError("the text is empty and has no words; give a sentence")
        words = [match.group(0) if place else match.group(1) for place, match in enumerate(matches)]
        tokens = self.tokenizer.encode(words)
        row = self._row([ids or [self.tokenizer.unk] for ids in tokens])
        if row is None:
            raise UserError(f"the text has {sum(map(len, tokens))} tokens, and the model reads {self.room}; shorten it")
        return [match.group(1) for match in matches], row

    def _row(self, words: Sequence[Sequence[int]]) -> WordRow | None:
        tokens, spans = list(self.before), []
        for word in words:
            spans.append((len(tokens), len(tokens) + len(word)))
            tokens += word
        if self.room is not None and len(tokens) - len(self.before) > self.room:
            return None
        return WordRow([*tokens, *self.after], tuple(spans))

    def collate(self, rows: Sequence[Sequence[int]], device: Any) -> Inputs:
        return pad_tokens([np.array(row, np.int32) for row in rows], self.tokenizer.pad).to(device)


def text_reader(predictor: AnyPredictor, option: str) -> TextReader:
    """The reader of a predictor; a UserError if it reads no text."""
    require_one_model(predictor, option)
    match predictor:
        case EncoderPredictor():
            tokenizer = predictor.tokenizer
            around = add_start_end(tokenizer, []).tolist()
            room = predictor.texts.room
            return TextReader(tokenizer, around[:1], around[1:], room, False, predictor.model.encode)
        case LanguagePredictor():
            limit = None if predictor.context is None else predictor.context - 1
            before = [predictor.start_token]
            return TextReader(predictor.tokenizer, before, [], limit, True, predictor.module.decode)  # type: ignore[arg-type]
        case TranslatePredictor():
            limit = None if predictor.context is None else predictor.context - 1
            model: Any = as_module(predictor.model)
            return TextReader(predictor.source, [], [predictor.source.end], limit, False, model.encode)
    raise UserError(f"{option} reads texts, and task {predictor.run.task} does not; give a run that reads text")
