"""What may not be said: filters over the log-probabilities of the next token."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

ANY, NOTHING = -1, -2  # in a table of tokens: fits every token; fits none, where nothing has been said yet


@dataclass(frozen=True)
class StepContext:
    """What a filter may look at."""

    step: int  # tokens said so far by every hypothesis
    left: Tensor  # (rows,) how many more each row may say, this one counted
    said: Tensor  # (rows, beams, step) the tokens
    row: Tensor  # (rows,) which input row each running row is


class Filter(Protocol):
    """One with `blind = True` does not look at `said`, nor at `step` after the first: its steps can be recorded. One
    with `first = True` looks whether it is the first."""

    def __call__(self, scores: Tensor, moment: StepContext) -> Tensor:
        """(rows, beams, vocab) log-probabilities in and out; minus infinity forbids. It may write in place."""


class Suppress:
    """Tokens that are never said: padding, a checkpoint's bad words."""

    blind = True

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = torch.tensor(tokens, dtype=torch.long)

    def __call__(self, scores: Tensor, moment: StepContext) -> Tensor:
        self.tokens = self.tokens.to(scores.device)
        return scores.index_fill_(2, self.tokens, -torch.inf)


class Forbid:
    """Sequences of tokens that are never said: whenever all but the last have been, the last may not follow.

    `rows` has each row's own sequences, or one entry for all rows. `given` (rows, tokens) is what stands before the
    first token, NOTHING on its left where a row has less.
    """

    def __init__(self, rows: Sequence[Sequence[Sequence[int]]], given: Tensor | None = None) -> None:
        self.given = given
        longest = max((len(each) for sequences in rows for each in sequences), default=1)
        most = max((len(sequences) for sequences in rows), default=0)
        filled = [[[ANY] * (longest - len(each)) + list(each) for each in sequences] for sequences in rows]
        spare = [[NOTHING] * (longest - 1) + [0]]  # is never complete
        whole = torch.tensor([sequences + spare * (most - len(sequences)) for sequences in filled], dtype=torch.long)
        whole = whole.view(len(rows), most, longest)
        self.before, self.last = whole[:, :, :-1], whole[:, :, -1]  # (rows, sequences, longest - 1), (rows, sequences)
        self.used = torch.tensor([[i < len(sequences) for i in range(most)] for sequences in rows], dtype=torch.bool)

    def __call__(self, scores: Tensor, moment: StepContext) -> Tensor:
        if self.last.device != scores.device:
            self.before, self.last, self.used = (each.to(scores.device) for each in (self.before, self.last, self.used))
        row = moment.row if len(self.last) > 1 else torch.zeros_like(moment.row)
        said, before = self._window(moment)[:, :, None], self.before[row][:, None]
        complete = ((said == before) | (before == ANY)).all(-1) & self.used[row][:, None]  # (rows, beams, sequences)
        cap = torch.full_like(complete, torch.inf, dtype=scores.dtype).masked_fill(complete, -torch.inf)
        last = self.last[row][:, None].expand_as(complete)
        return scores.scatter_reduce(2, last, cap, "amin")

    def _window(self, moment: StepContext) -> Tensor:
        """(rows, beams, longest - 1): the last tokens."""
        size, said = self.before.size(2), moment.said
        if self.given is not None:
            before = self.given[moment.row][:, None].expand(-1, said.size(1), -1)
            said = torch.cat([before, said], 2)
        missing = max(size - said.size(2), 0)
        return F.pad(said, (missing, 0), value=NOTHING)[:, :, said.size(2) + missing - size :]


class FirstToken:
    """The first token of these rows (bool) is one of those allowed (vocab, bool)."""

    blind = first = True

    def __init__(self, rows: Tensor, allowed: Tensor) -> None:
        self.rows, self.refused = rows, ~allowed

    def __call__(self, scores: Tensor, moment: StepContext) -> Tensor:
        if moment.step:
            return scores
        return scores.masked_fill(self.rows[moment.row][:, None, None] & self.refused, -torch.inf)


class ForcedEnd:
    """The last token that a row may say is END, whatever the model would rather say."""

    blind = True

    def __init__(self, end: int) -> None:
        self.end = end

    def __call__(self, scores: Tensor, moment: StepContext) -> Tensor:
        last = (moment.left == 1)[:, None, None]
        ending = torch.full_like(scores, -torch.inf)
        ending[:, :, self.end] = 0.0
        return torch.where(last, ending, scores)


class Renormalize:
    """Make what the other filters left a distribution again, as some checkpoints ask."""

    blind = True

    def __call__(self, scores: Tensor, moment: StepContext) -> Tensor:
        return scores.log_softmax(-1)


class RepetitionPenalty:
    """What prompt or text have said already becomes unlikelier, by a factor above 1 (1909.05858, as Hugging Face does).

    It is for the scores as the model gives them (`Settings.raw`): a positive one is divided, a negative one multiplied.
    `given` (rows, tokens) is what stands before the first token, NOTHING where a row has less.
    """

    def __init__(self, penalty: float, given: Tensor) -> None:
        self.penalty, self.given = penalty, given

    def __call__(self, scores: Tensor, moment: StepContext) -> Tensor:
        rows, beams, vocab = scores.shape
        before = self.given[moment.row][:, None].expand(-1, beams, -1)
        past = torch.cat([before, moment.said], 2)
        spare = past.masked_fill(past < 0, vocab)
        said = past.new_zeros(rows, beams, vocab + 1, dtype=torch.bool).scatter(2, spare, True)[:, :, :vocab]
        weakened = torch.where(scores < 0, scores * self.penalty, scores / self.penalty)
        return torch.where(said, weakened, scores)


# --- the shape of a distribution that is drawn from; the constant that the log-probabilities share does not matter ----


class Temperature:
    """Below 1 the likely becomes likelier, above 1 everything more alike."""

    blind = True

    def __init__(self, temperature: float) -> None:
        self.temperature = temperature

    def __call__(self, scores: Tensor, moment: StepContext) -> Tensor:
        return (scores - scores.amax(-1, keepdim=True)) / self.temperature  # the best stays finite, however cold


class TopK:
    """Only the `count` likeliest, and what is as likely as the last of them."""

    blind = True

    def __init__(self, count: int) -> None:
        self.count = count

    def __call__(self, scores: Tensor, moment: StepContext) -> Tensor:
        least = scores.topk(min(self.count, scores.size(-1))).values[..., -1:]
        return scores.masked_fill(scores < least, -torch.inf)


class TopP:
    """Only the likeliest that together reach `share` of the probability (1904.09751); the likeliest always stays."""

    blind = True

    def __init__(self, share: float) -> None:
        self.share = share

    def __call__(self, scores: Tensor, moment: StepContext) -> Tensor:
        ordered, index = scores.sort(dim=-1, descending=True, stable=True)
        p = ordered.softmax(-1)
        refused = p.cumsum(-1) - p >= self.share  # the likelier ones reach it without this one
        return scores.masked_fill(torch.zeros_like(refused).scatter(-1, index, refused), -torch.inf)


class MinP:
    """Only what has at least this share of the likeliest one's probability (2407.01082)."""

    blind = True

    def __init__(self, share: float) -> None:
        self.least = log(share)

    def __call__(self, scores: Tensor, moment: StepContext) -> Tensor:
        return scores.masked_fill(scores < scores.amax(-1, keepdim=True) + self.least, -torch.inf)
