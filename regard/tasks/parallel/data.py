"""Training data of families that write all tokens at once. Targets have no END: their length is known."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from ...alignment.fertility import choose_by_links, choose_by_model, fertilities
from ...alignment.links import parse_pharaoh
from ...config.data.base import PackedData
from ...config.train import Train
from ...data.batch import Batch
from ...data.dataset import EncodedExample
from ...data.datasets.collate import Ids, pad_labels, pad_tokens
from ...data.datasets.pairs import PairDataset
from ...data.rng import ExampleRng
from ...data.source import Source
from ...decode.search.texts import word_of_token
from ...parts.inputs import Inputs
from ...processors.text.tokenizers import Tokenizer

ALIGN_CHUNK = 10_000  # examples that are encoded together


class CopyDataset(PairDataset):
    """Pairs with the fertilities of their source tokens. END has fertility 0."""

    def collate(self, items: Sequence[EncodedExample]) -> Batch:
        copies = pad_target([np.repeat(source, fertility) for source, _, fertility in items], self.source.tokenizer.pad)
        fields = {
            "source": pad_tokens([source for source, _, _ in items], self.source.tokenizer.pad),
            "copies": copies,
            "labels": flat_labels([target for _, target, _ in items], copies.values.size(1)),
            "fertility": pad_labels([fertility for _, _, fertility in items]),
        }
        return Batch(fields, sum(len(target) for _, target, _ in items), counts=self.counts(items))

    def counts(self, items: Sequence[EncodedExample]) -> dict[str, int]:
        """The counts of the further terms of the loss."""
        return {"fertility": sum(len(source) for source, _, _ in items)}


class EvenDataset(CopyDataset):
    """Pairs whose source tokens are spread evenly over the target."""

    def encode(self, indices: list[int]) -> Iterable[EncodedExample]:
        for source, target in super().encode(indices):
            size = len(source) - 1
            fertility = fertilities(np.full(len(target) - 1, -1), size, len(target))
            yield source, target[: fertility.sum()], np.append(fertility, np.int32(0))

    def counts(self, items: Sequence[EncodedExample]) -> dict[str, int]:
        return {"length": len(items)}


class FertilityDataset(CopyDataset):
    """Pairs with the fertilities of word alignments.

    They come from links between words, if examples have a third field. Otherwise an IBM model is fitted to the tokens.
    """

    def __init__(
        self,
        examples: Source,
        source: Tokenizer,
        target: Tokenizer,
        data: PackedData,
        train: Train,
        context: int | None,
        max_fertility: int,
    ) -> None:
        super().__init__(examples, source, target, data, train, context)
        self.max_fertility = max_fertility
        self.linked = len(examples[0]) > 2
        self.chosen: np.ndarray
        self.ends: np.ndarray
        if not self.linked:
            self.chosen, self.ends = self._align()

    def encode(self, indices: list[int]) -> Iterable[EncodedExample]:
        for index, (source, target) in zip(indices, super().encode(indices), strict=True):
            fertility = fertilities(self._choose(index, source[:-1], target[:-1]), len(source) - 1, self.max_fertility)
            if len(target) - 1 > fertility.sum():
                self.shortened.add(index)
            yield source, target[: fertility.sum()], np.append(fertility, np.int32(0))

    def _choose(self, index: int, source: Ids, target: Ids) -> np.ndarray:
        """The source token of every target token; -1 is none."""
        if not self.linked:
            return self.chosen[self.ends[index] : self.ends[index + 1]]
        _, links = parse_pharaoh(self.examples[index][2], self.examples.location(index))
        pairs = (self.source, source), (self.target, target)
        words = (word_of_token(field.tokenizer.tokens(ids.tolist())) for field, ids in pairs)
        return choose_by_links(links, *words)

    def _align(self) -> tuple[np.ndarray, np.ndarray]:
        """The choices of all target tokens, and where those of each example end."""
        token_rows: tuple[list[Ids], list[Ids]] = [], []
        for first in range(0, len(self.examples), ALIGN_CHUNK):
            chunk = range(first, min(first + ALIGN_CHUNK, len(self.examples)))
            for pair in super().encode(list(chunk)):
                for rows, ids in zip(token_rows, pair, strict=True):
                    rows.append(ids[:-1])
        return choose_by_model(*token_rows)

    def describe_shortened(self) -> str:
        return f"targets have over {self.max_fertility} tokens for a source token and were cut (model.max_fertility)"


class CtcTranslationDataset(PairDataset):
    """Pairs whose source tokens are each copied equally often; CTC aligns the target tokens with the copies."""

    def __init__(
        self,
        examples: Source,
        source: Tokenizer,
        target: Tokenizer,
        data: PackedData,
        train: Train,
        context: int | None,
        upsample: int,
    ) -> None:
        super().__init__(examples, source, target, data, train, context)
        self.upsample = upsample

    def encode(self, indices: list[int]) -> Iterable[EncodedExample]:
        for index, (source, target) in zip(indices, super().encode(indices), strict=True):
            needed = np.arange(1, len(target)) + (np.diff(target[:-1], prepend=-1) == 0).cumsum()
            fitting = target[:-1][needed <= self.upsample * (len(source) - 1)]  # equal neighbors need a blank
            if len(fitting) < len(target) - 1:
                self.shortened.add(index)
            yield source, fitting

    def collate(self, items: Sequence[EncodedExample]) -> Batch:
        pad = self.source.tokenizer.pad
        fields = {
            "source": pad_tokens([source for source, _ in items], pad),
            "copies": pad_target([np.repeat(source[:-1], self.upsample) for source, _ in items], pad),
            "target": pad_target([target for _, target in items], self.target.tokenizer.pad),
        }
        return Batch(fields, sum(len(target) for _, target in items))

    def describe_shortened(self) -> str:
        return f"targets have over {self.upsample} tokens for a source token and were cut (model.upsample)"


class MaskPredictDataset(PairDataset):
    """Pairs in which a random number of target tokens, from one to all, are masked by PAD."""

    def encode(self, indices: list[int]) -> Iterable[EncodedExample]:
        for source, target in super().encode(indices):
            yield source, target[:-1], np.ones(len(target) - 1, np.int32)

    def augment(self, items: list[EncodedExample], rng: ExampleRng) -> list[EncodedExample]:
        lengths = np.array([len(target) for _, target, _ in items])
        counts = 1 + rng.below(np.maximum(lengths, 1))
        numbers = np.split(rng.branch(0).uniform(lengths), lengths.cumsum()[:-1])
        return [
            (source, target, (keys.argsort().argsort() < count).astype(np.int32))
            for (source, target, _), keys, count in zip(items, numbers, counts, strict=True)
        ]

    def collate(self, items: Sequence[EncodedExample]) -> Batch:
        pad = self.target.tokenizer.pad
        masked = pad_target([np.where(hidden, pad, target) for _, target, hidden in items], pad)
        fields = {
            "source": pad_tokens([source for source, _, _ in items], self.source.tokenizer.pad),
            "target": masked,
            "labels": flat_labels([y for _, y, _ in items], masked.values.size(1), [hidden for _, _, hidden in items]),
            "length": Inputs("labels", torch.tensor([len(target) for _, target, _ in items])),
        }
        return Batch(fields, sum(int(hidden.sum()) for _, _, hidden in items), counts={"length": len(items)})


def pad_target(rows: Sequence[Ids], padding: int) -> Inputs:
    """Rows of tokens as one field, at least one token wide."""
    if any(map(len, rows)):
        return pad_tokens(rows, padding)
    return Inputs("tokens", torch.full((len(rows), 1), padding), torch.zeros(len(rows), 1, dtype=torch.bool))


def flat_labels(rows: Sequence[Ids], width: int, chosen: Sequence[np.ndarray] | None = None) -> Inputs:
    """The tokens of all rows, or the chosen ones, with their indices in the flattened table."""
    places = [number * width + np.arange(len(row)) for number, row in enumerate(rows)]
    flat, index = np.concatenate(rows), np.concatenate(places)
    selected = slice(None) if chosen is None else np.concatenate(chosen).astype(bool)
    labels, positions = (torch.from_numpy(values[selected].astype(np.int64)) for values in (flat, index))
    return Inputs("tokens", labels, positions=positions)
