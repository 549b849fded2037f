"""The rules of timestamps (2212.04356): they come in pairs around segments, never go back, and begin every text."""

import torch
from torch import Tensor

from .filters import StepContext


class TimestampRules:
    """Text after the first of two timestamps, a timestamp or END after text that a timestamp closed.

    All tokens from `first` on are timestamps. If together they are more likely than any other token, only they remain.
    `latest_start` counts from `first`: the last timestamp that may begin a text; None: any. Tokens below `text` are
    text, except END; None: those below END, as in the published models.
    """

    graph_safe = True

    def __init__(
        self, first: int, end: int, no_timestamps: int, latest_start: int | None = None, text: int | None = None
    ) -> None:
        self.first, self.end, self.no_timestamps, self.latest_start = first, end, no_timestamps, latest_start
        self.text = end if text is None else text

    def __call__(self, scores: Tensor, context: StepContext) -> Tensor:
        assert context.buffer is not None
        tokens, count = context.buffer, context.generated[:, None, None]  # (rows, beams, capacity), (rows, 1, 1)
        past = torch.arange(tokens.size(2), device=tokens.device) < count
        stamps = tokens.masked_fill(~past | (tokens < self.first), -1)
        newest = stamps.amax(2, keepdim=True)  # (rows, beams, 1): timestamps never decrease
        last = self._at(stamps, count - 1) & (count > 0)
        before = self._at(stamps, count - 2) | (count < 2)

        number = torch.arange(scores.size(2), device=scores.device)
        timestamp, begins = number >= self.first, count == 0
        lowest = torch.where(newest < 0, self.first, newest + (~last | before).long())
        forbidden = timestamp & (number < lowest)
        forbidden |= timestamp & last & before
        forbidden |= (number < self.text) & (number != self.end) & last & ~before
        forbidden |= begins & ~timestamp
        if self.latest_start is not None:
            forbidden |= begins & (number > self.first + self.latest_start)
        forbidden |= number == self.no_timestamps
        scores = scores.masked_fill(forbidden, -torch.inf)
        likely = scores[..., self.first :].logsumexp(2) > scores[..., : self.first].amax(2)
        return scores.masked_fill(likely[..., None] & ~timestamp, -torch.inf)

    @staticmethod
    def _at(stamps: Tensor, place: Tensor) -> Tensor:
        """(rows, beams, 1): whether a timestamp is at this place."""
        return stamps.gather(2, place.clamp(min=0).expand(-1, stamps.size(1), -1)) >= 0
