"""IBM model 2 with the diagonal prior of fast_align (Dyer, Chahuneau and Smith, 2013), trained by EM.

p(target | source) is a product over the target words. Each aligns to NULL with probability `null`, or to source word i
with a probability that falls off exponentially with its distance from the diagonal. The word then has the probability
t(target word | source word), from a table. A *cell* is one target word with one of its source words, or with NULL. All
cells of a block of target words are computed at once; memory holds only word numbers and the sparse table.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .links import Links, Symmetrization, symmetrize

Numbers: TypeAlias = NDArray[Any]

CELLS = 1 << 20  # of a block
MIN_TENSION, MAX_TENSION = 0.1, 14.0


@dataclass(frozen=True)
class WordIds:
    """The words of one language, as numbers from 1; 0 is NULL."""

    words: Numbers  # of all sentences
    ends: Numbers  # of each sentence in `words`, after a first 0
    size: int  # of the vocabulary, with NULL

    @property
    def lengths(self) -> Numbers:
        return np.diff(self.ends)


def read_word_ids(pairs: Iterable[tuple[str, str]]) -> tuple[WordIds, WordIds]:
    """The white-space separated words of sentence pairs."""
    vocabularies: tuple[dict[str, int], dict[str, int]] = {}, {}
    words, ends = (array("i"), array("i")), (array("q", [0]), array("q", [0]))
    for pair in pairs:
        for text, ids, numbers, stops in zip(pair, vocabularies, words, ends, strict=True):
            numbers.extend([ids.setdefault(word, len(ids) + 1) for word in text.split()])
            stops.append(len(numbers))
    source, target = (
        WordIds(np.array(numbers, np.int32), np.array(stops, np.int64), len(ids) + 1)
        for numbers, stops, ids in zip(words, ends, vocabularies, strict=True)
    )
    return source, target


@dataclass(frozen=True)
class Cells:
    """The cells of a block of target words, those of a word side by side, NULL first."""

    starts: Numbers  # of each target word
    word: Numbers  # the target word of each cell, from 0 in the block
    place: Numbers  # the source word of each cell in its sentence, from 1; 0 is NULL
    key: Numbers  # source word and target word as one number
    feature: Numbers  # minus the distance from the diagonal, between -1 and 0

    def sum(self, values: Numbers) -> Numbers:
        """The sums over the cells of every target word."""
        sums: Numbers = np.add.reduceat(values, self.starts)
        return sums


@dataclass
class DiagonalAligner:
    """Aligns every target word with a source word or NULL."""

    source: WordIds
    target: WordIds
    null: float = 0.08  # the prior probability of NULL
    tension: float = 4.0  # how sharply the prior falls off; EM fits it
    alpha: float = 0.01  # of the Dirichlet prior of a table row; 0: maximum likelihood
    keys: Numbers = field(init=False)  # sorted: the pairs of words that occur together
    table: Numbers = field(init=False)  # t(target word | source word) for each of `keys`

    def __post_init__(self) -> None:
        lengths = self.target.lengths
        self.sentence = np.repeat(np.arange(len(lengths)), lengths)  # of every target word
        depth = np.arange(len(self.target.words)) - self.target.ends[:-1][self.sentence] + 1
        self.depth = depth / lengths[self.sentence]  # the relative position of every target word, up to 1
        self.width = self.source.lengths[self.sentence] + 1  # cells of every target word
        self.keys = self._occurring_keys()
        self.table = np.full(len(self.keys), 1 / max(self.target.size - 1, 1))

    def fit(self, iterations: int = 5) -> Iterator[float]:
        """Run EM; yield the cross-entropy before every iteration, in bits per target word."""
        for _ in range(iterations):
            counts, loglik = np.zeros(len(self.keys)), 0.0
            moments = np.zeros(3)
            for _, cells in self._blocks():
                pairs = np.searchsorted(self.keys, cells.key)
                prior, normalized = self._prior(cells)
                joint = prior * self.table[pairs]
                total = cells.sum(joint)
                posterior = joint / total[cells.word]
                np.add.at(counts, pairs, posterior)
                moments += self._moments(cells, normalized, posterior)
                loglik += float(np.log2(total).sum())
            yield -loglik / max(len(self.target.words), 1)
            self.table = self._normalize(counts)
            self._fit_tension(moments)

    def best(self) -> Numbers:
        """The most probable source word of every target word, from 0 in its sentence; -1 is NULL."""
        best_places = np.empty(len(self.target.words), np.int32)
        for words, cells in self._blocks():
            joint = self._prior(cells)[0] * self.table[np.searchsorted(self.keys, cells.key)]
            (at,) = np.nonzero(joint == np.maximum.reduceat(joint, cells.starts)[cells.word])
            _, first = np.unique(cells.word[at], return_index=True)  # ties go to the first
            best_places[words] = cells.place[at[first]] - 1
        return best_places

    def _blocks(self) -> Iterator[tuple[slice, Cells]]:
        """Consecutive target words with about CELLS cells."""
        ends = np.cumsum(self.width)
        first = 0
        while first < len(ends):
            before = ends[first - 1] if first else 0
            last = max(int(np.searchsorted(ends, before + CELLS, side="right")), first + 1)
            yield slice(first, last), self._cells(slice(first, last))
            first = last

    def _cells(self, words: slice) -> Cells:
        width, sentence = self.width[words], self.sentence[words]
        starts = np.cumsum(width) - width
        word = np.repeat(np.arange(len(width)), width)
        place = np.arange(len(word)) - starts[word]
        at = np.maximum(self.source.ends[sentence][word] + place - 1, 0)
        filled = place > 0
        number = np.where(filled, np.take(self.source.words, at, mode="clip"), 0) if filled.any() else place
        key = number.astype(np.int64) * self.target.size + self.target.words[words][word]
        feature = -np.abs(place / np.maximum(width - 1, 1)[word] - self.depth[words][word])
        return Cells(starts, word, place, key, feature)

    def _occurring_keys(self) -> Numbers:
        keys, new, waiting = np.zeros(0, np.int64), list[Numbers](), 0
        for _, cells in self._blocks():
            new.append(np.unique(cells.key))
            waiting += len(new[-1])
            if waiting > len(keys):  # rarely, because every merge sorts all
                keys, new, waiting = np.unique(np.concatenate([keys, *new])), [], 0
        return np.unique(np.concatenate([keys, *new]))

    def _prior(self, cells: Cells) -> tuple[Numbers, Numbers]:
        """The prior of every cell, and that of the source words alone, which sums to 1 over them."""
        filled = cells.place > 0
        weights = np.where(filled, np.exp(self.tension * cells.feature), 0.0)
        normalized = weights / np.maximum(cells.sum(weights), np.finfo(float).tiny)[cells.word]
        return np.where(filled, (1 - self.null) * normalized, self.null), normalized

    def _moments(self, cells: Cells, normalized: Numbers, posterior: Numbers) -> Numbers:
        """Sums of the feature under the posterior, and of its mean and variance under the prior, without NULL."""
        posterior = np.where(cells.place > 0, posterior, 0.0)
        aligned = cells.sum(posterior)
        mean = cells.sum(normalized * cells.feature)
        variance = cells.sum(normalized * cells.feature**2) - mean**2
        return np.array([(posterior * cells.feature).sum(), (aligned * mean).sum(), (aligned * variance).sum()])

    def _fit_tension(self, moments: Numbers) -> None:
        """One Newton step; the log-likelihood is concave in the tension."""
        observed, expected, variance = moments
        if variance > 0:
            step = (observed - expected) / variance
            self.tension = float(np.clip(self.tension + step, MIN_TENSION, MAX_TENSION))

    def _normalize(self, counts: Numbers) -> Numbers:
        from scipy.special import digamma  # takes 0.2 s, which every start of a training would wait

        if not len(counts):
            return counts
        row = self.keys // self.target.size
        starts = np.flatnonzero(np.diff(row, prepend=-1))
        row = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(row)))
        totals = np.add.reduceat(counts + self.alpha, starts)[row]
        table: Numbers
        if self.alpha:  # variational Bayes favors few translations of a word
            table = np.exp(digamma(counts + self.alpha) - digamma(totals))
        else:
            table = counts / np.maximum(totals, np.finfo(float).tiny)
        return table


def align_words(
    pairs: Iterable[tuple[str, str]],
    kind: Symmetrization = "grow-diag-final-and",
    iterations: int = 5,
    report: Callable[[str], None] = lambda line: None,
) -> Iterator[Links]:
    """The links of all pairs, by models of both directions that are fitted to these pairs."""
    source, target = read_word_ids(pairs)
    forward = _fit("source to target", DiagonalAligner(source, target), iterations, report)
    reverse = _fit("target to source", DiagonalAligner(target, source), iterations, report)
    for number in range(len(source.lengths)):
        ahead = forward[target.ends[number] : target.ends[number + 1]].tolist()
        back = reverse[source.ends[number] : source.ends[number + 1]].tolist()
        yield symmetrize(
            frozenset((i, j) for j, i in enumerate(ahead) if i >= 0),
            frozenset((i, j) for i, j in enumerate(back) if j >= 0),
            kind,
        )


def _fit(name: str, aligner: DiagonalAligner, iterations: int, report: Callable[[str], None]) -> Numbers:
    for number, bits in enumerate(aligner.fit(iterations), 1):
        report(f"{name}, iteration {number} of {iterations}: {bits:.3f} bits per word")
    return aligner.best()
