"""Naive Bayes over n-grams of tokens, words and characters, beside an encoder: strong where labeled texts are few."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .inputs import Inputs

FACTORS = (0x9E3779B1, 0x85EBCA6B)  # odd numbers of 32 bits, which spread the hashes of neighboring ids
WIDE_FACTOR = 0x5851F42D4C957F2D  # an odd number of 63 bits
POWERS = [pow(FACTORS[0], place, 1 << 31) for place in range(16)]  # of the tokens of a word; later ones have the last
SMOOTHING = 2.0  # texts that are added to every count
MAX_CELLS = 1 << 22  # of the table of counts: many labels have fewer rows
TOKEN_LETTERS = 16  # characters of a token that character n-grams use
SPACE = 0x2581  # how characters of tokens mark a space
SECOND = 1 << 24  # added to the characters of the second text; more than any character


class Spelling(NamedTuple):
    """How tokens form words, and their characters, by token id."""

    stems: Tensor  # (vocab,) the token in words, the same after a space; -1: a space
    joins: Tensor  # (2, vocab) whether it joins the token before and the one after it
    letters: Tensor  # (vocab, TOKEN_LETTERS) numbers of its characters; -1: none


class WordPlaces(NamedTuple):
    """The words of texts; all fields are (batch, tokens)."""

    begins: Tensor  # the first token of the word that a token belongs to
    codes: Tensor  # of the word up to this token
    last: Tensor  # whether it is the last token of its word


class NGramTerms(NamedTuple):
    """What each n-gram of texts adds to the logits."""

    kinds: tuple[str, ...]  # of all n-grams: token, tokens, word, words, characters, missing word
    values: Tensor  # (batch, n-grams, labels); 0 for padding
    first: Tensor  # (batch, n-grams) the first token of each
    last: Tensor
    constant: Tensor  # (labels,) what a text without n-grams has

    @property
    def logits(self) -> Tensor:
        """(batch, labels)"""
        return self.values.sum(1) + self.constant

    def by_token(self, tokens: int) -> Tensor:
        """(batch, tokens, labels): each n-gram divided evenly among the tokens that it spans."""
        last = torch.maximum(self.first, self.last)  # those of padding have any places
        shares = (self.values / (last - self.first + 1)[..., None]).double()
        steps = shares.new_zeros(len(shares), tokens + 1, shares.size(2))
        index = torch.arange(len(shares), device=shares.device)[:, None].expand_as(self.first)
        steps.index_put_((index, self.first), shares, accumulate=True)
        steps.index_put_((index, last + 1), -shares, accumulate=True)
        return steps.cumsum(1)[:, :tokens]


class NGramCounts(nn.Module):
    """Logits from log-count ratios, as in NBSVM (Wang and Manning 2012): their sum over a text, divided by √n, times
    a learned gain. With words or characters it is the mean over groups of n-grams, each with its own n.

    The counts are no parameters; `count` sets them from the training texts. Single tokens have rows of their own.
    Longer n-grams, and those of the second text of a pair, share the other rows by a hash. With `words`, words and
    pairs of words are n-grams, too; with `characters`, so many characters are. `set_spelling` tells what tokens spell.
    With `overlap`, words of the second text that the first one lacks have learned weights.
    """

    counts: Tensor
    texts: Tensor
    totals: Tensor
    stems: Tensor
    joins: Tensor
    letters: Tensor
    overlap: nn.Parameter | None

    def __init__(
        self,
        vocab: int,
        labels: int,
        order: int,
        buckets: int,
        words: bool = False,
        characters: int = 0,
        overlap: bool = False,
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
        self.overlap = nn.Parameter(torch.zeros(2, labels)) if overlap else None

    @property
    def spells(self) -> bool:
        """True if it reads more than tokens: `set_spelling` must come before `count`."""
        return self.words or self.characters > 0

    def rows(self, text: Inputs) -> tuple[list[Tensor], list[Tensor]]:
        """The rows of the n-grams of each text, and which of them have no padding; (batch, n-grams) for each group.

        The groups are tokens, longer n-grams, words, pairs of words, and n-grams of characters.
        """
        tokens, valid, types = token_parts(text)
        single = torch.where(types == 0, tokens, self._hashed(tokens * FACTORS[1] + types))
        longer, whole, codes, kept = [single[:, :0]], [valid[:, :0]], tokens + types * self.vocab, valid
        for size in range(2, min(self.order, tokens.size(1)) + 1):
            codes = (codes[:, :-1] * FACTORS[0] + tokens[:, size - 1 :] + 1) % (1 << 31)
            kept = kept[:, :-1] & valid[:, size - 1 :]
            longer.append(self._hashed(codes * FACTORS[1]))
            whole.append(kept)
        groups = [(single, valid), (torch.cat(longer, 1), torch.cat(whole, 1))]
        if self.words:
            groups += self._word_rows(self._words(text), types, single)
        if self.characters:
            groups.append(self._character_rows(text))
        return [rows for rows, _ in groups], [present for _, present in groups]

    def spans(self, text: Inputs) -> list[tuple[Tensor, Tensor]]:
        """The first and the last token of each n-gram, (batch, n-grams) for each group of `rows`."""
        tokens, _, _ = token_parts(text)
        places = torch.arange(tokens.size(1), device=tokens.device).expand_as(tokens)
        longer = [places[:, :0]], [places[:, :0]]
        for size in range(2, min(self.order, tokens.size(1)) + 1):
            longer[0].append(places[:, : 1 - size])
            longer[1].append(places[:, size - 1 :])
        spans = [(places, places), (torch.cat(longer[0], 1), torch.cat(longer[1], 1))]
        if self.words:
            begins = self._words(text).begins
            spans.append((begins, places))
            if self.order > 1:
                spans.append((begins.gather(1, (begins - 1).clamp(min=0)), places))
        if self.characters:
            owners = self._in_one_row(text, places[..., None].expand(-1, -1, TOKEN_LETTERS))[0]
            most = owners.size(1) - self.characters + 1
            spans.append((owners[:, :most], owners[:, self.characters - 1 :]))
        return spans

    def _hashed(self, codes: Tensor) -> Tensor:
        return self.vocab + (codes >> 7) % self.buckets

    def _words(self, text: Inputs) -> "WordPlaces":
        """The words of texts."""
        tokens, valid, _ = token_parts(text)
        joined = torch.zeros_like(valid)
        joined[:, 1:] = self.joins[0][tokens[:, 1:]] & self.joins[1][tokens[:, :-1]] & valid[:, 1:]
        places = torch.arange(tokens.size(1), device=tokens.device).expand_as(tokens)
        begins = torch.where(joined, 0, places).cummax(1).values
        stems = self.stems[tokens]
        number = (stems >= 0).cumsum(1) - (stems >= 0).long()  # of the token in the text; lone spaces have none
        number = (number - number.gather(1, begins)).clamp(max=len(POWERS) - 1)
        terms = (stems + 1) * torch.tensor(POWERS, device=tokens.device)[number]
        sums = terms.cumsum(1)
        codes = sums - (sums - terms).gather(1, begins)
        return WordPlaces(begins, codes, valid & ~torch.cat([joined[:, 1:], torch.zeros_like(joined[:, :1])], 1))

    def _word_rows(self, words: "WordPlaces", types: Tensor, single: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows of words at their last token, and of pairs of words. A word of one token has the row of the token."""
        begins, last, codes = words.begins, words.last, (words.codes + types) % (1 << 31)
        places = torch.arange(last.size(1), device=last.device)
        yield torch.where(begins < places, self._hashed(codes * FACTORS[1]), single), last
        if self.order > 1:
            before = codes.gather(1, (begins - 1).clamp(min=0))  # of the word before
            yield self._hashed((before * FACTORS[0] + codes) % (1 << 31) * FACTORS[1]), last & (begins > 0)

    def _in_one_row(self, text: Inputs, values: Tensor) -> tuple[Tensor, Tensor]:
        """The values (batch, tokens, TOKEN_LETTERS) of all characters side by side, and how many each text has."""
        tokens, valid, _ = token_parts(text)
        present = ((self.letters[tokens] >= 0) & valid[..., None]).flatten(1)
        sizes = present.sum(1)
        joined = values.new_zeros(len(values), max(int(sizes.max()), self.characters))
        joined[present.nonzero()[:, 0], (present.cumsum(1) - 1)[present]] = values.flatten(1)[present]
        return joined, sizes

    def _character_rows(self, text: Inputs) -> tuple[Tensor, Tensor]:
        """Rows of the n-grams of characters, which cross tokens and words."""
        tokens, _, types = token_parts(text)
        joined, sizes = self._in_one_row(text, self.letters[tokens].long() + types[..., None] * SECOND)
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
        """Logits (batch, labels). `labels` (batch, labels) are those of training texts, which were counted."""
        logits = self.gain * self.evidence(text, labels)
        if self.overlap is not None:
            logits = logits + self.missing_words(text)[1] @ self.overlap
        return logits

    def evidence(self, text: Inputs, labels: Tensor | None = None) -> Tensor:
        """The logits of naive Bayes, without the gain.

        The counts of a training text itself are subtracted: with them the encoder would have nothing left to learn.
        """
        return torch.einsum("bn,bnl->bl", *self._terms(text, labels)) + self._prior()

    def missing_words(self, text: Inputs) -> tuple[Tensor, Tensor]:
        """Words of the second text that the first one lacks, marked at their last token (batch, tokens), and their
        features (batch, 2): whether there is one, and their share of its words.
        """
        _, _, types = token_parts(text)
        words = self._words(text)
        first, second = words.last & (types == 0), words.last & (types != 0)
        codes = self._spelled(text, words.begins)
        known = ((codes[:, :, None] == codes[:, None]) & first[:, None]).any(2)
        missing = second & ~known
        share = missing.sum(1) / second.sum(1).clamp(min=1)
        return missing, torch.stack([missing.any(1), share], 1).to(self.gain.dtype)

    def _spelled(self, text: Inputs, begins: Tensor) -> Tensor:
        """Codes of words by their characters up to each token, (batch, tokens): a word may be tokenized differently at
        the begin of a text.
        """
        letters = self.letters[text.values].long()
        counted = (letters >= 0) & (letters != SPACE)
        sizes = counted.sum(2)
        ends = sizes.cumsum(1)
        before = ends - sizes - (ends - sizes).gather(1, begins)  # characters of the word before the token
        places = before[..., None] + counted.cumsum(2)
        powers = letters.new_full((int(places.max()) + 1,), WIDE_FACTOR).cumprod(0)  # modulo 2⁶⁴
        terms = ((letters + 1) * powers[places] * counted).sum(2)
        sums = terms.cumsum(1)
        return sums - (sums - terms).gather(1, begins)

    @torch.no_grad()
    def terms(self, text: Inputs) -> NGramTerms:
        """What each n-gram of the texts adds to the logits. The sum of all is exactly the logit."""
        weights, ratios = self._terms(text)
        spans, values = self.spans(text), [self.gain * weights[..., None] * ratios]
        kinds = [kind for kind, (first, _) in zip(self.kinds, spans, strict=True) for _ in range(first.size(1))]
        if self.overlap is not None:
            missing, features = self.missing_words(text)
            shares = missing / missing.sum(1, keepdim=True).clamp(min=1)
            values.append(shares[..., None] * (features @ self.overlap)[:, None])
            places = torch.arange(missing.size(1), device=missing.device).expand_as(missing)
            spans.append((self._words(text).begins, places))
            kinds += ["missing word"] * missing.size(1)
        first, last = (torch.cat(ends, 1) for ends in zip(*spans, strict=True))
        return NGramTerms(tuple(kinds), torch.cat(values, 1), first, last, self.constant())

    @property
    def kinds(self) -> list[str]:
        """The names of the groups of `rows`."""
        words = ["word", "words"][: min(self.order, 2)] if self.words else []
        return ["token", "tokens", *words, *(["characters"] if self.characters else [])]

    def constant(self) -> Tensor:
        """(labels,) the logits of a text without n-grams."""
        return self.gain * self._prior()

    def _share(self) -> Tensor:
        return (self.totals[:-1] / self.totals[-1].clamp(min=1)).clamp(1e-6, 1 - 1e-6)

    def _prior(self) -> Tensor:
        share = self._share()
        return (share / (1 - share)).log()

    def _terms(self, text: Inputs, labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The weights of n-grams (batch, n-grams) and their ratios (batch, n-grams, labels)."""
        groups, valid = self.rows(text)
        rows = torch.cat(groups, 1)
        counts, texts = self.counts[rows], self.texts[rows][..., None]
        if labels is not None:
            counts, texts = (counts - labels[:, None].to(counts.dtype)).clamp(min=0), (texts - 1).clamp(min=0)
        share, prior = self._share(), self._prior()
        others = (texts - counts).clamp(min=0)
        ratios = ((counts + SMOOTHING * share) / (others + SMOOTHING * (1 - share))).log() - prior
        present = [mask.to(ratios.dtype) for mask in (valid if self.spells else [torch.cat(valid, 1)])]
        scaled = [mask / mask.sum(1, keepdim=True).clamp(min=1).sqrt() for mask in present]
        return torch.cat(scaled, 1) / len(present), ratios

    @torch.no_grad()
    def count(self, text: Inputs, labels: Tensor) -> None:
        """Add texts with their labels (batch, labels), 1 for each label that a text has."""
        rows, valid = (torch.cat(groups, 1) for groups in self.rows(text))
        size = len(self.texts)
        keys = torch.unique((torch.arange(len(rows))[:, None] * size + rows)[valid])  # an n-gram counts once in a text
        self.counts.index_add_(0, keys % size, labels[keys // size])
        self.texts.index_add_(0, keys % size, torch.ones(len(keys)))
        self.totals += torch.cat([labels.sum(0), torch.tensor([float(len(labels))])])


def token_parts(text: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """The tokens of texts, which of them have no padding, and to which text of a pair each belongs; (batch, tokens)."""
    tokens = text.values
    valid = torch.ones_like(tokens, dtype=torch.bool) if text.valid is None else text.valid
    return tokens, valid, torch.zeros_like(tokens) if text.token_types is None else text.token_types
