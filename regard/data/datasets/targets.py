"""Fields of texts to write: tokens that the decoder learns, each after a prompt that it only reads."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ...parts.inputs import Inputs
from ...processors.text.tokenizers import Tokenizer
from ..dataset import EncodedExample
from ..source import Source
from .collate import Ids, pad_rows, prompted_targets, valid_mask
from .fields import STRIDE, Columns, ExampleField, Indices, KnownSizes

EncodeTargets: TypeAlias = Callable[[Sequence[str]], list[tuple[Ids, Ids]]]
"""For every text its prompt, which ends in START, and its target tokens, which end in END."""


@dataclass(frozen=True)
class PlainTargets:
    """Texts whose prompt is START alone."""

    tokenizer: Tokenizer

    def __call__(self, texts: Sequence[str]) -> list[tuple[Ids, Ids]]:
        start, end = np.array([self.tokenizer.start], np.int32), self.tokenizer.end
        return [(start, np.array([*ids, end], np.int32)) for ids in self.tokenizer.encode(list(texts))]


class TargetField(ExampleField[str]):
    """Prompts and target texts: the inputs `target` and `labels`."""

    arrays = 2

    def __init__(
        self, encode_targets: EncodeTargets, padding: int, max_tokens: int, context: int | None = None, noun: str = ""
    ) -> None:
        """Targets have at most `max_tokens` tokens, and `context`, the positions of the model. `noun` names them."""
        self.encode_targets, self.padding = encode_targets, padding
        self.limit = min(max_tokens, context or max_tokens)
        self.limit_key = "model.positions.tokens" if self.limit < max_tokens else "data.max_tokens"
        self.too_long = f"a {noun} of more than {self.limit:,} tokens" if noun else ""

    def encode(self, raws: Sequence[str]) -> list[EncodedExample]:
        return list(self.encode_targets(raws))

    def size(self, value: EncodedExample) -> int:
        prompt, ids = value
        return len(prompt) + len(ids) - 1

    def known_sizes(self, examples: Source, indices: Indices, sources: Sequence[int] = ()) -> KnownSizes:
        sizes = [self.size(row) for row in self.encode([examples.text(index, 1) for index in indices])]
        return KnownSizes(sizes, [size > self.limit for size in sizes])

    def collate(self, columns: Columns) -> Mapping[str, Inputs]:
        prompts, rows = columns
        return prompted_targets(prompts, rows, self.padding)

    def count(self, columns: Columns) -> int:
        return sum(map(len, columns[1]))


class TranscriptField(TargetField):
    """Transcripts; `transcript` has their tokens without END. The budget of a step counts frames alone."""

    counted = False

    def __init__(
        self, encode_targets: EncodeTargets, padding: int, max_tokens: int, context: int | None, ctc: bool = True
    ) -> None:
        """With `ctc`, the loss includes CTC, which needs enough frames."""
        super().__init__(encode_targets, padding, max_tokens, context, "transcript")
        self.ctc = ctc
        self.cut = "recordings are too short for CTC of their transcripts, so that only the decoder learns from them"

    def known_sizes(self, examples: Source, indices: Indices, sources: Sequence[int] = ()) -> KnownSizes:
        rows = self.encode([examples.text(index, 1) for index in indices])
        pairs = zip(sources, rows, strict=True)
        short = [self.ctc and -(-frames // STRIDE) < ctc_positions(ids[:-1]) for frames, (_, ids) in pairs]
        sizes = [self.size(row) for row in rows]
        return KnownSizes(sizes, [size > self.limit for size in sizes], short)

    def collate(self, columns: Columns) -> Mapping[str, Inputs]:
        plain = [ids[:-1] for ids in columns[1]]
        transcript = Inputs("tokens", pad_rows(plain, self.padding), valid_mask(plain))
        return {**super().collate(columns), "transcript": transcript}


def ctc_positions(ids: Ids) -> int:
    """The encoder positions that CTC needs: one for each token, and a blank between equal neighbors."""
    return len(ids) + int((ids[1:] == ids[:-1]).sum())
