"""Retrieval: the ranks of the matching candidates of a query among all candidates."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

CUTOFFS = (1, 5, 10)
ROWS = 1024  # queries that are compared at a time


def best_ranks(queries: Tensor, candidates: Tensor, pairs: Sequence[tuple[int, int]]) -> np.ndarray:
    """The rank of the best candidate of every query, from 1, by the cosine of vectors of length 1.

    `pairs` are indices of matching queries and candidates; every query has one. Other candidates with an equal cosine
    rank before it, so that constant vectors get a bad rank.
    """
    relevant: list[list[int]] = [[] for _ in range(len(queries))]
    for query, candidate in pairs:
        relevant[query].append(candidate)
    ranks = []
    for first in range(0, len(queries), ROWS):
        cosines = queries[first : first + ROWS] @ candidates.T
        is_match = torch.zeros_like(cosines, dtype=torch.bool)
        for row, chosen in enumerate(relevant[first : first + ROWS]):
            is_match[row, chosen] = True
        best = cosines.masked_fill(~is_match, -torch.inf).amax(1, keepdim=True)
        ranks += [1 + int(count) for count in ((cosines >= best) & ~is_match).sum(1)]
    return np.array(ranks)


def retrieval_metrics(items: Tensor, texts: Tensor, pairs: Sequence[tuple[int, int]]) -> dict[str, float]:
    """R@1, R@5, R@10 and the median rank in both directions; `r1` is the mean of both R@1.

    Items and texts are distinct: an item may have several texts, and a text several items.
    """
    metrics: dict[str, float] = {}
    reversed_pairs = [(text, item) for item, text in pairs]
    for name, ranks in (
        ("item_to_text", best_ranks(items, texts, pairs)),
        ("text_to_item", best_ranks(texts, items, reversed_pairs)),
    ):
        metrics |= {f"{name}_r{cutoff}": float((ranks <= cutoff).mean()) for cutoff in CUTOFFS}
        metrics[f"{name}_median_rank"] = float(np.median(ranks))
    return {"r1": (metrics["item_to_text_r1"] + metrics["text_to_item_r1"]) / 2, **metrics}
