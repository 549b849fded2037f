"""Step rules: what all share, and beam search. Greedy search has its own, in greedy.py.

The score of a hypothesis is Σ log p / length^α, where length counts END and not START. A row's result depends on that
row alone: its limit is its own, and a row that has ended is dropped from the batch while the others go on.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import Tensor

from .filters import Filter, StepContext
from .pool import HypothesisPool, top

if TYPE_CHECKING:
    from .constrained_beam import RequiredPhrases
    from .sample import SamplingSettings
    from .stop_strings import StopStrings

EarlyStopping = Literal["exact", "first", "heuristic"]
ROUND = 16  # searches of about the same length have the same shapes
KEEP = 0.75  # rows that have ended are dropped when no more than this share still runs: each drop copies the caches
FEW = 0.1  # the same for a fixed cache: a recorded step would have to be recorded anew, and gains little by fewer rows


class SearchCache(Protocol):
    """What a step rule needs of a cache, or of a bundle of them."""

    fixed: bool  # are its tensors where they were for as long as no row is dropped?

    def skip_prompt(self) -> None: ...
    def branch(self, beams: int, steps: int) -> None: ...
    def reorder(self, origin: Tensor) -> None: ...
    def select(self, rows: Tensor) -> Any: ...


@dataclass(frozen=True)
class SearchSettings:
    end: int
    beam: int = 5
    length_penalty: float = 1.0
    nbest: int = 1
    early_stopping: EarlyStopping = "exact"
    filters: tuple[Filter, ...] = field(default=())
    sampling: "SamplingSettings | None" = None  # sample instead of searching
    required: "RequiredPhrases | None" = None  # search among the texts that say these phrases
    raw: tuple[Filter, ...] = field(default=())  # over the model's own scores, before they are probabilities
    stops: "StopStrings | None" = None  # strings that end a text


@dataclass(frozen=True)
class Hypothesis:
    tokens: list[int]  # without START and END
    score: float  # Σ log p / length^α
    logprob: float  # Σ log p
    ended: bool  # by END, not by the limit


class SearchState(ABC):
    """The open hypotheses of all rows that still run. A step rule says which go on, and keeps those that have ended."""

    graph_safe = True  # does a step the same whatever was said before, but for tensors?
    spreads = False  # may all alternatives begin as copies of one, of which only the first counts?

    def __init__(self, settings: SearchSettings, width: int, cache: SearchCache, limits: Tensor) -> None:
        self.settings, self.width, self.cache, self.limits = settings, width, cache, limits
        rows, device = len(limits), limits.device
        self.longest = -(-int(limits.max()) // ROUND) * ROUND  # room for so many tokens
        self.row = torch.arange(rows, device=device)  # which input row each running row is
        self.logprobs = torch.zeros(rows, 1, device=device)  # Σ log p of every open hypothesis
        self.tokens = torch.zeros(rows, 1, self.longest, dtype=torch.long, device=device)  # of which `step` are said
        self.active = torch.ones(rows, dtype=torch.bool, device=device)
        self.step = 0
        self.now = torch.zeros((), dtype=torch.long, device=device)  # the same, where recorded steps can count it
        self.finished = False

    @property
    def recordable(self) -> bool:
        filters = self.settings.raw + self.settings.filters
        return (
            self.graph_safe and self.settings.stops is None and all(getattr(each, "blind", False) for each in filters)
        )

    @property
    def early(self) -> bool:
        """Can the only token of a prompt be read by a step like any other?"""
        filters = self.settings.raw + self.settings.filters
        return self.spreads and not any(getattr(each, "first", False) for each in filters)

    def spread(self, prompt: Tensor) -> Tensor:
        """What such a step reads, (rows, width)."""
        self.logprobs, self.tokens = self.logprobs.repeat(1, self.width), self.tokens.repeat(1, self.width, 1)
        self.logprobs[:, 1:] = -torch.inf
        return prompt.repeat(1, self.width)

    @abstractmethod
    def split(self, scores: Tensor, last: Tensor, moment: StepContext) -> tuple[Tensor, Tensor | None]:
        """From Σ log p (rows, beams, vocab): the next tokens (rows, width), and whom each continues; None: itself."""

    @abstractmethod
    def settled(self) -> Tensor:
        """(rows,) bool: has the row all that it needs?"""

    @abstractmethod
    def results(self) -> list[list[Hypothesis]]: ...

    def step_and_drop(self, logits: Tensor) -> Tensor | None:
        """Advance by one token and drop finished rows; None when every row has finished."""
        return self.drop_finished(self.advance(logits))

    def advance(self, logits: Tensor) -> Tensor:
        """The tokens to read next. It never looks at the device, and tensors stay where they are: it is recordable."""
        moment, opened, said = self.moment(), self.logprobs, self.tokens
        scores = self._log_probabilities(logits, moment).add_(opened[:, :, None])  # (rows, beams, vocab)
        self.step += 1
        self.now += 1
        last = self.limits[self.row] <= self.now  # (rows,)
        token, origin = self.split(scores, last, moment)
        self.active = hold(self.active, ~(last | self.settled()))
        # An ended row offers nothing while it waits.
        self.logprobs = hold(opened, self.logprobs.masked_fill(~self.active[:, None], -torch.inf))
        self.tokens = hold(said, self.tokens)
        if origin is not None and self.width > 1 and self.step > 1:  # after the prompt all continue the same past
            self.cache.reorder(origin)
        return token

    def drop_finished(self, token: Tensor) -> Tensor | None:
        """Drop rows that have ended, where that is worth it; None when all have."""
        count = int(self.active.sum())  # the one look at the device that a step costs
        if not count:
            self.finished = True
            return None
        if count <= (FEW if self.cache.fixed else KEEP) * len(token):
            rows = self.active.nonzero()[:, 0]
            token = token[rows]
            self.select(rows)
            self.cache.select(rows)
        return token

    def select(self, rows: Tensor) -> None:
        """Only these still run."""
        self.row, self.logprobs, self.tokens, self.active = (
            each[rows] for each in (self.row, self.logprobs, self.tokens, self.active)
        )

    def _log_probabilities(self, logits: Tensor, moment: StepContext) -> Tensor:
        scores = logits.float()
        for filter in self.settings.raw:
            scores = filter(scores, moment)
        scores = scores.log_softmax(-1)
        for filter in self.settings.filters:
            scores = filter(scores, moment)
        return scores

    def stopped(self, said: Tensor, asked: Tensor) -> Tensor:
        """(rows, new) bool: which of the hypotheses `said` (rows, new, longest) asked for say a stop string."""
        stops = self.settings.stops
        return torch.zeros_like(asked) if stops is None else stops(said[:, :, : self.step], self.row, asked)

    def moment(self) -> StepContext:
        return StepContext(self.step, self.limits[self.row] - self.now, self.tokens[:, :, : self.step], self.row)


class BeamSearch(SearchState):
    """The best `beam` open hypotheses, and a pool of the best that have ended."""

    spreads = True

    def __init__(self, settings: SearchSettings, cache: SearchCache, limits: Tensor, width: int | None = None) -> None:
        super().__init__(settings, width or settings.beam, cache, limits)
        kept = settings.nbest if settings.early_stopping == "exact" else settings.beam
        self.pool = HypothesisPool(len(limits), kept, self.longest, settings.length_penalty, limits.device)

    def split(self, scores: Tensor, last: Tensor, moment: StepContext) -> tuple[Tensor, Tensor]:
        return (
            self._split_all(scores, last) if self.settings.early_stopping == "exact" else self._split_top(scores, last)
        )

    def _split_all(self, scores: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """Every hypothesis may end here, however unlikely: with a beam that holds all prefixes nothing is lost."""
        before, ending = self.tokens, scores[:, :, self.settings.end].clone()
        scores[:, :, self.settings.end] = -torch.inf
        self.logprobs, token, origin = top(scores, self.settings.beam)
        self.tokens = extend(before, self.now, origin, token)
        stopped = self.stopped(self.tokens, self.logprobs > -torch.inf)
        over = self.logprobs.masked_fill(~(last[:, None] | stopped), -torch.inf)
        self.offer((before, ending), (self.tokens, over))
        self.logprobs = self.logprobs.masked_fill(stopped, -torch.inf)
        return token, origin

    def _split_top(self, scores: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """Twice as many candidates as beams: those that end among the better half enter the pool, the rest go on."""
        beam, end = self.settings.beam, self.settings.end
        best, token, origin = top(scores, 2 * beam)
        said, ended = extend(self.tokens, self.now, origin, token), token == end
        better = torch.arange(best.size(1), device=best.device) < beam
        ending = best.masked_fill(~(ended & better), -torch.inf)
        stopped = self.stopped(said, (best > -torch.inf) & ~ended)
        over = best.masked_fill(~((last[:, None] | stopped) & ~ended & better), -torch.inf)
        self.offer((said, ending), (said, over))
        best = best.masked_fill(ended | stopped, -torch.inf)
        order = best.argsort(dim=1, descending=True, stable=True)[:, :beam]
        self.logprobs, token, origin = (each.gather(1, order) for each in (best, token, origin))
        self.tokens = said.gather(1, order[:, :, None].expand(-1, -1, said.size(2)))
        return token, origin

    def offer(self, ending: tuple[Tensor, Tensor], over: tuple[Tensor, Tensor]) -> None:
        """To the pool: tokens and Σ log p of those that end in END, and of those that end without it, at once."""
        said, logprobs = (torch.cat(both, 1) for both in zip(ending, over, strict=True))
        ended = torch.arange(said.size(1), device=said.device) < ending[0].size(1)
        self.pool.add(self.row, said, self.now - ended.long(), logprobs, ended)

    def settled(self) -> Tensor:
        """Can no open hypothesis enter the row's pool any more?"""
        worst = self.pool.worst(self.row)
        if self.settings.early_stopping == "first":
            return (worst > -torch.inf) | (self.logprobs.amax(1) == -torch.inf)
        alpha, length = self.settings.length_penalty, self.now.to(worst)
        if self.settings.early_stopping == "exact":  # log p only falls, so a longer text can gain by its length alone
            length = self.limits[self.row].to(worst) if alpha > 0 else length + 1
        return self.logprobs.amax(1) / length**alpha <= worst

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


def extend(said: Tensor, now: Tensor, origin: Tensor, token: Tensor) -> Tensor:
    """said (rows, beams, longest) of those each one continues, with `token` (rows, new) as number `now`."""
    past = said.gather(1, origin[:, :, None].expand(-1, -1, said.size(2)))
    return past.scatter(2, (now - 1).expand(*token.shape, 1), token[:, :, None])


def hold(held: Tensor, new: Tensor) -> Tensor:
    """The new values at the old place, if they fit there: recorded steps keep their addresses."""
    return held.copy_(new) if held.shape == new.shape else new
