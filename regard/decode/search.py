"""Beam search, vectorised over sentences. Greedy search is a beam of one that stops at its first ending.

The score of a hypothesis is Σ log p / length^α, where length counts END and not START. A row's result depends on that
row alone: its limit is its own, and a row that has ended is dropped from the batch while the others go on.
"""

from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor

from ..parts import Cache
from .filters import Filter, Moment
from .pool import Pool, top

Stop = Literal["exact", "first", "heuristic"]
KEEP = 0.75  # rows that have ended are dropped when no more than this share still runs: each drop copies the caches


class Decodable(Protocol):
    """`start(…)` differs by family (a source, frames, or only rows); a search is handed the cache it returned."""

    def step(self, tokens: Tensor, cache: Cache, real: Tensor | None = None) -> Tensor:
        """Read tokens (rows, tokens), remember them, return logits (rows, tokens, vocab)."""


@dataclass(frozen=True)
class Settings:
    end: int
    beam: int = 5
    length_penalty: float = 1.0
    nbest: int = 1
    stop: Stop = "exact"
    filters: tuple[Filter, ...] = field(default=())


@dataclass(frozen=True)
class Hypothesis:
    tokens: list[int]  # without START and END
    score: float  # Σ log p / length^α
    logprob: float  # Σ log p
    ended: bool  # by END, not by the limit


@torch.no_grad()
def search(
    model: Decodable, cache: Cache, prompt: Tensor, limits: Tensor, settings: Settings, real: Tensor | None = None
) -> list[list[Hypothesis]]:
    """Continue prompts (rows, tokens), ragged if `real` says so, by at most `limits` (rows,) tokens, END counted.

    A preallocated cache must have room for the prompt, and its beams are given room for the longest limit here.
    """
    beams = Beams(settings, cache, limits)
    scores = last_of(model.step(prompt, cache, real), real)[:, None]  # (rows, 1, vocab): the prompt is one beam
    if settings.beam > 1:
        cache.branch(settings.beam, int(limits.max()))
    while True:
        tokens = beams.advance(scores)  # (rows, beams)
        if tokens is None:
            return beams.results()
        scores = model.step(tokens, cache)


def last_of(logits: Tensor, real: Tensor | None) -> Tensor:
    """(rows, vocab) at each row's own last real token."""
    if real is None:
        return logits[:, -1]
    return logits[torch.arange(len(logits), device=logits.device), real.long().cumsum(1).argmax(1)]


class Beams:
    """The open hypotheses of all rows that still run, and the pool of those that have ended."""

    def __init__(self, settings: Settings, cache: Cache, limits: Tensor) -> None:
        self.settings, self.cache, self.limits = settings, cache, limits
        rows, device = len(limits), limits.device
        self.row = torch.arange(rows, device=device)  # which input row each running row is
        self.open = torch.zeros(rows, 1, device=device)  # Σ log p of every open hypothesis
        self.said = torch.zeros(rows, 1, 0, dtype=torch.long, device=device)
        kept = settings.nbest if settings.stop == "exact" else settings.beam
        self.pool = Pool(rows, kept, int(limits.max()), settings.length_penalty, device)
        self.step = 0

    def advance(self, logits: Tensor) -> Tensor | None:
        """Take the scores of the next token; return the tokens to read next, or None when every row has ended."""
        scores = self._log_probabilities(logits) + self.open[:, :, None]  # (rows, beams, vocab)
        self.step += 1
        last = self.limits[self.row] <= self.step  # (rows,)
        if self.settings.stop == "exact":
            token, origin = self._split_all(scores, last)
        else:
            token, origin = self._split_top(scores, last)
        going = ~(last | self._settled())
        if not going.any():
            return None
        self.open = self.open.masked_fill(~going[:, None], -torch.inf)  # an ended row offers nothing while it waits
        if going.float().mean() <= KEEP:
            rows = going.nonzero()[:, 0]
            self.row, self.open, self.said = self.row[rows], self.open[rows], self.said[rows]
            token, origin = token[rows], origin[rows]
            self.cache.select(rows)
        if self.settings.beam > 1 and self.step > 1:  # after the prompt all beams continue the same past
            self.cache.follow(origin)
        return token

    def _log_probabilities(self, logits: Tensor) -> Tensor:
        scores = logits.float().log_softmax(-1)
        moment = Moment(self.step, self.limits[self.row] - self.step, self.said)
        for rule in self.settings.filters:
            scores = rule(scores, moment)
        return scores

    def _split_all(self, scores: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """Every hypothesis may end here, however unlikely: with a beam that holds all prefixes nothing is lost."""
        self.pool.add(self.row, self.said, scores[:, :, self.settings.end], True)
        scores[:, :, self.settings.end] = -torch.inf
        self.open, token, origin = top(scores, self.settings.beam)
        self.said = extend(self.said, origin, token)
        self.pool.add(self.row, self.said, self.open.masked_fill(~last[:, None], -torch.inf), False)
        return token, origin

    def _split_top(self, scores: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """Twice as many candidates as beams: those that end among the better half enter the pool, the rest go on."""
        beam, end = self.settings.beam, self.settings.end
        best, token, origin = top(scores, 2 * beam)
        said, ended = extend(self.said, origin, token), token == end
        better = torch.arange(best.size(1), device=best.device) < beam
        self.pool.add(self.row, said[:, :, :-1], best.masked_fill(~(ended & better), -torch.inf), True)
        self.pool.add(self.row, said, best.masked_fill(~(last[:, None] & ~ended & better), -torch.inf), False)
        best = best.masked_fill(ended, -torch.inf)
        order = best.argsort(dim=1, descending=True, stable=True)[:, :beam]
        self.open, token, origin = (each.gather(1, order) for each in (best, token, origin))
        self.said = said.gather(1, order[:, :, None].expand(-1, -1, said.size(2)))
        return token, origin

    def _settled(self) -> Tensor:
        """(rows,) bool: can no open hypothesis enter the row's pool any more?"""
        worst = self.pool.worst(self.row)
        if self.settings.stop == "first":
            return worst > -torch.inf
        alpha, length = self.settings.length_penalty, torch.full_like(worst, self.step)
        if self.settings.stop == "exact":  # log p only falls, so a longer text can gain by its length alone
            length = self.limits[self.row].to(worst) if alpha > 0 else length + 1
        return self.open.amax(1) / length**alpha <= worst

    def results(self) -> list[list[Hypothesis]]:
        rows = zip(*self.pool.sorted(self.settings.nbest), strict=True)
        return [
            [
                Hypothesis(tokens[:length], score, logprob, ended)
                for tokens, length, score, logprob, ended in zip(*row, strict=True)
                if score > -torch.inf
            ]
            for row in rows
        ]


def extend(said: Tensor, origin: Tensor, token: Tensor) -> Tensor:
    past = said.gather(1, origin[:, :, None].expand(-1, -1, said.size(2)))
    return torch.cat([past, token[:, :, None]], 2)
