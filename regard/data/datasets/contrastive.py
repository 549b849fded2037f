"""Pairs of an item and a text as arrays. Equal items, and equal texts, share a number, by which the loss knows them."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike, fspath

import numpy as np
import torch

from ...config.data.mixed import ContrastiveData
from ...config.train import Train
from ...parts.inputs import Inputs
from ...processors.base import Rng
from ...processors.image.read import RawImage
from ...processors.sound.read import RawSound
from ...processors.text.tokenizers import Tokenizer
from ..batch import Batch
from ..dataset import EncodedExample
from ..source import Example, Source
from .collate import pad_tokens
from .fields import UNLIMITED, AnyField, Columns, ExampleField, Indices, KnownSizes
from .rows import add_start_end
from .source_target import SourceTargetDataset


class RowField(ExampleField[str]):
    """Texts between START and END; longer ones are cut to `room` tokens."""

    limit = UNLIMITED

    def __init__(self, tokenizer: Tokenizer, room: int, name: str = "text", element: int = 1) -> None:
        self.name, self.tokenizer, self.room, self.element = name, tokenizer, room, element
        self.cut = f"texts have more than {room} tokens and were cut (data.max_tokens or model positions)"

    def encode(self, raws: Sequence[str]) -> list[EncodedExample]:
        return [(add_start_end(self.tokenizer, ids[: self.room]),) for ids in self.tokenizer.encode(list(raws))]

    def known_sizes(self, examples: Source, indices: Indices, sources: Sequence[int] = ()) -> KnownSizes:
        texts = [examples.text(index, self.element) for index in indices]
        lengths = [len(ids) for ids in self.tokenizer.encode(texts)]
        sizes = [min(length, self.room) + 2 for length in lengths]
        return KnownSizes(sizes, shortened=[length > self.room for length in lengths] if self.element else ())

    def collate(self, columns: Columns) -> Mapping[str, Inputs]:
        return {self.name: pad_tokens(columns[0], self.tokenizer.pad)}


class ContrastiveDataset(SourceTargetDataset):
    """Pairs in random order: the negatives of a pair are drawn from all others, not from those of its length."""

    data: ContrastiveData
    target: RowField
    sorted = False

    def __init__(self, examples: Source, source: AnyField, text: RowField, data: ContrastiveData, train: Train) -> None:
        super().__init__(examples, source, text, data, train)
        self.limit = UNLIMITED

    def encode_examples(
        self, indices: list[int], examples: list[Example], generators: Sequence[Rng] = ()
    ) -> list[EncodedExample]:
        numbers = [
            np.array([content_number(raw, index) for raw in example], np.int64)
            for index, example in zip(indices, examples, strict=True)
        ]
        items = super().encode_examples(indices, examples, generators)
        return [(*item, row) for item, row in zip(items, numbers, strict=True)]

    def collate(self, items: Sequence[EncodedExample]) -> Batch:
        batch = super().collate([item[:-1] for item in items])
        numbers = torch.from_numpy(np.stack([item[-1] for item in items]))
        same = {f"same_{name}": Inputs("labels", numbers[:, place]) for place, name in enumerate(batch.inputs)}
        return replace(batch, inputs={**batch.inputs, **same})


def content_number(raw: RawImage | RawSound, index: int) -> int:
    """A number that is equal for equal texts, paths and bytes; for other objects in memory, the example's index."""
    if isinstance(raw, str | PathLike):
        content = " ".join(fspath(raw).split()).encode("utf-8", "surrogateescape")
    else:
        content = raw if isinstance(raw, bytes) else b"example %d" % index
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest()) >> 1
