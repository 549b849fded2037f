"""Random sentence pairs with the lengths of news translation, and their batches."""

from itertools import islice, product
from string import ascii_lowercase

import numpy as np
import torch
from torch.nn import functional as F

from regard.config.schema import TokenizerConfig
from regard.data.collate import PairBatch, collate_pairs
from regard.data.examples import Examples
from regard.data.sampler import Step
from regard.processors.tokenizers import SPECIALS, TrainedTokenizer, train_tokenizer

MIDDLE, SPREAD = 3.2, 0.6  # mean and deviation of the log source length: about 29 tokens on average
RATIO = 0.17  # deviation of the log of target length / source length, as in Multi30k and Tatoeba
LEAST, MOST = 4, 120  # tokens, with END


class RandomPairs(Examples):
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

    def step(self, chosen: list[int]) -> Step:
        """One step with these pairs as a single padded batch."""
        batch = collate_pairs(
            [self.sources[i] for i in chosen], [self.targets[i] for i in chosen], self.text, self.text
        )
        batch = pad_to_multiple(batch, self.multiple, self.text.pad)
        return Step([batch], 0, sum(self.longer[i] for i in chosen), int(batch.target_valid.sum()), chosen)

    def grouped(self, sentences: int) -> list[Step]:
        """Steps of `sentences` pairs, grouped by source length as the Trainer of Hugging Face does."""
        steps, many = [], MEGABATCH * sentences
        for begin in range(0, len(self.sources), many):
            here = range(begin, min(begin + many, len(self.sources)))
            order = sorted(here, key=lambda i: -len(self.sources[i]))
            steps += [self.step(order[first : first + sentences]) for first in range(0, len(order), sentences)]
        return steps


def pad_to_multiple(batch: PairBatch, multiple: int, pad: int) -> PairBatch:
    """Pad both sides to a multiple."""
    names = "source", "source_valid", "target_in", "target_out", "target_valid"
    held = {name: getattr(batch, name) for name in names}
    fill = {name: False if tensor.dtype == torch.bool else pad for name, tensor in held.items()}
    wide = {name: F.pad(held[name], (0, -held[name].size(1) % multiple), value=fill[name]) for name in names}
    return PairBatch(**wide, target_index=wide["target_valid"].flatten().nonzero()[:, 0])


def spread(steps: list[Step], count: int) -> list[Step]:
    """Choose `count` steps of an epoch, evenly from the shortest to the longest sentences."""
    ordered = sorted(steps, key=lambda step: step.tokens / len(step.examples))
    indices = (np.arange(count) + 0.5) * len(ordered) / count
    return [ordered[int(index)] for index in indices]


def valid_tokens(steps: list[Step]) -> int:
    """Tokens of both sides without padding."""
    return sum(
        int(batch.source_valid.sum() + batch.target_valid.sum()) for step in steps for batch in step.micro_batches
    )


def padding(steps: list[Step]) -> float:
    """The fraction of padding in both sides."""
    total = sum(batch.source.numel() + batch.target_in.numel() for step in steps for batch in step.micro_batches)
    return 1 - valid_tokens(steps) / total
