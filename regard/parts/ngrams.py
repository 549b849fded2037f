"""Naive Bayes over n-grams of tokens, words and characters, beside an encoder: strong where labeled texts are few."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .inputs import Inputs

FACTORS = (0x9E3779B1, 0x85EBCA6B)  # odd numbers of 32 bits, which spread the hashes of neighboring ids
POWERS = [pow(FACTORS[0], place, 1 << 31) for place in range(16)]  # of the tokens of a word; later ones have the last
SMOOTHING = 2.0  # texts that are added to every count
MAX_CELLS = 1 << 22  # of the table of counts: many labels have fewer rows


TOKEN_LETTERS = 16  # characters of a token that character n-grams use
SECOND = 1 << 24  # added to the characters of the second text; more than any character


class Spelling(NamedTuple):
    """How tokens form words, and their characters, by token id."""

    stems: Tensor  # (vocab,) the token in words, the same after a space; -1: a space
    joins: Tensor  # (2, vocab) whether it joins the token before and the one after it
    letters: Tensor  # (vocab, TOKEN_LETTERS) numbers of its characters; -1: none


class NGramCounts(nn.Module):
    """Logits from log-count ratios, as in NBSVM (Wang and Manning 2012): their sum over a text, divided by √n, times
    a learned gain. With words or characters it is the mean over groups of n-grams, each with its own n.

    The counts are no parameters; `count` sets them from the training texts. Single tokens have rows of their own.
    Longer n-grams, and those of the second text of a pair, share the other rows by a hash. With `words`, words and
    pairs of words are n-grams, too; with `characters`, so many characters are. `set_spelling` tells what tokens spell.
    """

    counts: Tensor
    texts: Tensor
    totals: Tensor
    stems: Tensor
    joins: Tensor
    letters: Tensor

    def __init__(
        self, vocab: int, labels: int, order: int, buckets: int, words: bool = False, characters: int = 0
    ) -> None:
        super().__init__()
        self.vocab, self.order, self.words, self.characters = vocab, order, words, characters
        if words:
            self.register_buffer("stems", torch.arange(vocab))
            self.register_buffer("joins", torch.zeros(2, vocab, dtype=torch.bool))
        if characters:
            self.register_buffer("letters", torch.full((vocab, TOKEN_LETTERS), -1, dtype=torch.int32))
        self.buckets = max(min(buckets, MAX_CELLS // max(labels, 1) - vocab), 1)
        rows = vocab + self.buckets
        self.register_buffer("counts", torch.zeros(rows, labels))  # texts of each label that hold an n-gram
        self.register_buffer("texts", torch.zeros(rows))  # texts that hold it
        self.register_buffer("totals", torch.zeros(labels + 1))  # texts of each label, and all texts
        self.gain = nn.Parameter(torch.ones(1))

    @property
    def spells(self) -> bool:
        """True if it reads more than tokens: `set_spelling` must come before `count`."""
        return self.words or self.characters > 0

    def rows(self, text: Inputs) -> tuple[list[Tensor], list[Tensor]]:
        """The rows of the n-grams of each text, and which of them have no padding; (batch, n-grams) for each group.

        The groups are tokens, longer n-grams, words, pairs of words, and n-grams of characters.
        """
        tokens = text.values
        valid = torch.ones_like(tokens, dtype=torch.bool) if text.valid is None else text.valid
        types = torch.zeros_like(tokens) if text.token_types is None else text.token_types
        single = torch.where(types == 0, tokens, self._hashed(tokens * FACTORS[1] + types))
        longer, whole, codes, kept = [single[:, :0]], [valid[:, :0]], tokens + types * self.vocab, valid
        for size in range(2, min(self.order, tokens.size(1)) + 1):
            codes = (codes[:, :-1] * FACTORS[0] + tokens[:, size - 1 :] + 1) % (1 << 31)
            kept = kept[:, :-1] & valid[:, size - 1 :]
            longer.append(self._hashed(codes * FACTORS[1]))
            whole.append(kept)
        groups = [(single, valid), (torch.cat(longer, 1), torch.cat(whole, 1))]
        if self.words:
            groups += self._word_rows(tokens, valid, types, single)
        if self.characters:
            groups.append(self._character_rows(tokens, valid, types))
        return [rows for rows, _ in groups], [present for _, present in groups]

    def _hashed(self, codes: Tensor) -> Tensor:
        return self.vocab + (codes >> 7) % self.buckets

    def _word_rows(
        self, tokens: Tensor, valid: Tensor, types: Tensor, single: Tensor
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows of words at their last token, and of pairs of words. A word of one token has the row of the token."""
        joined = torch.zeros_like(valid)
        joined[:, 1:] = self.joins[0][tokens[:, 1:]] & self.joins[1][tokens[:, :-1]] & valid[:, 1:]
        places = torch.arange(tokens.size(1), device=tokens.device).expand_as(tokens)
        begins = torch.where(joined, 0, places).cummax(1).values  # the first token of the word of each token
        stems = self.stems[tokens]
        number = (stems >= 0).cumsum(1) - (stems >= 0).long()  # of the token in the text; lone spaces have none
        number = (number - number.gather(1, begins)).clamp(max=len(POWERS) - 1)
        terms = (stems + 1) * torch.tensor(POWERS, device=tokens.device)[number]
        sums = terms.cumsum(1)
        codes = (sums - (sums - terms).gather(1, begins) + types) % (1 << 31)
        last = valid & ~torch.cat([joined[:, 1:], torch.zeros_like(joined[:, :1])], 1)
        yield torch.where(begins < places, self._hashed(codes * FACTORS[1]), single), last
        if self.order > 1:
            before = codes.gather(1, (begins - 1).clamp(min=0))  # of the word before
            yield self._hashed((before * FACTORS[0] + codes) % (1 << 31) * FACTORS[1]), last & (begins > 0)

    def _character_rows(self, tokens: Tensor, valid: Tensor, types: Tensor) -> tuple[Tensor, Tensor]:
        """Rows of the n-grams of characters, which cross tokens and words."""
        letters = (self.letters[tokens].long() + types[..., None] * SECOND).flatten(1)
        present = ((self.letters[tokens] >= 0) & valid[..., None]).flatten(1)
        sizes = present.sum(1)
        joined = letters.new_zeros(len(letters), max(int(sizes.max()), self.characters))
        places = present.cumsum(1) - 1
        joined[present.nonzero()[:, 0], places[present]] = letters[present]
        codes = joined[:, : joined.size(1) - self.characters + 1]
        for place in range(1, self.characters):
            codes = (codes * FACTORS[0] + joined[:, place : place + codes.size(1)] + 1) % (1 << 31)
        ends = torch.arange(codes.size(1), device=tokens.device) + self.characters
        return self._hashed(codes * FACTORS[1]), ends[None] <= sizes[:, None]

    @torch.no_grad()
    def set_spelling(self, spelling: Spelling) -> None:
        if self.words:
            self.stems.copy_(spelling.stems)
            self.joins.copy_(spelling.joins)
        if self.characters:
            self.letters.copy_(spelling.letters)

    def forward(self, text: Inputs, labels: Tensor | None = None) -> Tensor:
        """Logits (batch, labels). `labels` (batch, labels) are those of training texts, which were counted.

        The counts of a text itself are subtracted: with them the encoder would have nothing left to learn.
        """
        groups, valid = self.rows(text)
        rows = torch.cat(groups, 1)
        counts, texts = self.counts[rows], self.texts[rows][..., None]
        if labels is not None:
            counts, texts = (counts - labels[:, None].to(counts.dtype)).clamp(min=0), (texts - 1).clamp(min=0)
        share = (self.totals[:-1] / self.totals[-1].clamp(min=1)).clamp(1e-6, 1 - 1e-6)
        prior = (share / (1 - share)).log()
        others = (texts - counts).clamp(min=0)
        ratios = ((counts + SMOOTHING * share) / (others + SMOOTHING * (1 - share))).log() - prior
        present = [mask.to(ratios.dtype) for mask in (valid if self.spells else [torch.cat(valid, 1)])]
        scaled = [mask / mask.sum(1, keepdim=True).clamp(min=1).sqrt() for mask in present]
        weights = torch.cat(scaled, 1) / len(present)
        return self.gain * (torch.einsum("bn,bnl->bl", weights, ratios) + prior)

    @torch.no_grad()
    def count(self, text: Inputs, labels: Tensor) -> None:
        """Add texts with their labels (batch, labels), 1 for each label that a text has."""
        rows, valid = (torch.cat(groups, 1) for groups in self.rows(text))
        size = len(self.texts)
        keys = torch.unique((torch.arange(len(rows))[:, None] * size + rows)[valid])  # an n-gram counts once in a text
        self.counts.index_add_(0, keys % size, labels[keys // size])
        self.texts.index_add_(0, keys % size, torch.ones(len(keys)))
        self.totals += torch.cat([labels.sum(0), torch.tensor([float(len(labels))])])
