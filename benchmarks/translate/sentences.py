"""Made sentence pairs with lengths as in news translation, and how they are cut into batches."""

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

MIDDLE, SPREAD = 3.2, 0.6  # of the logarithm of a source's length: about 29 tokens on average
RATIO = 0.17  # spread of the logarithm of target length / source length, as Multi30k and Tatoeba have it
LEAST, MOST = 4, 120  # tokens, END counted


class Sentences(Examples):
    """Random words. What they are makes no difference to speed; how many they are does."""

    name = "made sentences"

    def __init__(self, count: int, vocab: int, seed: int) -> None:
        chance, self.counts = np.random.default_rng(seed), {}
        source = np.exp(chance.normal(MIDDLE, SPREAD, count))
        target = source * np.exp(chance.normal(0.0, RATIO, count))
        known = np.array(words(vocab))
        self.pairs = [tuple(" ".join(chance.choice(known, each - 1)) for each in both) for both in zip(
            *(np.clip(side.round(), LEAST, MOST).astype(int) for side in (source, target)), strict=True
        )]  # fmt: skip

    def __len__(self) -> int:
        return len(self.pairs)

    def item(self, index: int) -> tuple[str, ...]:
        return self.pairs[index]

    def location(self, index: int) -> str:
        return f"made sentence {index}"

    def fingerprint(self) -> str:
        return "made"


def words(vocab: int) -> list[str]:
    """As many words as make a vocabulary of this size."""
    letters = ("".join(word) for word in product(ascii_lowercase, repeat=4))
    return list(islice(letters, vocab - len(SPECIALS)))


def tokenizer(vocab: int) -> TrainedTokenizer:
    """One number for each of the words."""
    return train_tokenizer(TokenizerConfig(kind="word", vocab=vocab), [" ".join(words(vocab))])


MEGABATCH = 50  # batches that Hugging Face's Trainer sorts together


class Encoded:
    """The sentences as numbers, for whoever cuts them into batches."""

    def __init__(self, examples: Sentences, text: TrainedTokenizer, multiple: int = 1) -> None:
        self.text, self.multiple = text, multiple  # of which padded lengths are; GPUs like 8
        self.sources, self.targets = (text.encode([both[side] for both in examples.pairs]) for side in (0, 1))
        self.longer = [max(len(x), len(y)) + 1 for x, y in zip(self.sources, self.targets, strict=True)]

    def update(self, chosen: list[int]) -> Step:
        """These sentences as one padded batch."""
        batch = collate_pairs(
            [self.sources[i] for i in chosen], [self.targets[i] for i in chosen], self.text, self.text
        )
        batch = widened(batch, self.multiple, self.text.pad)
        return Step([batch], 0, sum(self.longer[i] for i in chosen), int(batch.target_valid.sum()), chosen)

    def grouped(self, sentences: int) -> list[Step]:
        """Batches as Hugging Face's Trainer groups them by length: of the source, so many sentences in each."""
        updates, many = [], MEGABATCH * sentences
        for begin in range(0, len(self.sources), many):
            here = range(begin, min(begin + many, len(self.sources)))
            order = sorted(here, key=lambda i: -len(self.sources[i]))
            updates += [self.update(order[first : first + sentences]) for first in range(0, len(order), sentences)]
        return updates


def widened(batch: PairBatch, multiple: int, pad: int) -> PairBatch:
    """More padding, up to a multiple on both sides."""
    words = "source", "source_valid", "target_in", "target_out", "target_valid"
    held = {name: getattr(batch, name) for name in words}
    fill = {name: False if tensor.dtype == torch.bool else pad for name, tensor in held.items()}
    wide = {name: F.pad(held[name], (0, -held[name].size(1) % multiple), value=fill[name]) for name in words}
    return PairBatch(**wide, target_index=wide["target_valid"].flatten().nonzero()[:, 0])


def spread(updates: list[Step], count: int) -> list[Step]:
    """So many updates of an epoch, evenly from those with the shortest sentences to those with the longest."""
    ordered = sorted(updates, key=lambda update: update.tokens / len(update.examples))
    places = (np.arange(count) + 0.5) * len(ordered) / count
    return [ordered[int(place)] for place in places]


def real(updates: list[Step]) -> int:
    """Tokens of both sides that are no padding."""
    return sum(
        int(piece.source_valid.sum() + piece.target_valid.sum()) for each in updates for piece in each.micro_batches
    )


def padding(updates: list[Step]) -> float:
    """The share of both sides that is padding."""
    whole = sum(piece.source.numel() + piece.target_in.numel() for each in updates for piece in each.micro_batches)
    return 1 - real(updates) / whole
