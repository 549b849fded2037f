"""Connectionist temporal classification (CTC): loss, greedy decoding, alignment, and prefix scores for a search.

Every frame predicts a token or the blank. A path of frames spells the text that remains when repetitions are merged
and blanks are removed. The probability of a text is the sum over all paths that spell it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

LOG_FLOOR = -300.0  # of the log-probability of a token in a frame: sums over frames then stay inside float64
LEAST = -1e30  # replaces -inf where it would be subtracted from -inf


def ctc_loss(logits: Tensor, valid: Tensor | None, targets: Tensor, target_lengths: Tensor, blank: int) -> Tensor:
    """The sum over the batch of -log p(target), in float32 or finer; targets that do not fit count 0.

    logits (batch, frames, vocab) of any float type, valid (batch, frames) bool (None: all frames), targets
    (batch, tokens) with padding on the right, target_lengths (batch,).
    """
    exact = torch.promote_types(logits.dtype, torch.float32)
    logprobs = logits.to(exact).log_softmax(-1).transpose(0, 1)
    loss: Tensor = F.ctc_loss(
        logprobs, targets, frame_counts(logits, valid), target_lengths, blank, reduction="sum", zero_infinity=True
    )
    return loss


def ctc_fits(frames: Tensor, targets: Tensor, target_lengths: Tensor) -> Tensor:
    """(batch,) bool: True if the frames (batch,) suffice: one per token, and a blank between equal neighbors."""
    return frames >= target_lengths + equal_neighbors(targets, target_lengths)


def equal_neighbors(targets: Tensor, target_lengths: Tensor) -> Tensor:
    """(batch,): how many tokens equal the one before them."""
    inside = torch.arange(1, targets.size(1), device=targets.device) < target_lengths[:, None]
    return ((targets[:, 1:] == targets[:, :-1]) & inside).sum(1)


def frame_counts(logits: Tensor, valid: Tensor | None) -> Tensor:
    """(batch,): the valid frames of logits (batch, frames, vocab)."""
    if valid is None:
        return torch.full((len(logits),), logits.size(1), device=logits.device)
    return valid.sum(1)


class TokenSpan(NamedTuple):
    """A token of the best path and the frames that predict it."""

    token: int
    first: int
    last: int
    logprob: float  # the mean over its frames


def best_path(logprobs: Tensor, valid: Tensor | None, blank: int) -> list[list[TokenSpan]]:
    """Greedy decoding of logprobs (batch, frames, vocab): the tokens that the likeliest path of each row spells."""
    best, path = (tensor.cpu() for tensor in logprobs.detach().max(-1))  # (batch, frames)
    if valid is not None:
        path = path.masked_fill(~valid.cpu(), blank)
    change = path[:, 1:] != path[:, :-1]
    row, first = ((path != blank) & F.pad(change, (1, 0), value=True)).nonzero(as_tuple=True)
    _, last = ((path != blank) & F.pad(change, (0, 1), value=True)).nonzero(as_tuple=True)  # in the same order
    sums = F.pad(best.double().masked_fill(path == blank, 0.0).cumsum(1), (1, 0))
    means = (sums[row, last + 1] - sums[row, first]) / (last + 1 - first)
    spans: list[list[TokenSpan]] = [[] for _ in range(len(path))]
    columns = row, path[row, first], first, last, means
    for number, *span in zip(*(column.tolist() for column in columns), strict=True):
        spans[number].append(TokenSpan(*span))
    return spans


def force_align(logprobs: Tensor, tokens: Sequence[int], blank: int) -> tuple[list[tuple[int, int]], float]:
    """The first and last frame of every token in the likeliest path that spells `tokens`, and its log-probability.

    logprobs (frames, vocab). Viterbi over the states blank, token 1, blank, token 2, …, blank.
    """
    logprobs = logprobs.detach().double().cpu()
    labels = torch.tensor(tokens, dtype=torch.long)
    frames, states = len(logprobs), 2 * len(labels) + 1
    repeats = int((labels[1:] == labels[:-1]).sum())
    if frames < len(labels) + repeats or not frames:
        raise ValueError(
            f"{len(labels)} tokens, {repeats} of them equal to the one before, need at least "
            f"{max(len(labels) + repeats, 1)} frames; the input has {frames}"
        )
    lattice = torch.full((states,), blank)
    lattice[1::2] = labels
    emitted = logprobs[:, lattice]  # (frames, states)
    may_skip = torch.zeros(states, dtype=torch.bool)  # the blank before it
    may_skip[3::2] = labels[1:] != labels[:-1]
    scores = torch.full((states,), -torch.inf, dtype=torch.double)
    scores[:2] = emitted[0, :2]
    back = torch.zeros(frames, states, dtype=torch.long)  # how many states each frame moved on
    for frame in range(1, frames):
        one = F.pad(scores[:-1], (1, 0), value=-torch.inf)
        two = F.pad(scores[:-2], (2, 0), value=-torch.inf)[:states].masked_fill(~may_skip, -torch.inf)
        scores, back[frame] = torch.stack([scores, one, two]).max(0)
        scores = scores + emitted[frame]
    state = states - 1 if states == 1 or scores[-1] >= scores[-2] else states - 2
    logprob = float(scores[state])
    if logprob == -torch.inf:
        raise ValueError("the log-probabilities exclude every path that spells these tokens")
    moves, spans = back.tolist(), [(frames, -1)] * len(labels)
    for frame in reversed(range(frames)):
        if state % 2:
            first, last = spans[state // 2]
            spans[state // 2] = min(first, frame), max(last, frame)
        state -= moves[frame][state]
    return spans, logprob


class PrefixState:
    """The state of prefix scoring for every hypothesis. Frame 0 precedes the first frame."""

    NAMES = "nonblank", "blank", "logprob", "last"

    def __init__(self, nonblank: Tensor, blank: Tensor, logprob: Tensor, last: Tensor) -> None:
        self.nonblank, self.blank = nonblank, blank  # (rows, beams, 1 + frames): log p of the prefix, by its last frame
        self.logprob = logprob  # (rows, beams): log p of all texts that begin with the prefix
        self.last = last  # (rows, beams): the last token; START at first

    def pad(self, frames: int) -> None:
        """Add padding frames: blanks with probability 1, so that the state of the last frame persists."""
        if more := 1 + frames - self.blank.size(2):
            ended = torch.logaddexp(self.nonblank[:, :, -1:], self.blank[:, :, -1:])
            self.nonblank = F.pad(self.nonblank, (0, more), value=-torch.inf)
            self.blank = torch.cat([self.blank, ended.repeat(1, 1, more)], 2)


class PrefixScorer:
    """log p(token | prefix) of CTC for a search that writes token by token (1609.06773).

    p(prefix) is the probability of all texts that begin with it, so that the tokens and END are a distribution. START
    changes no prefix. No frame predicts START or END: their logits are left out. All is float64 and in static shapes. A
    prefix that no path can spell can only end.
    """

    NAMES = "probabilities", "blank_sums", "padding"

    def __init__(self, logits: Tensor, valid: Tensor | None, blank: int, start: int, end: int) -> None:
        """logits (rows, frames, vocab), valid (rows, frames) bool; its padding is on the right."""
        self.blank, self.start, self.end = blank, start, end
        logits = logits.double()
        for token in {start, end} - {blank}:
            logits = logits.index_fill(2, torch.tensor(token, device=logits.device), -torch.inf)
        probabilities = logits.log_softmax(-1).clamp(min=LOG_FLOOR).exp()
        if valid is not None:  # padding is a certain blank
            certain = torch.zeros_like(probabilities[0, 0])
            certain[blank] = 1.0
            probabilities = torch.where(valid[:, :, None], probabilities, certain)
        else:
            valid = torch.ones(logits.shape[:2], dtype=torch.bool, device=logits.device)
        self.probabilities = probabilities.transpose(1, 2).contiguous()  # (rows, vocab, frames)
        sums = self.probabilities[:, blank].log().cumsum(1)
        self.blank_sums = F.pad(sums, (1, 0))[:, None]  # (rows, 1, 1 + frames): log p of blanks alone
        self.padding = torch.zeros_like(sums)[:, None].masked_fill(~valid[:, None], -torch.inf)  # (rows, 1, frames)

    @property
    def frames(self) -> int:
        return self.padding.size(2)

    def initial(self) -> PrefixState:
        """The state of the empty prefix, one for each row."""
        sums = self.blank_sums
        zero = sums.new_zeros(len(sums), 1)
        return PrefixState(
            torch.full_like(sums, -torch.inf), sums.clone(), zero, torch.full_like(zero, self.start, dtype=torch.long)
        )

    def advance(self, state: PrefixState, tokens: Tensor, valid: Tensor | None = None) -> PrefixState:
        """Append tokens (rows, beams); START and tokens that are not valid change nothing.

        With r(t) for the prefix and r'(t) for the longer one: r'n(t) = (r'n(t-1) + φ(t-1)) · p(token, t), and then
        r'b(t) = (r'b(t-1) + r'n(t-1)) · p(blank, t). φ = rb + rn, without rn if the token equals the last one.
        """
        changed = tokens != self.start
        if valid is not None:
            changed = changed & valid
        column = self._logprobs_of(tokens)
        before = self._extendable(state, tokens)
        nonblank = decayed_sum(before, F.pad(column.cumsum(-1), (1, 0))) + self.padding
        nonblank = F.pad(nonblank, (1, 0), value=-torch.inf)
        blank = F.pad(decayed_sum(nonblank[..., :-1], self.blank_sums), (1, 0), value=-torch.inf)
        logprob = (before + column + self.padding).logsumexp(-1)
        new = PrefixState(nonblank, blank, logprob, tokens)
        for name in PrefixState.NAMES:
            value, old = getattr(new, name), getattr(state, name)
            setattr(new, name, torch.where(changed if value.dim() == 2 else changed[:, :, None], value, old))
        return new

    def scores(self, state: PrefixState) -> Tensor:
        """log p(token | prefix) (rows, beams, vocab), where END is the end of the text."""
        paths = torch.logaddexp(state.nonblank, state.blank)
        before = paths[..., :-1] + self.padding
        top = before.amax(-1, keepdim=True).clamp(min=LEAST)
        totals = ((before - top).exp() @ self.probabilities.transpose(1, 2)).log() + top
        again = state.blank[..., :-1] + self._logprobs_of(state.last) + self.padding  # the last token needs a blank
        totals.scatter_(2, state.last[:, :, None], again.logsumexp(-1, keepdim=True))
        scores = totals - state.logprob[:, :, None].clamp(min=LEAST)
        scores[:, :, self.blank] = -torch.inf
        scores[:, :, self.start] = -torch.inf
        ended = paths[..., -1] - state.logprob.clamp(min=LEAST)
        scores[:, :, self.end] = ended.masked_fill(state.logprob == -torch.inf, 0.0)
        return scores

    def pad(self, frames: int) -> None:
        """Add frames of padding."""
        if more := frames - self.frames:
            self.probabilities = F.pad(self.probabilities, (0, more))
            self.probabilities[:, self.blank, -more:] = 1.0
            self.blank_sums = torch.cat([self.blank_sums, self.blank_sums[:, :, -1:].repeat(1, 1, more)], 2)
            self.padding = F.pad(self.padding, (0, more), value=-torch.inf)

    def _extendable(self, state: PrefixState, tokens: Tensor) -> Tensor:
        """log φ (rows, beams, frames): of each frame, the paths before it that the token can extend."""
        nonblank = state.nonblank.masked_fill((tokens == state.last)[:, :, None], -torch.inf)
        return torch.logaddexp(nonblank, state.blank)[..., :-1]

    def _logprobs_of(self, tokens: Tensor) -> Tensor:
        """(rows, beams, frames): log p of each token in every frame, finite also in padding."""
        index = tokens[:, :, None].expand(-1, -1, self.frames)
        return self.probabilities.gather(1, index).log().clamp(min=LOG_FLOOR)


def decayed_sum(inputs: Tensor, sums: Tensor) -> Tensor:
    """log x(1…n) of x(t) = (x(t-1) + u(t-1)) · p(t) with x(0) = 0.

    inputs (…, n) has log u(0…n-1); sums (…, 1 + n) has log p(1) + … + log p(t), 0 first.
    """
    return sums[..., 1:] + (inputs - sums[..., :-1]).logcumsumexp(-1)
