"""Filters over the log-probabilities of the next token: forbidden tokens and penalties."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

ANY_TOKEN, NO_TOKEN = -1, -2  # in a table of tokens: matches every token; matches none (before the start of a text)


@dataclass(frozen=True)
class StepContext:
    """The state of a search that a filter may use."""

    step: int  # tokens generated so far by every hypothesis, or by the longest one if rows differ (`steps`)
    remaining: Tensor  # (rows,) number of tokens that each row may still generate, including this one
    tokens: Tensor  # (rows, beams, step) the tokens so far; of a row in `steps` only the first ones
    input_row: Tensor  # (rows,) the input row of each active row
    steps: Tensor | None = None  # (rows,) tokens generated so far by each row, if rows differ
    device_step: Tensor | None = None  # (rows,) the same in any case, at a fixed address for CUDA graphs
    buffer: Tensor | None = None  # (rows, beams, capacity) the tokens so far, then others: at a fixed address too

    def history(self, before: Tensor | None = None) -> Tensor:
        """(rows, beams, tokens): `before` (input rows, tokens) and the tokens so far, ending in the last column.

        Shorter rows have NO_TOKEN on the left.
        """
        tokens = self.tokens
        if before is not None:
            tokens = torch.cat([before[self.input_row][:, None].expand(-1, tokens.size(1), -1), tokens], 2)
        if self.steps is None:
            return tokens
        index = torch.arange(tokens.size(2), device=tokens.device) - (self.step - self.steps)[:, None, None]
        moved = tokens.gather(2, index.clamp(min=0).expand_as(tokens))
        return moved.masked_fill(index < 0, NO_TOKEN)

    @property
    def generated(self) -> Tensor:
        """(rows,) tokens generated so far by each row. It holds only while scores are filtered."""
        return torch.full_like(self.remaining, self.step) if self.device_step is None else self.device_step


class Filter(Protocol):
    """A function of scores and context.

    A filter may declare `graph_safe = True` if it uses neither `tokens` nor, after the first step, `step`, but only
    tensors that stay, such as `generated` and `buffer`: its steps can then be captured in a CUDA graph.
    `first_step_only = True` says that it treats the first step differently.
    """

    def __call__(self, scores: Tensor, context: StepContext, /) -> Tensor:
        """(rows, beams, vocab) log-probabilities in and out; minus infinity forbids. It may write in place."""


class Suppress:
    """Tokens that are never generated: padding, a checkpoint's bad words."""

    graph_safe = True

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = torch.tensor(tokens, dtype=torch.long)

    def __call__(self, scores: Tensor, context: StepContext) -> Tensor:
        self.tokens = self.tokens.to(scores.device)
        return scores.index_fill_(2, self.tokens, -torch.inf)


class Forbid:
    """Token sequences that are never generated: after all tokens but the last, the last is forbidden.

    `rows` has the sequences of each row, or one entry for all rows. `prefix` (rows, tokens) stands before the first
    token, with NO_TOKEN on the left of shorter prefixes.
    """

    def __init__(self, rows: Sequence[Sequence[Sequence[int]]], prefix: Tensor | None = None) -> None:
        self.prefix = prefix
        longest = max((len(sequence) for sequences in rows for sequence in sequences), default=1)
        most = max((len(sequences) for sequences in rows), default=0)
        filled = [[[ANY_TOKEN] * (longest - len(ids)) + list(ids) for ids in sequences] for sequences in rows]
        unused = [[NO_TOKEN] * (longest - 1) + [0]]  # never matches
        table = torch.tensor([sequences + unused * (most - len(sequences)) for sequences in filled], dtype=torch.long)
        table = table.view(len(rows), most, longest)
        self.before, self.last = table[:, :, :-1], table[:, :, -1]  # (rows, sequences, longest - 1), (rows, sequences)
        self.used = torch.tensor([[i < len(sequences) for i in range(most)] for sequences in rows], dtype=torch.bool)

    def __call__(self, scores: Tensor, context: StepContext) -> Tensor:
        if self.last.device != scores.device:
            tables = self.before, self.last, self.used
            self.before, self.last, self.used = (table.to(scores.device) for table in tables)
        row = context.input_row if len(self.last) > 1 else torch.zeros_like(context.input_row)
        recent, before = self._recent_tokens(context)[:, :, None], self.before[row][:, None]
        matches = (recent == before) | (before == ANY_TOKEN)
        complete = matches.all(-1) & self.used[row][:, None]  # (rows, beams, sequences)
        cap = torch.full_like(complete, torch.inf, dtype=scores.dtype).masked_fill(complete, -torch.inf)
        last = self.last[row][:, None].expand_as(complete)
        return scores.scatter_reduce(2, last, cap, "amin")

    def _recent_tokens(self, context: StepContext) -> Tensor:
        """(rows, beams, longest - 1): the last tokens."""
        size, tokens = self.before.size(2), context.history(self.prefix)
        missing = max(size - tokens.size(2), 0)
        return F.pad(tokens, (missing, 0), value=NO_TOKEN)[:, :, tokens.size(2) + missing - size :]


class FirstToken:
    """Restrict the first token of the rows in `rows` (bool) to those in `allowed` (vocab, bool)."""

    graph_safe = first_step_only = True

    def __init__(self, rows: Tensor, allowed: Tensor) -> None:
        self.rows, self.forbidden = rows, ~allowed

    def __call__(self, scores: Tensor, context: StepContext) -> Tensor:
        if context.step:  # a row that joins others has its first step alone
            return scores
        return scores.masked_fill(self.rows[context.input_row][:, None, None] & self.forbidden, -torch.inf)


