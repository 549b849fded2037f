"""The state of a search, which all step rules share, and beam search. Greedy search and sampling have their own files.

The score of a hypothesis is Σ log p / length^α, where length counts END and not START. Results are batch-invariant:
every row has its own limit, and finished rows are dropped from the batch while the others continue.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Protocol, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from ...config.strategies import EarlyStopping
from .filters import Filter, StepContext
from .pool import HypothesisPool, top_candidates

if TYPE_CHECKING:
    from .constrained_beam import RequiredPhrases
    from .draw import SamplingSettings
    from .texts import StopStrings

FIRST_TOKENS = 64  # tokens that the tables of a search hold at first on a CPU; they double when they are full
SHAPE_MULTIPLE = 16  # lengths are rounded up to it, so that searches of similar length share their shapes
DROP_BELOW = 0.75  # drop finished rows when at most this share is still active: each drop copies the caches
DROP_BELOW_FIXED = 0.1  # the same for a fixed cache: a drop forces a new graph capture, and fewer rows save little


class SearchCache(Protocol):
    """The cache operations that a search needs. A KV cache or a bundle of them provides these."""

    fixed: bool  # its tensors keep their addresses as long as no row is dropped

    def skip_prompt(self) -> None:
        """Expect no prompt: the first token comes in a single step."""

    def branch(self, beams: int, steps: int) -> None:
        """Give every row `beams` beams."""

    def reorder(self, origin: Tensor) -> None:
        """Let every beam continue another one of its row."""

    def select(self, rows: Tensor) -> object:
        """Keep only some rows."""


class OpenCache(SearchCache, Protocol):
    """A cache whose rows come and go: the cache of an open batch."""

    def put(self, rows: Tensor, other: Self, origin: Tensor) -> None:
        """Copy the rows of another cache into some of its own."""

    def rebound(self, tokens: int) -> None:
        """From now on, no row has more than `tokens` tokens."""


@dataclass(frozen=True)
class SearchSettings:
    """The settings of a search: beam size, filters and penalties."""

    end: int  # the token that ends a text
    beam: int = 5
    length_penalty: float = 1.0
    nbest: int = 1
    early_stopping: EarlyStopping = "exact"
    filters: tuple[Filter, ...] = field(default=())
    sampling: "SamplingSettings | None" = None  # sample instead of searching
    required: "RequiredPhrases | None" = None  # phrases that every result must contain
    logit_filters: tuple[Filter, ...] = field(default=())  # applied to the raw logits, before the softmax
    stop_strings: "StopStrings | None" = None  # strings that end a text
    more_ends: tuple[int, ...] = ()  # other tokens that end a text
    softmax: bool = True  # the model returns logits; False: it returns scores, which are added up as they are


@dataclass(frozen=True)
class Hypothesis:
    """A generated sequence with its score."""

    tokens: list[int]  # without START and END
    score: float  # Σ log p / length^α
    logprob: float  # Σ log p
    ended: bool  # True if END ended it, False if the limit did


class SearchState(ABC):
    """The open hypotheses of all active rows. A subclass chooses which continue and keeps those that have ended."""

    rule_graph_safe = True  # a step of this rule depends on earlier steps through tensors only
    replicates_prompt = False  # all beams may start as copies of the prompt, of which only the first counts
    per_row: ClassVar[tuple[str, ...]] = "logprobs", "tokens", "active", "device_step"  # tensors of the active rows
    per_input: ClassVar[tuple[str, ...]] = ("limits",)  # tensors of the input rows
    tables: ClassVar[tuple[str, ...]] = ("tokens",)  # tensors whose last dimension is the capacity

    def __init__(
        self, settings: SearchSettings, width: int, cache: SearchCache, limits: Tensor, capacity: int = 0
    ) -> None:
        """`capacity`: the most tokens that any row may have; 0: the largest limit."""
        self.settings, self.width, self.cache, self.limits = settings, width, cache, limits
        rows, device = len(limits), limits.device
        most = max(capacity, int(limits.max()))
        self.most = -(-most // SHAPE_MULTIPLE) * SHAPE_MULTIPLE  # tokens that a row may have
        if not limits.is_cuda:
            torch.empty(rows, width, self.most, dtype=torch.long)  # fails now if the tables can never fit
        self.capacity = self.most if limits.is_cuda else min(self.most, FIRST_TOKENS)  # that `tokens` can hold now
        self.input_row = torch.arange(rows, device=device)  # the input row of each active row
        self.logprobs = torch.zeros(rows, 1, device=device)  # Σ log p of every open hypothesis
        self.tokens = torch.zeros(rows, 1, self.capacity, dtype=torch.long, device=device)  # the first `step` are set
        self.active = torch.ones(rows, dtype=torch.bool, device=device)
        self.step = 0  # of the row that has the most
        self.device_step = torch.zeros(rows, dtype=torch.long, device=device)  # of each row, for use in a CUDA graph
        self.ragged = False  # True if rows joined later, so that steps differ
        self.finished = False

    @property
    def graph_safe(self) -> bool:
        """True if a step can be captured as a CUDA graph."""
        filters = self.settings.logit_filters + self.settings.filters
        return (
            self.rule_graph_safe
            and self.settings.stop_strings is None
            and all(getattr(filter, "graph_safe", False) for filter in filters)
        )

    @property
    def prompt_as_step(self) -> bool:
        """True if a regular step can read a prompt of one token."""
        filters = self.settings.logit_filters + self.settings.filters
        return self.replicates_prompt and not any(getattr(filter, "first_step_only", False) for filter in filters)

    def replicate_prompt(self, prompt: Tensor) -> Tensor:
        """Copy a prompt of one token to all beams: the tokens of the first step, (rows, width)."""
        self.logprobs, self.tokens = self.logprobs.repeat(1, self.width), self.tokens.repeat(1, self.width, 1)
        self.logprobs[:, 1:] = -torch.inf
        return prompt.repeat(1, self.width)

    @abstractmethod
    def choose(self, scores: Tensor, last: Tensor, context: StepContext) -> tuple[Tensor, Tensor | None]:
        """From Σ log p (rows, beams, vocab), return the next tokens (rows, width) and the beam that each continues.

        None instead of the beams means that each hypothesis continues itself. `last` (rows,) marks rows at their limit.
        """

    @abstractmethod
    def finished_rows(self) -> Tensor:
        """(rows,) bool: True if the row needs no further step."""

    @abstractmethod
    def results(self, rows: Tensor | None = None) -> list[list[Hypothesis]]:
        """The hypotheses of all input rows; or of these active rows."""

    def step_and_drop(self, logits: Tensor) -> Tensor | None:
        """Advance by one token and drop finished rows; None when every row has finished."""
        return self.drop_finished(self.advance(logits))

    def advance(self, logits: Tensor) -> Tensor:
        """The tokens to read next. On a GPU it never synchronizes and keeps tensor addresses: graph-safe."""
        if self.step >= self.capacity:
            self.resize(min(2 * self.capacity, self.most))
        context, old_logprobs, old_tokens = self.step_context(), self.logprobs, self.tokens
        scores = self._log_probabilities(logits, context).add_(old_logprobs[:, :, None])  # (rows, beams, vocab)
        self.step += 1
        self.device_step += 1
        last = self.limits[self.input_row] <= self.device_step  # (rows,)
        token, origin = self.choose(scores, last, context)
        self.active = update_in_place(self.active, ~(last | self.finished_rows()))
        # Finished rows that still wait in the batch get no further candidates.
        self.logprobs = update_in_place(old_logprobs, self.logprobs.masked_fill(~self.active[:, None], -torch.inf))
        self.tokens = update_in_place(old_tokens, self.tokens)
        if origin is not None and self.width > 1 and self.step > 1:  # after the prompt all beams share one past
            self.cache.reorder(origin)
        return token

    def drop_finished(self, token: Tensor) -> Tensor | None:
        """Drop finished rows where that pays off; None when all rows have finished."""
        count = int(self.active.sum())  # the only synchronization with the device in a step
        if not count:
            self.finished = True
            return None
        if count <= (DROP_BELOW_FIXED if self.cache.fixed else DROP_BELOW) * len(token):
            rows = self.active.nonzero()[:, 0]
            token = token[rows]
            self.select(rows)
            self.cache.select(rows)
        return token

    def select(self, rows: Tensor) -> None:
        """Keep only these rows."""
        for name in ("input_row", *self.per_row):
            setattr(self, name, getattr(self, name)[rows])

    def retain(self, rows: Tensor) -> None:
        """Keep only these rows and forget the results of all others, as in an open batch."""
        self.select(rows)
        for name in self.per_input:
            setattr(self, name, getattr(self, name)[self.input_row])
        self.input_row = torch.arange(len(rows), device=rows.device)

    def resize(self, capacity: int) -> None:
        """Make room for so many tokens of each row."""
        for name in self.tables:
            setattr(self, name, F.pad(getattr(self, name), (0, capacity - self.capacity)))
        self.capacity = capacity

    def join(self, other: Self) -> None:
        """Append the rows of another search with the same settings; steps may differ."""
        for state in (self, other):
            state.resize(max(self.capacity, other.capacity))
        self.most = max(self.most, other.most)
        for name in (*self.per_row, *self.per_input):
            setattr(self, name, torch.cat([getattr(self, name), getattr(other, name)]))
        self.input_row = torch.arange(len(self.limits), device=self.limits.device)
        self.ragged, self.step = True, max(self.step, other.step)

    def _log_probabilities(self, logits: Tensor, context: StepContext) -> Tensor:
        scores = logits.float()
        for filter in self.settings.logit_filters:
            scores = filter(scores, context)
        if self.settings.softmax:
            scores = scores.log_softmax(-1)
        for filter in self.settings.filters:
            scores = filter(scores, context)
        return scores

    def is_end(self, token: Tensor) -> Tensor:
        """True where a token ends its text."""
        ended = token == self.settings.end
        for other in self.settings.more_ends:
            ended = ended | (token == other)
        return ended

    def take_ends(self, scores: Tensor) -> Tensor:
        """(rows, beams): Σ log p of the likeliest end of each hypothesis. Ends become impossible in `scores`."""
        ending = scores[:, :, self.settings.end].clone()
        scores[:, :, self.settings.end] = -torch.inf
        for other in self.settings.more_ends:
            ending = ending.maximum(scores[:, :, other])
            scores[:, :, other] = -torch.inf
        return ending

    def match_stop_strings(self, tokens: Tensor, candidates: Tensor) -> Tensor:
        """(rows, new) bool: which of the `candidates` in tokens (rows, new, capacity) end in a stop string."""
        stops = self.settings.stop_strings
        if stops is None:
            return torch.zeros_like(candidates)
        context = StepContext(self.step, candidates, tokens[:, :, : self.step], self.input_row, self._row_steps())
        return stops(context.history(), self.input_row, candidates)

    def step_context(self) -> StepContext:
        remaining = self.limits[self.input_row] - self.device_step
        tokens = self.tokens[:, :, : self.step]
        steps = self._row_steps()
        return StepContext(self.step, remaining, tokens, self.input_row, steps, self.device_step, self.tokens)

    def _row_steps(self) -> Tensor | None:
        return self.device_step if self.ragged else None


class BeamSearch(SearchState):
    """The best `beam` open hypotheses, and a pool of the best that have ended."""

    replicates_prompt = True

    def __init__(
        self, settings: SearchSettings, cache: SearchCache, limits: Tensor, capacity: int = 0, width: int | None = None
    ) -> None:
        super().__init__(settings, width or settings.beam, cache, limits, capacity)
        pool_size = settings.nbest if settings.early_stopping == "exact" else settings.beam
        self.pool = HypothesisPool(len(limits), pool_size, self.capacity, settings.length_penalty, limits.device)

    def choose(self, scores: Tensor, last: Tensor, context: StepContext) -> tuple[Tensor, Tensor]:
        exact = self.settings.early_stopping == "exact"
        return self._choose_exact(scores, last) if exact else self._choose_top(scores, last)

    def _choose_exact(self, scores: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """Every hypothesis may end here, however unlikely: a beam that holds all prefixes loses nothing."""
        before, ending = self.tokens, self.take_ends(scores)
        self.logprobs, token, origin = top_candidates(scores, self.settings.beam)
        self.tokens = extend(before, self.device_step, origin, token)
        stopped = self.match_stop_strings(self.tokens, self.logprobs > -torch.inf)
        truncated = self.logprobs.masked_fill(~(last[:, None] | stopped), -torch.inf)
        self.add_to_pool((before, ending), (self.tokens, truncated))
        self.logprobs = self.logprobs.masked_fill(stopped, -torch.inf)
        return token, origin

    def _choose_top(self, scores: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """Twice as many candidates as beams: ended ones in the better half enter the pool, the rest continue.

        With several ends there are more, so that enough continue.
        """
        beam = self.settings.beam
        best, token, origin = top_candidates(scores, (2 + len(self.settings.more_ends)) * beam)
        tokens, ended = extend(self.tokens, self.device_step, origin, token), self.is_end(token)
        better = torch.arange(best.size(1), device=best.device) < beam
        ending = best.masked_fill(~(ended & better), -torch.inf)
        stopped = self.match_stop_strings(tokens, (best > -torch.inf) & ~ended)
        truncated = best.masked_fill(~((last[:, None] | stopped) & ~ended & better), -torch.inf)
        self.add_to_pool((tokens, ending), (tokens, truncated))
        best = best.masked_fill(ended | stopped, -torch.inf)
        order = best.argsort(dim=1, descending=True, stable=True)[:, :beam]
        self.logprobs, token, origin = (table.gather(1, order) for table in (best, token, origin))
        self.tokens = tokens.gather(1, order[:, :, None].expand(-1, -1, tokens.size(2)))
        return token, origin

    def add_to_pool(self, ending: tuple[Tensor, Tensor], truncated: tuple[Tensor, Tensor]) -> None:
        """Add hypotheses that end with END, and those that end without it, in one call. Each is (tokens, Σ log p)."""
        tokens, logprobs = (torch.cat(both, 1) for both in zip(ending, truncated, strict=True))
        ended = torch.arange(tokens.size(1), device=tokens.device) < ending[0].size(1)
        self.pool.add(self.input_row, tokens, self.device_step[:, None] - ended.long(), logprobs, ended)

    def finished_rows(self) -> Tensor:
        """(rows,) bool: True if no open hypothesis can enter the row's pool any more."""
        worst = self.pool.worst(self.input_row)
        if self.settings.early_stopping == "first":
            return (worst > -torch.inf) | (self.logprobs.amax(1) == -torch.inf)
        alpha, length = self.settings.length_penalty, self.device_step.to(worst)
        if self.settings.early_stopping in ("exact", "never") and alpha > 0:
            length = self.limits[self.input_row].to(worst)  # log p only falls: only its length improves a longer text
        elif self.settings.early_stopping == "exact":
            length = length + 1
        return self.logprobs.amax(1) / length**alpha <= worst

    def resize(self, capacity: int) -> None:
        super().resize(capacity)
        self.pool.resize(capacity)

    def retain(self, rows: Tensor) -> None:
        self.pool.select(self.input_row[rows])
        super().retain(rows)

    def join(self, other: Self) -> None:
        super().join(other)
        self.pool.join(other.pool)

    def results(self, rows: Tensor | None = None) -> list[list[Hypothesis]]:
        parts = self.pool.best(self.settings.nbest, None if rows is None else self.input_row[rows])
        return [
            [
                Hypothesis(tokens[:length], score, logprob, ended)
                for tokens, length, score, logprob, ended in zip(*row, strict=True)
                if score > -torch.inf
            ]
            for row in zip(*parts, strict=True)
        ]


def extend(tokens: Tensor, step: Tensor, origin: Tensor, token: Tensor) -> Tensor:
    """Gather tokens (rows, beams, capacity) by `origin`; write `token` (rows, new) as number `step` (rows,)."""
    past = tokens.gather(1, origin[:, :, None].expand(-1, -1, tokens.size(2)))
    return past.scatter(2, (step - 1)[:, None, None].expand(*token.shape, 1), token[:, :, None])


def update_in_place(old: Tensor, new: Tensor) -> Tensor:
    """Copy `new` into `old` if the shapes match, for CUDA graphs keep their addresses; else return `new`."""
    return old.copy_(new) if old.shape == new.shape else new
