"""Pairs of texts as arrays, padded or packed."""

from collections.abc import Iterable, Sequence

import numpy as np

from ...config.data.base import PackedData
from ...config.train import Train
from ...processors.text.tokenizers import Tokenizer
from ..batch import Batch
from ..dataset import Dataset, EncodedExample
from ..source import Source
from .collate import collate_encoded


class PairDataset(Dataset):
    """Pairs of texts, each with END. Sources and targets have at most `context` tokens, the positions of the model."""

    data: PackedData

    def __init__(
        self,
        examples: Source,
        source: Tokenizer,
        target: Tokenizer,
        data: PackedData,
        train: Train,
        context: int | None = None,
    ) -> None:
        if context is not None and context < data.max_tokens:
            data, self.limit_key = data.model_copy(update={"max_tokens": context}), "model.positions.tokens"
        super().__init__(examples, data, train)
        self.source, self.target, self.sorted = source, target, not data.packed

    def encode(self, indices: list[int]) -> Iterable[EncodedExample]:
        columns, pairs = [], [self.examples[i] for i in indices]
        for tokenizer, field in ((self.source, 0), (self.target, 1)):
            rows = tokenizer.encode([pair[field] for pair in pairs])
            columns.append([np.array([*row, tokenizer.end], np.int32) for row in rows])
        return zip(*columns, strict=True)

    def collate(self, items: Sequence[EncodedExample]) -> Batch:
        width = self.data.max_tokens if self.data.packed else 0
        min_rows = -(-self.train.tokens // (self.train.accumulate * width)) if width and not self.train.batch else 0
        return collate_encoded([x for x, _ in items], [y for _, y in items], self.source, self.target, width, min_rows)
