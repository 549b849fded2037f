"""Pairs of texts, padded or packed: several pairs share a row."""

from collections.abc import Sequence

from ...config.data.base import PackedData
from ...config.train import Train
from ...processors.text.tokenizers import Tokenizer
from ..batch import Batch
from ..dataset import EncodedExample
from ..source import Source
from .collate import collate_encoded
from .fields import TextField
from .source_target import SourceTargetDataset


class PairDataset(SourceTargetDataset):
    """Sources and targets have at most `context` tokens, the positions of the model."""

    data: PackedData
    source: TextField
    target: TextField

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
        super().__init__(examples, TextField("source", source), TextField("target", target), data, train)
        self.sorted = not data.packed

    def collate(self, items: Sequence[EncodedExample]) -> Batch:
        width = self.data.max_tokens if self.data.packed else 0
        min_rows = -(-self.train.tokens // (self.train.accumulate * width)) if width and not self.train.batch else 0
        sources, targets = [item[0] for item in items], [item[1] for item in items]
        return collate_encoded(sources, targets, self.source.tokenizer, self.target.tokenizer, width, min_rows)
