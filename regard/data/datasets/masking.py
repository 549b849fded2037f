"""Masked tokens (BERT, 1810.04805): which tokens of a text are predicted, and what replaces them."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from ...config.data.texts import MaskData
from ...config.train import Train
from ...errors import UserError
from ...parts.inputs import Inputs
from ...processors.text.processor import encode_words
from ...processors.text.tokenizers import TrainedTokenizer
from ..batch import Batch
from ..dataset import Dataset, EncodedExample
from ..rng import ExampleRng
from ..source import Source
from .collate import IGNORED, Ids, pad_labels, pad_tokens
from .rows import fit_lengths, max_text_tokens

MASKED_SHARE, RANDOM_SHARE = 0.8, 0.1  # of the chosen tokens: replaced by <mask>, by a random token; the rest stays
IS_NEXT, NOT_NEXT = 0, 1  # the classes of the next-sentence head, in BERT's order


class Masker:
    """Chooses the tokens to predict and replaces them. The tokenizer must have <mask>."""

    def __init__(self, tokenizer: TrainedTokenizer, data: MaskData) -> None:
        if tokenizer.mask is None:
            raise UserError(
                "the tokenizer has no <mask>, which task masked needs; train without `start`, or from a run or folder "
                "of task masked"
            )
        self.tokenizer, self.data, self.mask = tokenizer, data, tokenizer.mask
        control = {tokenizer.pad, tokenizer.start, tokenizer.end, tokenizer.unk, tokenizer.mask, *tokenizer.symbols}
        self.ordinary_ids = np.array([number for number in range(tokenizer.size) if number not in control])

    def encode_groups(self, texts: Sequence[str]) -> Iterable[tuple[Ids, Ids]]:
        """The tokens of each text, and the group of each token. Tokens of a group are masked together (whole words)."""
        if not self.data.whole_words:
            for ids in self.tokenizer.encode(texts):
                yield np.array(ids, np.int32), np.arange(len(ids), dtype=np.int32)
            return
        for words in encode_words(self.tokenizer, [text.split() for text in texts]):
            sizes = [len(tokens) for tokens in words]
            flat = np.array([token for tokens in words for token in tokens], np.int32)
            yield flat, np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)

    def mask_texts(self, texts: Sequence[tuple[Ids, ...]], rng: ExampleRng) -> tuple[Ids, Ids]:
        """The concatenated texts with some tokens replaced, and the original tokens there (IGNORED elsewhere).

        `rng` has a random stream for each text.
        """
        ids, groups = (np.concatenate(arrays) for arrays in zip(*texts, strict=True))
        lengths = np.array([len(ids) for ids, _ in texts])
        chosen = self._choose_positions(groups, lengths, rng.branch(0))
        chance = rng.branch(1).uniform(lengths)
        masked = np.where(chosen & (chance < MASKED_SHARE), self.mask, ids)
        random = chosen & (chance >= MASKED_SHARE) & (chance < MASKED_SHARE + RANDOM_SHARE)
        others = rng.branch(2).uniform(lengths)[random] * len(self.ordinary_ids)
        masked[random] = self.ordinary_ids[others.astype(np.int64)]
        return masked, np.where(chosen, ids, IGNORED)

    def _choose_positions(self, groups: Ids, lengths: np.ndarray, rng: ExampleRng) -> np.ndarray:
        """Choose groups of each text in random order until data.masked of its tokens are chosen, at least one.

        A long word that would exceed this number is skipped. Vectorized: all texts choose their first group together,
        then their second, and so on.
        """
        texts, quota = np.arange(len(lengths)), np.maximum(np.rint(self.data.masked * lengths), 1)
        text_of = np.repeat(texts, lengths)
        begins = np.flatnonzero(np.diff(text_of, prepend=-1) | np.diff(groups, prepend=-1))
        sizes, text_of = np.diff(begins, append=len(groups)), text_of[begins]
        order = np.lexsort((rng.uniform(np.bincount(text_of, minlength=len(lengths))), text_of))
        turn, last = (np.searchsorted(text_of, texts, side) for side in ("left", "right"))
        chosen, count = np.zeros(len(sizes), bool), np.zeros(len(lengths), int)
        while len(texts := texts[(turn[texts] < last[texts]) & (count[texts] < quota[texts])]):
            group = order[turn[texts]]
            fits = (count[texts] == 0) | (count[texts] + sizes[group] <= quota[texts])
            chosen[group[fits]] = True
            count[texts[fits]] += sizes[group[fits]]
            turn[texts] += 1
        return np.repeat(chosen, sizes)


class MaskedRow(NamedTuple):
    """A row with masked tokens."""

    tokens: Ids
    labels: Ids  # the original of masked tokens, IGNORED elsewhere
    token_types: Ids
    next_sentence: Ids  # one class, or none for single lines


class MaskedDataset(Dataset):
    """Lines, or pairs of lines, with other tokens masked in every epoch."""

    data: MaskData

    def __init__(self, examples: Source, masker: Masker, data: MaskData, train: Train, context: int | None) -> None:
        super().__init__(examples, data, train)
        self.masker, self.tokenizer = masker, masker.tokenizer
        self.control_tokens = 3 if data.next_sentence else 2  # START, and END after each text
        self.max_tokens = max_text_tokens(context, data, self.control_tokens)

    def encode(self, indices: list[int]) -> Iterable[EncodedExample]:
        """Tokens and groups of the line; with data.next_sentence, also of the next line, which may be empty."""
        lines = list(self.masker.encode_groups([self.examples.text(i, 0) for i in indices]))
        next_lines = [self._next_line(i) for i in indices] if self.data.next_sentence else []
        for i, (ids, groups) in zip(indices, lines, strict=True):
            if len(ids) > self.max_tokens:
                self.shortened.add(i)
            if not self.data.next_sentence:
                yield ids, groups
        if self.data.next_sentence:
            following = self.masker.encode_groups(next_lines)
            yield from (line + next_line for line, next_line in zip(lines, following, strict=True))

    def _next_line(self, index: int) -> str:
        """The line that follows in the same document, or ""."""
        if index + 1 >= len(self.examples) or not self.examples.adjacent(index):
            return ""
        return self.examples.text(index + 1, 0)

    def augment(self, items: list[EncodedExample], rng: ExampleRng) -> list[EncodedExample]:
        if not self.data.next_sentence:
            return self._rows([[item] for item in items], np.zeros(0, int), rng)
        replaced, partners = self._random_partners(rng, np.array([not len(item[2]) for item in items]))
        others = iter(self.encoded(partners[replaced]))
        seconds = [next(others)[:2] if other else item[2:] for item, other in zip(items, replaced, strict=True)]
        pairs = [[item[:2], second] for item, second in zip(items, seconds, strict=True)]
        return self._rows(pairs, np.where(replaced, NOT_NEXT, IS_NEXT), rng)

    def _random_partners(self, rng: ExampleRng, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which lines get a random partner instead of the next line, and the partners. Last lines always get one."""
        return last | (rng.branch(0).uniform() < 0.5), rng.branch(1).below(len(self.examples))

    def _rows(self, rows: list[list[EncodedExample]], classes: np.ndarray, rng: ExampleRng) -> list[EncodedExample]:
        """Each row as START and its texts, each followed by END."""
        rng = rng.branch(2).split(len(rows[0]))
        begins = iter(rng.branch(3).uniform().tolist())
        texts = [text for row in rows for text in self._windows(row, [next(begins) for _ in row])]
        masked, originals = self.masker.mask_texts(texts, rng)
        lengths = np.array([len(ids) for ids, _ in texts]).reshape(len(rows), -1)
        number = np.arange(lengths.size).reshape(lengths.shape)  # of each text: the number of ENDs before it
        places = np.arange(len(masked)) + np.repeat(number + np.arange(len(rows))[:, None] + 1, lengths.ravel())
        sizes = lengths + 1
        sizes[:, 0] += 1
        tokens, labels = np.full(sizes.sum(), self.tokenizer.end), np.full(sizes.sum(), IGNORED)
        tokens[places], labels[places] = masked, originals
        ends = sizes.sum(1).cumsum().tolist()
        tokens[[0, *ends[:-1]]] = self.tokenizer.start
        token_types = np.repeat(number - number[:, :1], sizes.ravel())
        next_sentence = classes.reshape(len(rows), -1)  # empty rows for single lines
        bounds = map(slice, [0, *ends[:-1]], ends)
        return [
            MaskedRow(tokens[span], labels[span], token_types[span], label)
            for span, label in zip(bounds, next_sentence, strict=True)
        ]

    def _windows(self, row: list[EncodedExample], chances: list[float]) -> Iterable[EncodedExample]:
        """The texts of a row; of a text that does not fit, a random window."""
        fitted = fit_lengths([len(ids) for ids, _ in row], self.max_tokens)
        for (ids, groups), most, chance in zip(row, fitted, chances, strict=True):
            begin = int(chance * (len(ids) - most + 1))
            yield ids[begin : begin + most], groups[begin : begin + most]

    def encode_all(self, seed: int) -> list[EncodedExample]:
        """All examples in order, masked once."""
        indices = np.arange(len(self.examples))
        return self.augment(self.encoded(indices), ExampleRng.of(seed, 0, indices))

    def sizes(self, item: EncodedExample) -> tuple[int, int]:
        """The size of the row, twice. With data.next_sentence: the tokens of the line, and the size of the row with
        the next line, or 1 without a next line.
        """
        if not self.data.next_sentence:
            return (size := min(len(item[0]), self.max_tokens) + self.control_tokens), size
        both = min(len(item[0]) + len(item[2]), self.max_tokens) + self.control_tokens
        return min(len(item[0]), self.max_tokens), both if len(item[2]) else 1

    def partners(self, epoch: int, examples: np.ndarray) -> np.ndarray:
        if not self.data.next_sentence:
            return super().partners(epoch, examples)
        return self._random_partners(ExampleRng.of(self.train.seed, epoch, examples), np.zeros(len(examples), bool))[1]

    def epoch_sizes(self, epoch: int, examples: np.ndarray, sizes: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """With data.next_sentence, the sizes of rows with the random partners of this epoch."""
        measured = sizes(examples)
        if not self.data.next_sentence:
            return measured
        rng, last = ExampleRng.of(self.train.seed, epoch, examples), measured[:, 1] == 1
        replaced, partners = self._random_partners(rng, last)
        random = np.minimum(measured[:, 0] + sizes(partners)[:, 0], self.max_tokens) + self.control_tokens
        return np.repeat(np.where(replaced, random, measured[:, 1])[:, None], 2, 1)

    def collate(self, items: Sequence[EncodedExample]) -> Batch:
        tokens, labels, token_types, next_sentence = zip(*items, strict=True)
        types = token_types if self.data.next_sentence else None
        inputs = {"text": pad_tokens(tokens, self.tokenizer.pad, types), "labels": pad_labels(labels)}
        if self.data.next_sentence:
            classes = torch.from_numpy(np.concatenate(next_sentence).astype(np.int64))
            inputs["next_sentence"] = Inputs("labels", classes)
        counts = {"next_sentence": len(items)} if self.data.next_sentence else {}
        return Batch(inputs, sum(int(np.count_nonzero(row != IGNORED)) for row in labels), counts=counts)

    def describe_shortened(self) -> str:
        return f"lines have more than {self.max_tokens} tokens, and each epoch reads a window of them"
