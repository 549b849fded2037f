"""Greedy search: the likeliest token at every step. It equals a beam of one, in far fewer operations."""

import torch
from torch import Tensor

from .beam import Hypothesis, SearchCache, SearchSettings, SearchState, update_in_place
from .filters import StepContext
from .pool import first_best


class GreedySearch(SearchState):
    """Take the likeliest token in every step."""

    replicates_prompt = True
    per_row = (*SearchState.per_row, "logprob", "length", "ended")

    def __init__(self, settings: SearchSettings, cache: SearchCache, limits: Tensor, capacity: int = 0) -> None:
        super().__init__(settings, 1, cache, limits, capacity)
        self.logprob = torch.full_like(self.logprobs, -torch.inf)  # (rows, 1) of ended rows; -inf while a row is open
        self.length = torch.zeros_like(self.logprob, dtype=torch.long)  # without END
        self.ended = torch.zeros_like(self.logprob, dtype=torch.bool)  # by END
        self.dropped: dict[int, Hypothesis] = {}  # results of rows that left the batch

    def choose(self, scores: Tensor, last: Tensor, context: StepContext) -> tuple[Tensor, None]:
        best, token = first_best(scores.flatten(1))  # (rows, 1) each
        ended, open_rows, step = self.is_end(token), best > -torch.inf, self.device_step[:, None]
        self.tokens.scatter_(2, step[:, :, None] - 1, token[:, :, None])
        stopped = self.match_stop_strings(self.tokens, open_rows & ~ended)
        closed = open_rows & (ended | last[:, None] | stopped)
        self.logprob = update_in_place(self.logprob, torch.where(closed, best, self.logprob))
        self.length = update_in_place(self.length, torch.where(closed, step - ended.long(), self.length))
        self.ended = update_in_place(self.ended, torch.where(closed, ended, self.ended))
        self.logprobs = best.masked_fill(closed, -torch.inf)
        return token, None

    def finished_rows(self) -> Tensor:
        return self.logprobs[:, 0] == -torch.inf

    def select(self, rows: Tensor) -> None:
        self.dropped |= self._finished(slice(None))
        super().select(rows)

    def retain(self, rows: Tensor) -> None:
        super().retain(rows)
        self.dropped = {}

    def _finished(self, rows: Tensor | slice) -> dict[int, Hypothesis]:
        """The results of finished rows, by input row."""
        parts = self.input_row, self.tokens[:, 0], self.length[:, 0], self.logprob[:, 0], self.ended[:, 0]
        return {
            row: Hypothesis(
                tokens[:length], logprob / max(length + ended, 1) ** self.settings.length_penalty, logprob, ended
            )
            for row, tokens, length, logprob, ended in zip(*(part[rows].tolist() for part in parts), strict=True)
            if logprob > -torch.inf
        }

    def results(self, rows: Tensor | None = None) -> list[list[Hypothesis]]:
        input_rows = range(len(self.limits)) if rows is None else self.input_row[rows].tolist()
        hypotheses = self.dropped | self._finished(slice(None) if rows is None else rows)
        return [[hypotheses[row]] if row in hypotheses else [] for row in input_rows]
