"""Naive Bayes over n-grams of tokens, beside an encoder: strong where labeled texts are few."""

import torch
from torch import Tensor, nn

from .inputs import Inputs

FACTORS = (0x9E3779B1, 0x85EBCA6B)  # odd numbers of 32 bits, which spread the hashes of neighboring ids
SMOOTHING = 2.0  # texts that are added to every count
MAX_CELLS = 1 << 22  # of the table of counts: many labels have fewer rows


class NGramCounts(nn.Module):
    """Logits from log-count ratios, as in NBSVM (Wang and Manning 2012): their sum over a text, divided by √n, times
    a learned gain.

    The counts are no parameters; `count` sets them from the training texts. Single tokens have rows of their own.
    Longer n-grams, and those of the second text of a pair, share the other rows by a hash.
    """

    counts: Tensor
    texts: Tensor
    totals: Tensor

    def __init__(self, vocab: int, labels: int, order: int, buckets: int) -> None:
        super().__init__()
        self.vocab, self.order = vocab, order
        self.buckets = max(min(buckets, MAX_CELLS // max(labels, 1) - vocab), 1)
        rows = vocab + self.buckets
        self.register_buffer("counts", torch.zeros(rows, labels))  # texts of each label that hold an n-gram
        self.register_buffer("texts", torch.zeros(rows))  # texts that hold it
        self.register_buffer("totals", torch.zeros(labels + 1))  # texts of each label, and all texts
        self.gain = nn.Parameter(torch.ones(1))

    def rows(self, text: Inputs) -> tuple[Tensor, Tensor]:
        """The rows of the n-grams of each text, (batch, n-grams), and which of them have no padding."""
        tokens = text.values
        valid = torch.ones_like(tokens, dtype=torch.bool) if text.valid is None else text.valid
        types = torch.zeros_like(tokens) if text.token_types is None else text.token_types
        second = self.vocab + (tokens * FACTORS[1] + types >> 7) % self.buckets
        rows, whole, codes = [torch.where(types == 0, tokens, second)], [valid], tokens + types * self.vocab
        for size in range(2, min(self.order, tokens.size(1)) + 1):
            codes = (codes[:, :-1] * FACTORS[0] + tokens[:, size - 1 :] + 1) % (1 << 31)
            rows.append(self.vocab + (codes * FACTORS[1] >> 7) % self.buckets)
            whole.append(whole[-1][:, :-1] & valid[:, size - 1 :])
        return torch.cat(rows, 1), torch.cat(whole, 1)

    def forward(self, text: Inputs, own: Tensor | None = None) -> Tensor:
        """Logits (batch, labels). `own` (batch, labels) has the labels of training texts, which were counted.

        A text's own counts are left out: with them the encoder would have nothing left to learn.
        """
        rows, valid = self.rows(text)
        counts, texts = self.counts[rows], self.texts[rows][..., None]
        if own is not None:
            counts, texts = (counts - own[:, None].to(counts.dtype)).clamp(min=0), (texts - 1).clamp(min=0)
        share = (self.totals[:-1] / self.totals[-1].clamp(min=1)).clamp(1e-6, 1 - 1e-6)
        prior = (share / (1 - share)).log()
        others = (texts - counts).clamp(min=0)
        ratios = ((counts + SMOOTHING * share) / (others + SMOOTHING * (1 - share))).log() - prior
        weights = valid.to(ratios.dtype)
        weights = weights / weights.sum(1, keepdim=True).clamp(min=1).sqrt()
        return self.gain * (torch.einsum("bn,bnl->bl", weights, ratios) + prior)

    @torch.no_grad()
    def count(self, text: Inputs, own: Tensor) -> None:
        """Add texts with their labels (batch, labels), 1 for each label that a text has."""
        rows, valid = self.rows(text)
        size = len(self.texts)
        keys = torch.unique((torch.arange(len(rows))[:, None] * size + rows)[valid])  # an n-gram counts once in a text
        self.counts.index_add_(0, keys % size, own[keys // size])
        self.texts.index_add_(0, keys % size, torch.ones(len(keys)))
        self.totals += torch.cat([own.sum(0), torch.tensor([float(len(own))])])
