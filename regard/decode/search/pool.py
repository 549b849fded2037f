"""The pool of ended hypotheses, ranked by normalized score, and top-k selection that breaks ties by index."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

BLOCK = 128
TIE_MARGIN = 3  # extra candidates: the last one kept may tie with the first one dropped
TIE = 1e-5  # scores closer than this are equal: a matrix product has other last bits in another batch


def top_candidates(scores: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The best `count` of scores (rows, beams, vocab): scores, tokens and beams, each (rows, count), best first."""
    vocab = scores.size(2)
    flat = scores.flatten(1)
    best, index = blocked_topk(flat, min(count + TIE_MARGIN, flat.size(1)))
    order = tie_break_order(best, index, flat.size(1))[:, :count]  # ties go to the first beam, then the first token
    best, index = best.gather(1, order), index.gather(1, order)
    if (missing := count - best.size(1)) > 0:  # fewer continuations than beams: fill up with impossible ones
        best, index = F.pad(best, (0, missing), value=-torch.inf), F.pad(index, (0, missing))
    return best, index % vocab, index // vocab


def first_best(flat: Tensor) -> tuple[Tensor, Tensor]:
    """The largest value of each row, (rows, 1), and the first index whose value ties with it.

    On a CPU it searches only the first block with such a value; comparing all of them takes as long as a softmax.
    """
    size, most = flat.size(1), flat.size(1) // BLOCK
    if flat.is_cuda or not most:
        best = flat.amax(1, keepdim=True)
        return best, first_above(flat, best - TIE)
    blocks = torch.unflatten(flat[:, : most * BLOCK], 1, (most, BLOCK)).amax(2)  # (rows, most)
    if size > most * BLOCK:
        blocks = torch.cat([blocks, flat[:, most * BLOCK :].amax(1, keepdim=True)], 1)
    best = blocks.amax(1, keepdim=True)
    start = (first_above(blocks, best - TIE) * BLOCK).clamp_(max=size - BLOCK)  # the last block overlaps its neighbor
    within = flat.gather(1, start + torch.arange(BLOCK, device=flat.device))
    return best, start + first_above(within, best - TIE)


def first_above(flat: Tensor, least: Tensor) -> Tensor:
    """(rows, 1): the first index of each row whose value is at least `least` (rows, 1)."""
    return (flat >= least).to(torch.uint8).argmax(1, keepdim=True)


def blocked_topk(flat: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest `count` values of each row and their indices.

    On a CPU it searches only the blocks with the largest maxima, which must hold them all; this takes a tenth of the
    time.
    """
    size, most = flat.size(1), flat.size(1) // BLOCK
    if flat.is_cuda or count >= most:
        return flat.topk(count)
    blocks = torch.unflatten(flat[:, : most * BLOCK], 1, (most, BLOCK))
    chosen = blocks.amax(2).topk(count, sorted=False).indices  # (rows, count)
    index = (chosen[:, :, None] * BLOCK + torch.arange(BLOCK, device=flat.device)).flatten(1)
    rest = torch.arange(most * BLOCK, size, device=flat.device).expand(len(flat), -1)
    index = torch.cat([index, rest], 1)
    best, place = flat.gather(1, index).topk(count)
    return best, index.gather(1, place)


def tie_break_order(best: Tensor, index: Tensor, size: int) -> Tensor:
    """An order of sorted scores (rows, count) in which ties go by their index, which is below `size`."""
    gaps = F.pad((best[:, :-1] - best[:, 1:]).nan_to_num(0.0) > TIE, (1, 0))
    return (gaps.cumsum(1) * size + index).argsort(1)


class HypothesisPool:
    """The best `size` ended hypotheses of every row."""

    def __init__(self, rows: int, size: int, capacity: int, length_penalty: float, device: torch.device) -> None:
        self.size, self.length_penalty = size, length_penalty
        self.scores = torch.full((rows, size), -torch.inf, device=device)
        self.logprobs = torch.full((rows, size), -torch.inf, device=device)
        self.tokens = torch.zeros(rows, size, capacity, dtype=torch.long, device=device)
        self.lengths = torch.zeros(rows, size, dtype=torch.long, device=device)
        self.ended = torch.zeros(rows, size, dtype=torch.bool, device=device)

    def add(self, rows: Tensor, tokens: Tensor, length: Tensor, logprobs: Tensor, ended: Tensor | bool) -> None:
        """Add the first `length` of tokens (rows, new, capacity), without END, with their Σ log p (rows, new).

        A Σ log p of minus infinity adds nothing. `length` is (rows, new) or (rows, 1); `ended` (new,) or one for all.
        """
        offered = logprobs / (length + ended).to(logprobs) ** self.length_penalty  # END counts
        if not tokens.is_cuda and not (offered > self.scores[rows].amin(1, keepdim=True)).any():
            return  # on a GPU this check would cost more than it saves
        scores = torch.cat([self.scores[rows], offered], 1)
        best, order = scores.topk(self.size)

        def merge(old: Tensor, new: Tensor) -> Tensor:
            return torch.cat([old[rows], new], 1).gather(1, order)

        token_order = order[:, :, None].expand(-1, -1, tokens.size(2))
        self.tokens[rows] = torch.cat([self.tokens[rows], tokens], 1).gather(1, token_order)
        self.logprobs[rows] = merge(self.logprobs, logprobs)
        self.lengths[rows] = merge(self.lengths, length.expand_as(offered))
        flags = ended if isinstance(ended, Tensor) else torch.full_like(length, ended, dtype=torch.bool)
        self.ended[rows] = merge(self.ended, flags.expand_as(offered))
        self.scores[rows] = best

    def worst(self, rows: Tensor) -> Tensor:
        return self.scores[rows].amin(1)

    def best(self, count: int, rows: Tensor | None = None) -> list[list[list[Any]]]:
        """tokens, lengths, scores, logprobs and ended of the best `count` hypotheses of every row, or of `rows`."""
        parts = (getattr(self, name) for name in PARTS)
        return [(part if rows is None else part[rows])[:, :count].tolist() for part in parts]

    def select(self, rows: Tensor) -> None:
        for name in PARTS:
            setattr(self, name, getattr(self, name)[rows])

    def resize(self, capacity: int) -> None:
        """Make room for so many tokens of each hypothesis."""
        self.tokens = F.pad(self.tokens, (0, capacity - self.tokens.size(2)))

    def join(self, other: "HypothesisPool") -> None:
        for name in PARTS:
            setattr(self, name, torch.cat([getattr(self, name), getattr(other, name)]))


PARTS = "tokens", "lengths", "scores", "logprobs", "ended"  # of a pool: tensors with one row per input