class ForcedEnd:
    """Make END the only choice at the last token that a row may generate."""

    graph_safe = True

    def __init__(self, *ends: int) -> None:
        self.ends = ends

    def __call__(self, scores: Tensor, context: StepContext) -> Tensor:
        return torch.where((context.remaining == 1)[:, None, None], force_tokens(scores, self.ends), scores)


class ForcedStart:
    """Make these tokens the only choice at the first token of the rows in `rows` (bool)."""

    graph_safe = True

    def __init__(self, tokens: Sequence[int], rows: Tensor) -> None:
        self.tokens, self.rows = tuple(tokens), rows

    def __call__(self, scores: Tensor, context: StepContext) -> Tensor:
        first = self.rows[context.input_row] & (context.generated == 0)
        return torch.where(first[:, None, None], force_tokens(scores, self.tokens), scores)


def force_tokens(scores: Tensor, tokens: Sequence[int]) -> Tensor:
    """Scores that make these tokens certain and all others impossible."""
    forced = torch.full_like(scores, -torch.inf)
    for token in tokens:
        forced[:, :, token] = 0.0
    return forced


class SuppressAt:
    """Tokens that are not generated as number `at` (input rows) of a text, counted from 0."""

    graph_safe = True

    def __init__(self, tokens: Sequence[int], at: Tensor) -> None:
        self.tokens, self.at = torch.tensor(tokens, dtype=torch.long, device=at.device), at

    def __call__(self, scores: Tensor, context: StepContext) -> Tensor:
        return forbid_in_rows(scores, self.tokens, context.generated == self.at[context.input_row])


class MinTokens:
    """No end before the text has `least` (input rows) tokens."""

    graph_safe = True

    def __init__(self, ends: Sequence[int], least: Tensor) -> None:
        self.ends, self.least = torch.tensor(ends, dtype=torch.long, device=least.device), least

    def __call__(self, scores: Tensor, context: StepContext) -> Tensor:
        return forbid_in_rows(scores, self.ends, context.generated < self.least[context.input_row])


def forbid_in_rows(scores: Tensor, tokens: Tensor, rows: Tensor) -> Tensor:
    """Forbid these tokens in the rows that `rows` (bool) marks."""
    return scores.index_copy_(2, tokens, scores[:, :, tokens].masked_fill(rows[:, None, None], -torch.inf))


class NoRepeatNgram:
    """No sequence of `size` tokens twice in prompt and text; or none that occurs in `source`, if it is given.

    `prompt` (input rows, tokens) stands before the first token, with NO_TOKEN on the left of shorter prompts; `source`
    has NO_TOKEN on the right.
    """

    def __init__(self, size: int, prompt: Tensor, source: Tensor | None = None) -> None:
        self.size, self.prompt, self.source = size, prompt, source

    def __call__(self, scores: Tensor, context: StepContext) -> Tensor:
        past, vocab = context.history(self.prompt), scores.size(2)
        tokens = past
        if self.source is not None:
            tokens = self.source[context.input_row][:, None].expand(-1, past.size(1), -1)
        if min(tokens.size(2), past.size(2) + 1) < self.size:
            return scores
        recent = past[:, :, past.size(2) + 1 - self.size :]
        ngrams = tokens.unfold(2, self.size, 1)  # (rows, beams, places, size)
        begun, last = (ngrams[..., :-1] == recent[:, :, None]).all(-1), ngrams[..., -1]
        index = last.masked_fill(~begun | (last < 0) | (last >= vocab), vocab)
        forbidden = torch.zeros(*scores.shape[:2], vocab + 1, dtype=torch.bool, device=scores.device)
        return scores.masked_fill(forbidden.scatter(2, index, True)[:, :, :vocab], -torch.inf)


class Renormalize:
    """Normalize the result of the other filters to a distribution, as some checkpoints require."""

    graph_safe = True

    def __call__(self, scores: Tensor, context: StepContext) -> Tensor:
        return scores.log_softmax(-1)


class RepetitionPenalty:
    """Make tokens of the prompt and of the text so far less likely, by a factor above 1 (1909.05858, as Hugging Face).

    It divides positive scores and multiplies negative ones. As in Hugging Face, it applies to log-probabilities in beam
    search, and elsewhere to raw logits (`SearchSettings.logit_filters`).
    `penalty` (input rows,) has one factor for each row. `prompt` (rows, tokens) stands before the first token, NO_TOKEN
    where a row has fewer.
    """

    def __init__(self, penalty: Tensor, prompt: Tensor) -> None:
        self.penalty, self.prompt = penalty, prompt

    def __call__(self, scores: Tensor, context: StepContext) -> Tensor:
        rows, beams, vocab = scores.shape
        past = context.history(self.prompt)
        index = past.masked_fill(past < 0, vocab)
        used = past.new_zeros(rows, beams, vocab + 1, dtype=torch.bool).scatter(2, index, True)[:, :, :vocab]
        penalty = self.penalty[context.input_row][:, None, None]
        penalized = torch.where(scores < 0, scores * penalty, scores / penalty)
        return torch.where(used, penalized, scores)
