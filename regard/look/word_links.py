"""Attention between words, and how often the strongest link of a head is a given one.

The attention of a word to another is summed over the tokens of the target and averaged over those of the source.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ..adapt.heads import HeadName, HeadSite, head_sites
from ..parts import Attention, Mask
from .record import AttentionRecorder

PATTERNS = ("previous", "next", "itself", "separator")
DIRECTIONS = ("to head", "to dependent")
ANY = "(any)"  # all relations together


@dataclass(frozen=True)
class WordRow:
    """A sentence as tokens; `spans` has the first token of every word and the one after its last."""

    tokens: list[int]
    spans: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class WordLinks:
    """Word pairs of a batch by row, source and target word, and the number of their relation."""

    rows: Tensor
    sources: Tensor
    targets: Tensor
    relations: Tensor


class WordBatch:
    """Rows of words, and the matrices between their words and tokens."""

    def __init__(self, rows: Sequence[WordRow], tokens: int, device: torch.device) -> None:
        words = max(len(row.spans) for row in rows)
        self.spread = torch.zeros(len(rows), tokens, words + 2)  # the last two are the tokens before and after
        self.valid = torch.zeros(len(rows), words, dtype=torch.bool)
        for number, row in enumerate(rows):
            for word, (begin, end) in enumerate(row.spans):
                self.spread[number, begin:end, word] = 1.0
            first, last = row.spans[0][0], row.spans[-1][1]
            self.spread[number, :first, words] = 1.0
            self.spread[number, last : len(row.tokens), words + 1] = 1.0
            self.valid[number, : len(row.spans)] = True
        self.spread, self.valid = self.spread.to(device), self.valid.to(device)
        word_columns = self.spread[:, :, :words]
        self.mean = (word_columns / word_columns.sum(1, keepdim=True).clamp(min=1)).transpose(
            1, 2
        )  # (rows, words, tokens)

    def word_weights(self, weights: Tensor) -> Tensor:
        """(rows, heads, tokens, tokens) -> (rows, heads, words, words + 2): the last two are START and END."""
        return self.mean[:, None] @ weights.float() @ self.spread[:, None]


def strongest_links(weights: Tensor, batch: WordBatch, causal: bool) -> tuple[Tensor, Tensor]:
    """From `word_weights`: the strongest link among all places, and among the other words, (rows, heads, words).

    A causal model has links to earlier words only.
    """
    words = batch.valid.size(1)
    padding = torch.cat([~batch.valid, batch.spread[:, :, words:].sum(1) == 0], 1)[:, None, None]
    best = weights.masked_fill(padding, -torch.inf).argmax(-1)
    place = torch.arange(words, device=weights.device)
    hidden = place[:, None] <= place if causal else place[:, None] == place
    others = weights[..., :words].masked_fill(padding[..., :words] | hidden, -torch.inf)
    return best, others.argmax(-1)


@dataclass
class RelationCounts:
    """How many sources have a relation, in one direction, and the distances of its targets."""

    sources: int = 0
    offsets: Counter[int] = field(default_factory=Counter)

    def best_offset(self) -> int:
        """The most frequent distance; of equal ones the shortest."""
        return min(self.offsets, key=lambda offset: (-self.offsets[offset], abs(offset), offset), default=0)

    def share_at(self, offset: int) -> float:
        """The share of the sources whose target is at this distance."""
        return self.offsets[offset] / self.sources if self.sources else 0.0


class WordRecorder(AttentionRecorder):
    """Passes the weights between words to `take`, one attention module at a time. It stores no weights itself."""

    batch: WordBatch  # that the model reads next

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.sites: dict[str, HeadSite] = {path: site for site in head_sites(model) for path in site.parts}

    def __call__(self, attention: Attention, q: Tensor, k: Tensor, mask: Mask, bias: Tensor | None) -> None:
        path, tokens = self.paths.get(attention), self.batch.spread.size(1)
        if path is None or path not in self.sites or q.size(2) != tokens:  # a few global queries only
            return
        super().__call__(attention, q, k, mask, bias)
        weights = self.maps.pop(path)
        if weights.size(-1) == tokens:
            self.take(path, self.batch.word_weights(weights))

    def take(self, path: str, weights: Tensor) -> None:
        """`weights` is (rows, heads, words, words + 2), see `WordBatch.word_weights`."""
        raise NotImplementedError


class WordWeights(WordRecorder):
    """Keeps the weights between the words of one text, by head."""

    def __init__(self, model: nn.Module, batch: WordBatch) -> None:
        super().__init__(model)
        self.batch, self.by_head = batch, dict[HeadName, Tensor]()

    def take(self, path: str, weights: Tensor) -> None:
        self.by_head |= dict(zip(self.sites[path].heads, weights[0].cpu(), strict=True))


class LinkCounter(WordRecorder):
    """Counts the strongest links of every head, batch by batch."""

    def __init__(self, model: nn.Module, relations: Sequence[str], causal: bool) -> None:
        super().__init__(model)
        self.relations, self.causal, self.words = [ANY, *relations], causal, 0
        self.patterns: dict[str, Tensor] = {}  # by path: (heads, PATTERNS)
        self.hits: dict[str, Tensor] = {}  # by path: (heads, DIRECTIONS, relations)
        self.counts = [[RelationCounts() for _ in self.relations] for _ in DIRECTIONS]

    def begin(self, batch: WordBatch, links: WordLinks, separators: Tensor) -> None:
        """The batch that the model reads next. `links` run from a word to its head; `separators` (rows, words)."""
        if self.causal:
            up = links.targets < links.sources
            directions = [_select(links, up), _select(_reverse(links), ~up)]
        else:
            directions = [links, _reverse(links)]
        self.batch, self.separators = batch, separators
        self.directions = [_with_any(direction) for direction in directions]
        self.words += int(batch.valid.sum())
        for counts, direction in zip(self.counts, self.directions, strict=True):
            self._count(counts, direction)

    def _count(self, counts: list[RelationCounts], links: WordLinks) -> None:
        sources = {*zip(links.rows.tolist(), links.sources.tolist(), links.relations.tolist(), strict=True)}
        for _, _, relation in sources:
            counts[relation].sources += 1
        offsets = (links.targets - links.sources).tolist()
        for offset, relation in zip(offsets, links.relations.tolist(), strict=True):
            counts[relation].offsets[offset] += 1

    def take(self, path: str, weights: Tensor) -> None:
        best, others = strongest_links(weights, self.batch, self.causal)
        self._add(self.patterns, path, self._pattern_counts(best))
        self._add(self.hits, path, torch.stack([self._hits(others, direction) for direction in self.directions], 1))

    def _add(self, totals: dict[str, Tensor], path: str, counts: Tensor) -> None:
        totals[path] = totals[path] + counts if path in totals else counts

    def _pattern_counts(self, best: Tensor) -> Tensor:
        """(heads, PATTERNS)"""
        words = best.size(-1)
        place = torch.arange(words, device=best.device)
        separators = torch.cat([self.separators, self.separators.new_ones(len(self.separators), 2)], 1)
        at_separator = separators[:, None].expand(-1, best.size(1), -1).gather(2, best)
        patterns = torch.stack([best == place - 1, best == place + 1, best == place, at_separator], -1)
        return (patterns & self.batch.valid[:, None, :, None]).sum((0, 2)).double()

    def _hits(self, others: Tensor, links: WordLinks) -> Tensor:
        """(heads, relations): the sources whose strongest link among the other words has the relation."""
        hit = others[links.rows, :, links.sources] == links.targets[:, None]  # (links, heads)
        total = torch.zeros(len(self.relations), others.size(1), dtype=torch.float64, device=others.device)
        return total.index_add_(0, links.relations, hit.double()).T

    def head_patterns(self) -> dict[HeadName, list[float]]:
        """The share of words whose strongest link is each of PATTERNS."""
        return {
            head: (row / max(self.words, 1)).tolist()
            for path, counts in self.patterns.items()
            for head, row in zip(self.sites[path].heads, counts, strict=True)
        }

    def accuracies(self, direction: int) -> dict[HeadName, list[float]]:
        """For every head and relation, the share of sources whose strongest link has the relation."""
        sources = torch.tensor([max(counts.sources, 1) for counts in self.counts[direction]])
        return {
            head: (row / sources).tolist()
            for path, hits in self.hits.items()
            for head, row in zip(self.sites[path].heads, hits[:, direction].cpu(), strict=True)
        }


def _reverse(links: WordLinks) -> WordLinks:
    return WordLinks(links.rows, links.targets, links.sources, links.relations)


def _select(links: WordLinks, chosen: Tensor) -> WordLinks:
    return WordLinks(*(field[chosen] for field in (links.rows, links.sources, links.targets, links.relations)))


def _with_any(links: WordLinks) -> WordLinks:
    """The links, and all of them again under the relation 0, which means any relation."""
    rows, sources, targets = (torch.cat([field, field]) for field in (links.rows, links.sources, links.targets))
    return WordLinks(rows, sources, targets, torch.cat([torch.zeros_like(links.relations), links.relations]))
