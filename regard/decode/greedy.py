"""Greedy search: the likeliest token at every step. It equals a beam of one, in far fewer operations."""

import torch
from torch import Tensor

from .beam import Hypothesis, SearchCache, SearchSettings, SearchState, update_in_place
from .filters import StepContext
from .pool import TIE


class GreedySearch(SearchState):
    replicates_prompt = True

    def __init__(self, settings: SearchSettings, cache: SearchCache, limits: Tensor) -> None:
        super().__init__(settings, 1, cache, limits)
        self.logprob = torch.full_like(self.logprobs, -torch.inf)  # (rows, 1) of ended rows; -inf while a row is open
        self.length = torch.zeros_like(self.logprob, dtype=torch.long)  # without END
        self.ended = torch.zeros_like(self.logprob, dtype=torch.bool)  # by END
        self.dropped: dict[int, Hypothesis] = {}  # results of rows that left the batch

    def choose(self, scores: Tensor, last: Tensor, context: StepContext) -> tuple[Tensor, None]:
        best = scores.amax(2)  # (rows, 1)
        token = (scores >= (best - TIE)[:, :, None]).to(torch.uint8).argmax(2)  # ties go to the first token
        ended, open_rows = token == self.settings.end, best > -torch.inf
        self.tokens.scatter_(2, (self.device_step - 1).expand(len(token), 1, 1), token[:, :, None])
        stopped = self.match_stop_strings(self.tokens, open_rows & ~ended)
        closed = open_rows & (ended | last[:, None] | stopped)
        self.logprob = update_in_place(self.logprob, torch.where(closed, best, self.logprob))
        self.length = update_in_place(self.length, torch.where(closed, self.device_step - ended.long(), self.length))
        self.ended = update_in_place(self.ended, torch.where(closed, ended, self.ended))
        self.logprobs = best.masked_fill(closed, -torch.inf)
        return token, None

    def finished_rows(self) -> Tensor:
        return self.logprobs[:, 0] == -torch.inf

    def select(self, rows: Tensor) -> None:
        self._store_results()
        super().select(rows)
        self.logprob, self.length, self.ended = (each[rows] for each in (self.logprob, self.length, self.ended))

    def _store_results(self) -> None:
        parts = self.input_row, self.tokens[:, 0], self.length[:, 0], self.logprob[:, 0], self.ended[:, 0]
        for row, tokens, length, logprob, ended in zip(*(part.tolist() for part in parts), strict=True):
            if logprob > -torch.inf:
                score = logprob / max(length + ended, 1) ** self.settings.length_penalty
                self.dropped[row] = Hypothesis(tokens[:length], score, logprob, ended)

    def results(self) -> list[list[Hypothesis]]:
        self._store_results()
        return [[self.dropped[row]] if row in self.dropped else [] for row in range(len(self.limits))]
