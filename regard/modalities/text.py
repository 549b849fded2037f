"""Texts as tokens."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..config.measured import AlignmentHeads
from ..data.datasets.collate import pad_tokens
from ..decode.engine.passes import TokenTrace
from ..errors import UserError
from ..families.protocols import ModelBase
from ..look import AttentionView, ViewAxis
from ..messages.texts import TokenAlignment
from ..parts import Inputs
from ..processors.base import Array
from ..processors.text.tokenizers import Tokenizer
from .alignments import aligned_view, attention_links
from .base import END, EncodedInput, Modality, trace_view


class TextModality(Modality[str]):
    """Texts as tokens with END."""

    name, noun, tensor_kind = "text", "a text", "tokens"

    def __init__(
        self, tokenizer: Tokenizer, context: int | None = None, alignment_heads: AlignmentHeads | None = None
    ) -> None:
        """`context`: the most tokens that the model reads; longer texts are refused."""
        self.tokenizer, self.context, self.alignment_heads = tokenizer, context, alignment_heads

    def encode(self, raw: str) -> Array:
        return self.encode_all([raw])[0]

    def encode_all(self, raws: Sequence[str]) -> list[Array]:
        """Many texts in one call of the tokenizer, which uses several cores."""
        end = self.tokenizer.end
        rows = [np.array([*ids, end], np.int32) for ids in self.tokenizer.encode(list(raws))]
        for row in rows:
            self.refuse_long(len(row))
        return rows

    def refuse_long(self, tokens: int, name: str = "a text") -> None:
        """Refuse more tokens, END included, than the model reads."""
        if self.context is not None and tokens > self.context:
            raise UserError(
                f"{name} has {tokens:,} tokens with END and the model has {self.context:,} positions; "
                "shorten it, set decode.split_sentences=true, or train with more (model.positions.tokens)"
            )

    def encoded_input(self, raw: str, array: Array) -> EncodedInput:
        inputs = Inputs("tokens", torch.from_numpy(array).long()[None])
        return EncodedInput(raw, array, inputs, self.max_tokens(array), self.key(raw, array))

    def key(self, raw: str, array: Array) -> str:
        return raw

    def collate(self, arrays: Sequence[Array]) -> Inputs:
        return pad_tokens(arrays, self.tokenizer.pad)

    def cost(self, array: Array) -> int:
        return len(array)

    def max_tokens(self, array: Array) -> int:
        return 2 * len(array) + 16

    def is_empty(self, raw: str) -> bool:
        return not raw.strip()

    def axis(self, source: EncodedInput, model: ModelBase | None, positions: int) -> ViewAxis:
        tokens = self.tokenizer.tokens(source.array[:-1].tolist())
        return ViewAxis.of_tokens("source", [*tokens, END], ended=True)

    def aligned(self, view: AttentionView) -> AttentionView:
        return aligned_view(view, self.alignment_heads)

    def align(
        self, source: EncodedInput, trace: TokenTrace, text: str, tokens: Sequence[int], target: Tokenizer, model: Any
    ) -> TokenAlignment:
        view = self.aligned(trace_view(self.axis(source, model, len(source.array)), trace, tokens, target))
        words = sorted(attention_links(view))
        return TokenAlignment(tuple(view.texts()[0]), tuple(view.alignment()), tuple(words))
