"""Step rules: what all share, and beam search. Greedy search is a beam of one that stops at its first ending.

The score of a hypothesis is Σ log p / length^α, where length counts END and not START. A row's result depends on that
row alone: its limit is its own, and a row that has ended is dropped from the batch while the others go on.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import Tensor

from .filters import Filter, Moment
from .pool import Pool, top

if TYPE_CHECKING:
    from .constraints import Must
    from .sample import Draw
    from .stops import Stops

Stop = Literal["exact", "first", "heuristic"]
KEEP = 0.75  # rows that have ended are dropped when no more than this share still runs: each drop copies the caches


class Past(Protocol):
    """What a step rule needs of a cache, or of a bundle of them."""

    def branch(self, beams: int, steps: int) -> None: ...
    def follow(self, origin: Tensor) -> None: ...
    def select(self, rows: Tensor) -> Any: ...


@dataclass(frozen=True)
class Settings:
    end: int
    beam: int = 5
    length_penalty: float = 1.0
    nbest: int = 1
    stop: Stop = "exact"
    filters: tuple[Filter, ...] = field(default=())
    draw: "Draw | None" = None  # sample instead of searching
    must: "Must | None" = None  # search among the texts that say these phrases
    raw: tuple[Filter, ...] = field(
        default=()
    )  # over the scores as the model gives them, before they are probabilities
    stops: "Stops | None" = None  # strings that end a text


@dataclass(frozen=True)
class Hypothesis:
    tokens: list[int]  # without START and END
    score: float  # Σ log p / length^α
    logprob: float  # Σ log p
    ended: bool  # by END, not by the limit


class Walk(ABC):
    """The open hypotheses of all rows that still run. A step rule says which go on, and keeps those that have ended."""

    def __init__(self, settings: Settings, width: int, cache: Past, limits: Tensor) -> None:
        self.settings, self.width, self.cache, self.limits = settings, width, cache, limits
        rows, device = len(limits), limits.device
        self.row = torch.arange(rows, device=device)  # which input row each running row is
        self.open = torch.zeros(rows, 1, device=device)  # Σ log p of every open hypothesis
        self.said = torch.zeros(rows, 1, 0, dtype=torch.long, device=device)
        self.step = 0
        self.finished = False

    @abstractmethod
    def split(self, scores: Tensor, last: Tensor) -> tuple[Tensor, Tensor | None]:
        """From Σ log p (rows, beams, vocab): the next tokens (rows, width), and whom each continues; None: itself."""

    @abstractmethod
    def settled(self) -> Tensor:
        """(rows,) bool: has the row all that it needs?"""

    @abstractmethod
    def results(self) -> list[list[Hypothesis]]: ...

    def advance(self, logits: Tensor) -> Tensor | None:
        """Take the scores of the next token; return the tokens to read next, or None when every row has ended."""
        scores = self._log_probabilities(logits) + self.open[:, :, None]  # (rows, beams, vocab)
        self.step += 1
        last = self.limits[self.row] <= self.step  # (rows,)
        token, origin = self.split(scores, last)
        going = ~(last | self.settled())
        if not going.any():
            self.finished = True
            return None
        self.open = self.open.masked_fill(~going[:, None], -torch.inf)  # an ended row offers nothing while it waits
        if going.float().mean() <= KEEP:
            rows = going.nonzero()[:, 0]
            token, origin = token[rows], origin if origin is None else origin[rows]
            self.select(rows)
            self.cache.select(rows)
        if origin is not None and self.width > 1 and self.step > 1:  # after the prompt all continue the same past
            self.cache.follow(origin)
        return token

    def select(self, rows: Tensor) -> None:
        """Only these still run."""
        self.row, self.open, self.said = self.row[rows], self.open[rows], self.said[rows]

    def _log_probabilities(self, logits: Tensor) -> Tensor:
        scores, moment = logits.float(), self.moment()
        for filter in self.settings.raw:
            scores = filter(scores, moment)
        scores = scores.log_softmax(-1)
        for filter in self.settings.filters:
            scores = filter(scores, moment)
        return scores

    def stopped(self, said: Tensor, asked: Tensor) -> Tensor:
        """(rows, new) bool: which of the hypotheses `said` (rows, new, length) that are asked for say a stop string."""
        stops = self.settings.stops
        return torch.zeros_like(asked) if stops is None else stops(said, self.row, asked)

    def moment(self) -> Moment:
        return Moment(self.step, self.limits[self.row] - self.step, self.said, self.row)


class Beams(Walk):
    """The best `beam` open hypotheses, and a pool of the best that have ended."""

    def __init__(self, settings: Settings, cache: Past, limits: Tensor, width: int | None = None) -> None:
        super().__init__(settings, width or settings.beam, cache, limits)
        kept = settings.nbest if settings.stop == "exact" else settings.beam
        self.pool = Pool(len(limits), kept, int(limits.max()), settings.length_penalty, limits.device)

    def split(self, scores: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        return self._split_all(scores, last) if self.settings.stop == "exact" else self._split_top(scores, last)

    def _split_all(self, scores: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """Every hypothesis may end here, however unlikely: with a beam that holds all prefixes nothing is lost."""
        self.pool.add(self.row, self.said, scores[:, :, self.settings.end], True)
        scores[:, :, self.settings.end] = -torch.inf
        self.open, token, origin = top(scores, self.settings.beam)
        self.said = extend(self.said, origin, token)
        stopped = self.stopped(self.said, self.open > -torch.inf)
        self.pool.add(self.row, self.said, self.open.masked_fill(~(last[:, None] | stopped), -torch.inf), False)
        self.open = self.open.masked_fill(stopped, -torch.inf)
        return token, origin

    def _split_top(self, scores: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """Twice as many candidates as beams: those that end among the better half enter the pool, the rest go on."""
        beam, end = self.settings.beam, self.settings.end
        best, token, origin = top(scores, 2 * beam)
        said, ended = extend(self.said, origin, token), token == end
        better = torch.arange(best.size(1), device=best.device) < beam
        self.pool.add(self.row, said[:, :, :-1], best.masked_fill(~(ended & better), -torch.inf), True)
        stopped = self.stopped(said, (best > -torch.inf) & ~ended)
        over = (last[:, None] | stopped) & ~ended & better
        self.pool.add(self.row, said, best.masked_fill(~over, -torch.inf), False)
        best = best.masked_fill(ended | stopped, -torch.inf)
        order = best.argsort(dim=1, descending=True, stable=True)[:, :beam]
        self.open, token, origin = (each.gather(1, order) for each in (best, token, origin))
        self.said = said.gather(1, order[:, :, None].expand(-1, -1, said.size(2)))
        return token, origin

    def settled(self) -> Tensor:
        """Can no open hypothesis enter the row's pool any more?"""
        worst = self.pool.worst(self.row)
        if self.settings.stop == "first":
            return (worst > -torch.inf) | (self.open.amax(1) == -torch.inf)
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
