"""The hypotheses that have ended, ranked by their normalised score."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

BLOCK = 128
SPARE = 3  # more than are wanted: a tie may be between the last that is kept and the first that is not
TIE = 1e-5  # scores closer than this are equal: a matrix product gives other last bits in another batch


def top(scores: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The best `count` of scores (rows, beams, vocab): scores, tokens and beams, each (rows, count), best first."""
    vocab = scores.size(2)
    flat = scores.flatten(1)
    best, index = largest(flat, min(count + SPARE, flat.size(1)))
    order = even(best, index, flat.size(1))[:, :count]  # ties go to the first beam, then the first token
    best, index = best.gather(1, order), index.gather(1, order)
    if (missing := count - best.size(1)) > 0:  # fewer continuations than beams: the rest are nobody's
        best, index = F.pad(best, (0, missing), value=-torch.inf), F.pad(index, (0, missing))
    return best, index % vocab, index // vocab


def largest(flat: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest `count` of each row, and where they are. On a CPU by way of blocks, which takes a tenth of the time:
    they are all in those blocks whose own largest are the largest."""
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


def even(best: Tensor, index: Tensor, size: int) -> Tensor:
    """An order of sorted scores (rows, count) in which ties go by their index, which is below `size`."""
    gaps = F.pad((best[:, :-1] - best[:, 1:]).nan_to_num(0.0) > TIE, (1, 0))
    return (gaps.cumsum(1) * size + index).argsort(1)


class HypothesisPool:
    """The best `size` ended hypotheses of every row."""

    def __init__(self, rows: int, size: int, longest: int, length_penalty: float, device: torch.device) -> None:
        self.size, self.length_penalty = size, length_penalty
        self.scores = torch.full((rows, size), -torch.inf, device=device)
        self.logprobs = torch.full((rows, size), -torch.inf, device=device)
        self.tokens = torch.zeros(rows, size, longest, dtype=torch.long, device=device)
        self.lengths = torch.zeros(rows, size, dtype=torch.long, device=device)
        self.ended = torch.zeros(rows, size, dtype=torch.bool, device=device)

    def add(self, rows: Tensor, said: Tensor, length: Tensor, logprobs: Tensor, ended: Tensor | bool) -> None:
        """Offer the first `length` of said (rows, new, longest), without END, with their Σ log p (rows, new); minus
        infinity is no offer. Both `length` and `ended` may be of each (new,) or of all."""
        offered = logprobs / (length + ended).to(logprobs) ** self.length_penalty  # END counts
        if not said.is_cuda and not (offered > self.scores[rows].amin(1, keepdim=True)).any():
            return  # on a GPU to look would cost more than to go on
        scores = torch.cat([self.scores[rows], offered], 1)
        best, order = scores.topk(self.size)

        def kept(old: Tensor, new: Tensor) -> Tensor:
            return torch.cat([old[rows], new], 1).gather(1, order)

        whole = order[:, :, None].expand(-1, -1, said.size(2))
        self.tokens[rows] = torch.cat([self.tokens[rows], said], 1).gather(1, whole)
        self.logprobs[rows] = kept(self.logprobs, logprobs)
        self.lengths[rows] = kept(self.lengths, length.expand_as(offered))
        whether = ended if isinstance(ended, Tensor) else torch.full_like(length, ended, dtype=torch.bool)
        self.ended[rows] = kept(self.ended, whether.expand_as(offered))
        self.scores[rows] = best

    def worst(self, rows: Tensor) -> Tensor:
        return self.scores[rows].amin(1)

    def sorted(self, count: int) -> list[list[list[Any]]]:
        """tokens, lengths, scores, logprobs, ended: of every row the best `count`."""
        parts = (self.tokens, self.lengths, self.scores, self.logprobs, self.ended)
        return [part[:, :count].tolist() for part in parts]
