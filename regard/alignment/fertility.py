"""Fertilities: the number of target tokens of each source token. Their sum is the length of the target without END."""

from collections.abc import Sequence

import numpy as np

from .ibm import DiagonalAligner, Numbers, WordIds
from .links import Links

Words = Sequence[int | None]  # the word in which each token ends; None: in white space


def fertilities(chosen: Numbers, size: int, limit: int) -> Numbers:
    """(size,) fertilities of source tokens. `chosen` has the source token of each target token, or -1: none.

    A target token without a source token counts for the nearest chosen one before it. No fertility exceeds the limit:
    the excess goes to the next source tokens, or to those before. At most size × limit target tokens count.
    """
    chosen = _without_gaps(np.asarray(chosen, np.int64), size)
    counts = np.bincount(chosen[: size * limit], minlength=size)
    for order in (range(size), range(size - 1, -1, -1)) if counts.max(initial=0) > limit else ():
        surplus = 0
        for token in order:
            surplus += int(counts[token])
            counts[token] = min(surplus, limit)
            surplus -= int(counts[token])
        if surplus:
            counts[order[-1]] += surplus
    return counts.astype(np.int32)


def _without_gaps(chosen: Numbers, size: int) -> Numbers:
    """Target tokens without a source token take that of the nearest one before, or after; else the diagonal."""
    (filled,) = np.nonzero(chosen >= 0)
    if not len(filled):
        return np.arange(len(chosen)) * size // max(len(chosen), 1)
    before = np.searchsorted(filled, np.arange(len(chosen)), side="right") - 1
    nearest: Numbers = chosen[filled[np.maximum(before, 0)]]
    return nearest


def choose_by_links(links: Links, source: Words, target: Words) -> Numbers:
    """For every target token a source token, by links between words; -1 is none.

    The tokens of a target word are spread evenly over those of the source words that it is linked to.
    """
    chosen = np.full(len(target), -1)
    source_words: dict[int, list[int]] = {}
    for token, word in enumerate(source):
        if word is not None:
            source_words.setdefault(word, []).append(token)
    target_words: dict[int, list[int]] = {}
    for token, word in enumerate(target):
        if word is not None:
            target_words.setdefault(word, []).append(token)
    for word, members in target_words.items():
        linked = sorted(token for i, j in links if j == word for token in source_words.get(i, ()))
        for number, token in enumerate(members):
            if linked:
                chosen[token] = linked[number * len(linked) // len(members)]
    return chosen


def choose_by_model(
    sources: Sequence[Numbers], targets: Sequence[Numbers], iterations: int = 5
) -> tuple[Numbers, Numbers]:
    """For every target token of all texts a source token, by an IBM model of these token ids; -1 is none.

    The second array has the end of each text, after a first 0.
    """
    aligner = DiagonalAligner(_word_ids(sources), _word_ids(targets))
    for _ in aligner.fit(iterations):
        pass
    return aligner.best(), aligner.target.ends


def _word_ids(rows: Sequence[Numbers]) -> WordIds:
    words = np.concatenate([np.zeros(0, np.int32), *rows]).astype(np.int32) + 1  # 0 is NULL
    ends = np.cumsum([0, *map(len, rows)])
    return WordIds(words, ends, int(words.max(initial=0)) + 1)
