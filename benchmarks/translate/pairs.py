"""Random sentence pairs with the lengths of news translation, and their batches."""

from dataclasses import replace
from itertools import islice, product
from string import ascii_lowercase

import numpy as np
from torch.nn import functional as F

from regard.config.data.texts import TokenizerConfig
from regard.data.batch import Batch
from regard.data.datasets.collate import collate_pairs
from regard.data.loading.loader import LoadedStep
from regard.data.source import Source
from regard.parts.inputs import Inputs
from regard.processors.text.tokenizers import SPECIALS, TrainedTokenizer, train_tokenizer

MIDDLE, SPREAD = 3.2, 0.6  # mean and deviation of the log source length: about 29 tokens on average
RATIO = 0.17  # deviation of the log of target length / source length, as in Multi30k and Tatoeba
LEAST, MOST = 4, 120  # tokens, with END


class RandomPairs(Source):
    """Random words: only their number matters for speed."""

    name = "random sentences"

    def __init__(self, count: int, vocab: int, seed: int) -> None:
        rng, self.counts = np.random.default_rng(seed), {}
        source = np.exp(rng.normal(MIDDLE, SPREAD, count))
        target = source * np.exp(rng.normal(0.0, RATIO, count))
        known = np.array(words(vocab))
        self.pairs = [tuple(" ".join(rng.choice(known, each - 1)) for each in both) for both in zip(
            *(np.clip(side.round(), LEAST, MOST).astype(int) for side in (source, target)), strict=True
        )]  # fmt: skip

    def __len__(self) -> int:
        return len(self.pairs)

    def item(self, index: int) -> tuple[str, ...]:
        return self.pairs[index]

    def location(self, index: int) -> str:
        return f"random sentence {index}"

    def fingerprint(self) -> str:
        return "random"


def words(vocab: int) -> list[str]:
    """The words of a vocabulary of this size."""
    letters = ("".join(word) for word in product(ascii_lowercase, repeat=4))
    return list(islice(letters, vocab - len(SPECIALS)))


def tokenizer(vocab: int) -> TrainedTokenizer:
    """A tokenizer with one token per word."""
    return train_tokenizer(TokenizerConfig(kind="word", vocab=vocab), [" ".join(words(vocab))])


MEGABATCH = 50  # batches that the Trainer of Hugging Face sorts together


class EncodedPairs:
    """The tokenized pairs, and batches of them."""

    def __init__(self, examples: RandomPairs, text: TrainedTokenizer, multiple: int = 1) -> None:
        self.text, self.multiple = text, multiple  # padded lengths are multiples of it; 8 is fast on GPUs
        self.sources, self.targets = (text.encode([both[side] for both in examples.pairs]) for side in (0, 1))
        self.longer = [max(len(x), len(y)) + 1 for x, y in zip(self.sources, self.targets, strict=True)]

    def step(self, chosen: list[int]) -> LoadedStep:
        """One step with these pairs as a single padded batch."""
        batch = collate_pairs(
            [self.sources[i] for i in chosen], [self.targets[i] for i in chosen], self.text, self.text
        )
        batch = pad_to_multiple(batch, self.multiple, self.text.pad)
        return LoadedStep([batch], 0, sum(self.longer[i] for i in chosen), chosen)

    def grouped(self, sentences: int) -> list[LoadedStep]:
        """Steps of `sentences` pairs, grouped by source length as the Trainer of Hugging Face does."""
        steps, many = [], MEGABATCH * sentences
        for begin in range(0, len(self.sources), many):
            here = range(begin, min(begin + many, len(self.sources)))
            order = sorted(here, key=lambda i: -len(self.sources[i]))
            steps += [self.step(order[first : first + sentences]) for first in range(0, len(order), sentences)]
        return steps


def pad_to_multiple(batch: Batch, multiple: int, pad: int) -> Batch:
    """Pad both sides to a multiple."""
    source, target, labels = batch["source"], batch["target"], batch["labels"]
    tokens = target.values.size(1)
    wide = [F.pad(side.values, (0, -side.values.size(1) % multiple), value=pad) for side in (source, target)]
    assert source.valid is not None and labels.positions is not None
    positions = labels.positions // tokens * wide[1].size(1) + labels.positions % tokens
    inputs = {
        "source": replace(source, values=wide[0], valid=F.pad(source.valid, (0, -source.valid.size(1) % multiple))),
        "target": replace(target, values=wide[1]),
        "labels": replace(labels, positions=positions),
    }
    return replace(batch, inputs=inputs)


def spread(steps: list[LoadedStep], count: int) -> list[LoadedStep]:
    """Choose `count` steps of an epoch, evenly from the shortest to the longest sentences."""
    ordered = sorted(steps, key=lambda step: step.tokens / len(step.examples))
    indices = (np.arange(count) + 0.5) * len(ordered) / count
    return [ordered[int(index)] for index in indices]


def valid_tokens(steps: list[LoadedStep]) -> int:
    """Tokens of both sides without padding."""
    return sum(valid_sources(batch["source"]) + batch.count for step in steps for batch in step.micro_batches)


def valid_sources(source: Inputs) -> int:
    """Tokens without padding, in padded or packed rows."""
    if source.segments is not None:
        return int((source.segments >= 0).sum())
    assert source.valid is not None
    return int(source.valid.sum())


def padding(steps: list[LoadedStep]) -> float:
    """The fraction of padding in both sides."""
    batches = [batch for step in steps for batch in step.micro_batches]
    total = sum(batch["source"].values.numel() + batch["target"].values.numel() for batch in batches)
    return 1 - valid_tokens(steps) / total
