"""Naive Bayes over n-grams of tokens and words, beside an encoder: strong where labeled texts are few."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from .inputs import Inputs

FACTORS = (0x9E3779B1, 0x85EBCA6B)  # odd numbers of 32 bits, which spread the hashes of neighboring ids
POWERS = [pow(FACTORS[0], place, 1 << 31) for place in range(16)]  # of the tokens of a word; later ones have the last
SMOOTHING = 2.0  # texts that are added to every count
MAX_CELLS = 1 << 22  # of the table of counts: many labels have fewer rows


class NGramCounts(nn.Module):
    """Logits from log-count ratios, as in NBSVM (Wang and Manning 2012): their sum over a text, divided by √n, times
    a learned gain. With `words` every group of n-grams has its own n.

    The counts are no parameters; `count` sets them from the training texts. Single tokens have rows of their own.
    Longer n-grams, and those of the second text of a pair, share the other rows by a hash. With `words`, words and
    pairs of words are n-grams, too. `set_words` tells which tokens form words.
    """

    counts: Tensor
    texts: Tensor
    totals: Tensor
    stems: Tensor
    joins: Tensor

    def __init__(self, vocab: int, labels: int, order: int, buckets: int, words: bool = False) -> None:
        super().__init__()
        self.vocab, self.order, self.words = vocab, order, words
        if words:
            self.register_buffer(
                "stems", torch.arange(vocab)
            )  # the token in words, the same after a space; -1: a space
            self.register_buffer("joins", torch.zeros(2, vocab, dtype=torch.bool))  # to the token before, to the next
        self.buckets = max(min(buckets, MAX_CELLS // max(labels, 1) - vocab), 1)
        rows = vocab + self.buckets
        self.register_buffer("counts", torch.zeros(rows, labels))  # texts of each label that hold an n-gram
        self.register_buffer("texts", torch.zeros(rows))  # texts that hold it
        self.register_buffer("totals", torch.zeros(labels + 1))  # texts of each label, and all texts
        self.gain = nn.Parameter(torch.ones(1))

    def rows(self, text: Inputs) -> tuple[list[Tensor], list[Tensor]]:
        """The rows of the n-grams of each text, and which of them have no padding; (batch, n-grams) for each group.

        The groups are tokens and longer n-grams; with `words` also words, and pairs of words.
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
        words = [*self._word_rows(tokens, valid, types, single)] if self.words else []
        rows = [single, torch.cat(longer, 1), *(each for each, _ in words)]
        return rows, [valid, torch.cat(whole, 1), *(each for _, each in words)]

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

    @torch.no_grad()
    def set_words(self, stems: Tensor, joins: Tensor) -> None:
        """Set the number of each token in words (vocab,), and whether it joins the one before and after (2, vocab)."""
        self.stems.copy_(stems)
        self.joins.copy_(joins)

    def forward(self, text: Inputs, own: Tensor | None = None) -> Tensor:
        """Logits (batch, labels). `own` (batch, labels) has the labels of training texts, which were counted.

        A text's own counts are left out: with them the encoder would have nothing left to learn.
        """
        groups, valid = self.rows(text)
        rows = torch.cat(groups, 1)
        counts, texts = self.counts[rows], self.texts[rows][..., None]
        if own is not None:
            counts, texts = (counts - own[:, None].to(counts.dtype)).clamp(min=0), (texts - 1).clamp(min=0)
        share = (self.totals[:-1] / self.totals[-1].clamp(min=1)).clamp(1e-6, 1 - 1e-6)
        prior = (share / (1 - share)).log()
        others = (texts - counts).clamp(min=0)
        ratios = ((counts + SMOOTHING * share) / (others + SMOOTHING * (1 - share))).log() - prior
        present = [each.to(ratios.dtype) for each in (valid if self.words else [torch.cat(valid, 1)])]
        weights = torch.cat([each / each.sum(1, keepdim=True).clamp(min=1).sqrt() for each in present], 1)
        return self.gain * (torch.einsum("bn,bnl->bl", weights, ratios) + prior)

    @torch.no_grad()
    def count(self, text: Inputs, own: Tensor) -> None:
        """Add texts with their labels (batch, labels), 1 for each label that a text has."""
        rows, valid = (torch.cat(each, 1) for each in self.rows(text))
        size = len(self.texts)
        keys = torch.unique((torch.arange(len(rows))[:, None] * size + rows)[valid])  # an n-gram counts once in a text
        self.counts.index_add_(0, keys % size, own[keys // size])
        self.texts.index_add_(0, keys % size, torch.ones(len(keys)))
        self.totals += torch.cat([own.sum(0), torch.tensor([float(len(own))])])
