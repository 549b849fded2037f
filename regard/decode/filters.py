"""What may not be said: filters over the log-probabilities of the next token."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Moment:
    """What a filter may look at."""

    step: int  # tokens said so far by every hypothesis
    left: Tensor  # (rows,) how many more each row may say, this one counted
    said: Tensor  # (rows, beams, step) the tokens


class Filter(Protocol):
    def __call__(self, scores: Tensor, moment: Moment) -> Tensor:
        """(rows, beams, vocab) log-probabilities in and out; minus infinity forbids. It may write in place."""


class Suppress:
    """Tokens that are never said: padding, a checkpoint's bad words."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = torch.tensor(tokens, dtype=torch.long)

    def __call__(self, scores: Tensor, moment: Moment) -> Tensor:
        return scores.index_fill_(2, self.tokens.to(scores.device), -torch.inf)


class ForcedEnd:
    """The last token that a row may say is END, whatever the model would rather say."""

    def __init__(self, end: int) -> None:
        self.end = end

    def __call__(self, scores: Tensor, moment: Moment) -> Tensor:
        last = (moment.left == 1)[:, None, None]
        ending = torch.full_like(scores, -torch.inf)
        ending[:, :, self.end] = 0.0
        return torch.where(last, ending, scores)


class Renormalise:
    """Make what the other filters left a distribution again, as some checkpoints ask."""

    def __call__(self, scores: Tensor, moment: Moment) -> Tensor:
        return scores.log_softmax(-1)
