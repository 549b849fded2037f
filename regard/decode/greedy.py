"""Greedy search: the likeliest token at every step. What a beam of one finds, in far fewer operations."""

import torch
from torch import Tensor

from .beam import Hypothesis, SearchCache, SearchSettings, SearchState, hold
from .filters import StepContext
from .pool import TIE


class GreedySearch(SearchState):
    spreads = True

    def __init__(self, settings: SearchSettings, cache: SearchCache, limits: Tensor) -> None:
        super().__init__(settings, 1, cache, limits)
        self.logprob = torch.full_like(self.logprobs, -torch.inf)  # of running rows, (rows, 1); until it ends, none
        self.length = torch.zeros_like(self.logprob, dtype=torch.long)  # without END
        self.ended = torch.zeros_like(self.logprob, dtype=torch.bool)  # by END
        self.put: dict[int, Hypothesis] = {}  # of rows that were dropped

    def split(self, scores: Tensor, last: Tensor, moment: StepContext) -> tuple[Tensor, None]:
        best = scores.amax(2)  # (rows, 1)
        token = (scores >= (best - TIE)[:, :, None]).to(torch.uint8).argmax(2)  # of equals the first
        ended, going = token == self.settings.end, best > -torch.inf
        self.tokens.scatter_(2, (self.now - 1).expand(len(token), 1, 1), token[:, :, None])
        closed = going & (ended | last[:, None] | self.stopped(self.tokens, going & ~ended))
        self.logprob = hold(self.logprob, torch.where(closed, best, self.logprob))
        self.length = hold(self.length, torch.where(closed, self.now - ended.long(), self.length))
        self.ended = hold(self.ended, torch.where(closed, ended, self.ended))
        self.logprobs = best.masked_fill(closed, -torch.inf)
        return token, None

    def settled(self) -> Tensor:
        return self.logprobs[:, 0] == -torch.inf

    def select(self, rows: Tensor) -> None:
        self.put_by()
        super().select(rows)
        self.logprob, self.length, self.ended = (each[rows] for each in (self.logprob, self.length, self.ended))

    def put_by(self) -> None:
        parts = self.row, self.tokens[:, 0], self.length[:, 0], self.logprob[:, 0], self.ended[:, 0]
        for row, tokens, length, logprob, ended in zip(*(part.tolist() for part in parts), strict=True):
            if logprob > -torch.inf:
                score = logprob / max(length + ended, 1) ** self.settings.length_penalty
                self.put[row] = Hypothesis(tokens[:length], score, logprob, ended)

    def results(self) -> list[list[Hypothesis]]:
        self.put_by()
        return [[self.put[row]] if row in self.put else [] for row in range(len(self.limits))]
