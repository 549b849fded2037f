"""Performer's random features (2009.14794): softmax attention in linear time, as an expectation.

exp(q·k/√d) is the mean of exp(w·q̂ − |q̂|²/2) · exp(w·k̂ − |k̂|²/2) over random directions w, where x̂ = x/d^¼. These
numbers, the features, are positive; directions that are orthogonal make the estimate better than independent ones do.

Features span hundreds of orders of magnitude. So each token's are divided by their largest, and what a key lost by that
is given back relative to the largest *so far*: neither padding nor anything later decides what is still a number.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..cache.base import CacheLayout, FeatureSums, LayerCache
from ..kernels import Kernel, normalised, spread
from ..masks import Mask

SPAN = 16  # chunks of a text that are looked at together
HIDDEN = -1e30  # the log of the largest feature of a key that is not to be seen: less than that of no key at all
APART = 1e4  # between such logs of two texts in one row, so that the running maximum starts anew


class KeyFeatures(NamedTuple):
    """What is to be summed up: `tops` are the logs of what the features were divided by."""

    features: Tensor  # (batch, heads, tokens, features)
    tops: Tensor  # (batch, heads, tokens, 1)
    values: Tensor  # (batch, heads, tokens, head_width + 8): ones stand behind, whose sum is the divisor
    segments: Tensor | None  # (batch, 1, tokens)

    def each(self, change: Callable[[Tensor, float], Tensor]) -> "KeyFeatures":
        """`change` is told what to put where there is no token."""
        segments = None if self.segments is None else change(self.segments[..., None], -1)[..., 0]
        return KeyFeatures(change(self.features, 0), change(self.tops, HIDDEN), change(self.values, 0), segments)


class RandomFeatureKernel(Kernel):
    """FAVOR+. The features belong to the model and are drawn anew every `redraw` updates of a training (0: never)."""

    biasable = False
    directions: Tensor

    def __init__(self, head_width: int, features: int, chunk: int = 128, redraw: int = 0) -> None:
        super().__init__()
        if features < 1:
            raise ValueError(f"{features} features estimate nothing; use 1 or more")
        self.chunk, self.redraw = chunk, redraw
        self.register_buffer("directions", draw(features, head_width))

    def resample(self, step: int, seed: int) -> None:
        """Before update `step` of a training, whose seed and step decide `seed`."""
        if self.redraw and step % self.redraw == 0:
            features, head_width = self.directions.shape
            self.directions.copy_(draw(features, head_width, torch.Generator().manual_seed(seed)))

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        """Directions move with the model but are never rounded: they are exponents."""
        exact = self.directions
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.directions = exact.to(self.directions.device)
        return self

    def features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(batch, heads, tokens, features), the largest being 1, and the logs of what they were divided by."""
        logs = self.log_features(x)
        tops = logs.detach().amax(-1, keepdim=True)
        return (logs - tops).exp(), tops

    def log_features(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(torch.promote_types(x.dtype, torch.float32)) * x.size(-1) ** -0.25
            return x @ self.directions.to(x.dtype).T - x.square().sum(-1, keepdim=True) / 2

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None = None, memory: LayerCache | None = None
    ) -> Tensor:
        self._refuse(mask)
        beams = 0 if memory is None else memory.beams
        if beams:  # alternatives of one place: each has sums of its own
            q, k, v = (x.transpose(1, 2).flatten(0, 1)[:, :, None] for x in (q, k, v))
        asked, (features, tops) = self.features(q)[0], self.features(k)
        if mask.key_valid is not None:
            tops = tops.masked_fill(~mask.key_valid[:, None, :, None], HIDDEN)
        segments = None if mask.segments is None else mask.segments[:, None]
        keys = KeyFeatures(features.to(v.dtype), tops, F.pad(v, (0, 8), value=1.0), segments)
        asked = asked.to(v.dtype)
        mixed = self._causal(asked, keys, memory) if mask.causal else whole(asked, keys)
        mixed = divide(mixed[..., :-8], mixed[..., -1:]).to(v.dtype)
        if beams:
            mixed = torch.unflatten(mixed[:, :, 0], 0, (-1, beams)).transpose(1, 2)
        return mixed

    def _refuse(self, mask: Mask) -> None:
        if mask.segments is not None and not mask.causal:
            raise ValueError(
                "favor attention in both directions keeps one sum per row and cannot pack; set data.packed=false, or "
                "use model.attention.kind=dense or window"
            )
        if mask.exclude_self or mask.window is not None:
            raise ValueError("favor attention sums all positions up and cannot leave some out; use dense or window")

    def _causal(self, q: Tensor, keys: KeyFeatures, memory: LayerCache | None) -> Tensor:
        """Span by span, each from the sums of all before it; within a span, all chunks at once."""
        tokens, heads = q.size(2), keys.features.size(1)
        chunk = min(self.chunk, tokens)
        state = (
            memory
            if isinstance(memory, FeatureSums)
            else FeatureSums(q.size(0), heads, q.size(3), keys.values.size(3), q)
        )
        past = PrefixSums(state.sums, state.top, None)
        mixed = []
        for first in range(0, tokens, SPAN * chunk):
            some = slice(first, first + SPAN * chunk)
            own = keys.each(lambda x, _, some=some: x[:, :, some])  # type: ignore[misc]
            found, past = span(q[:, :, some], own, past, chunk)
            mixed.append(found)
        if isinstance(memory, FeatureSums):
            state.sums.copy_(past.sums)  # in place: a recorded step finds them where they were
            state.top.copy_(past.top)
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed, 2)

    def weights(self, q: Tensor, k: Tensor, mask: Mask, bias: Tensor | None = None) -> Tensor:
        """What a whole pass gives to each key: the product of its features, as a share of all that is visible."""
        (asked, _), (features, tops) = self.features(q), self.features(spread(k, q.size(1)))
        return normalised((asked @ features.transpose(-2, -1)).log() + tops.transpose(-2, -1), mask, None)

    def prepare(self, mask: Mask, queries: int, keys: int, device: torch.device) -> None:
        """No mask is ever built."""

    def cache_layout(self, capacity: int | None) -> tuple[Any, ...]:
        return (CacheLayout,)

    def layer_cache(self, book: Any, rows: int, heads: int, head_width: int, like: Tensor) -> LayerCache:
        return FeatureSums(rows, heads, self.directions.size(0), head_width + 8, like)


def draw(features: int, width: int, generator: torch.Generator | None = None, orthogonal: bool = True) -> Tensor:
    """Directions (features, width), each as long as one of independent normal numbers is; as many as can be are
    orthogonal to one another."""
    lengths = torch.randn(features, width, generator=generator)
    if not orthogonal:
        return lengths
    # Not qr alone, whose signs are not random: the estimate would be off however many features there are.
    squares = [
        nn.init.orthogonal_(torch.empty(width, width), generator=generator) for _ in range(-(-features // width))
    ]
    made: Tensor = torch.cat(squares)[:features] * lengths.norm(dim=1, keepdim=True)
    return made


def whole(q: Tensor, keys: KeyFeatures) -> Tensor:
    """Every query sees every key: one sum for all of them."""
    top = keys.tops.amax(2, keepdim=True).clamp(min=FeatureSums.NOTHING)
    sums = keys.features.transpose(-2, -1) @ ((keys.tops - top).exp().to(keys.values.dtype) * keys.values)
    return q @ spread(sums, q.size(1))


class PrefixSums(NamedTuple):
    """All that was before: its sums in units of e^top, and which text of the row they are of."""

    sums: Tensor  # (batch, heads, features, head_width + 8)
    top: Tensor  # (batch, heads, 1, 1)
    segment: Tensor | None  # (batch, 1, 1)


def span(q: Tensor, keys: KeyFeatures, past: PrefixSums, chunk: int) -> tuple[Tensor, PrefixSums]:
    """Queries see the sums of all earlier chunks, and by an ordinary triangle their own; then comes the new past.

    All exponents are differences to the running maximum, so that none is above zero.
    """
    tokens, groups, extra = q.size(2), q.size(1) // keys.features.size(1), -q.size(2) % chunk
    if extra:
        q, keys = F.pad(q, (0, 0, 0, extra)), keys.each(lambda x, fill: F.pad(x, (0, 0, 0, extra), value=fill))
    most = running(keys, past)
    q = torch.unflatten(torch.unflatten(q, 1, (-1, groups)), 3, (-1, chunk)).transpose(2, 3).flatten(3, 4)
    own = keys.each(lambda x, _: torch.unflatten(x, 2, (-1, chunk)))
    most = torch.unflatten(most, 2, (-1, chunk))  # (batch, heads, chunks, chunk, 1)
    ends = torch.cat([past.top, most[:, :, :, -1]], 2)  # (batch, heads, chunks + 1, 1)
    same = SegmentFilter(own.segments, past.segment)

    near = same.within(own.tops.transpose(-2, -1) - most).to(q.dtype)  # (batch, heads, chunks, chunk, chunk)
    scores = torch.unflatten(q @ own.features.transpose(-2, -1), 3, (groups, chunk)) * near[:, :, :, None]
    mixed = scores.flatten(3, 4) @ own.values

    left = same.at_end(own.tops - ends[:, :, 1:, None]).to(q.dtype) * own.values
    new = (own.features.transpose(-2, -1) @ left).to(past.sums.dtype)  # (batch, heads, chunks, features, …)
    every = torch.cat([past.sums[:, :, None], new], 2)
    kept = same.across(ends.transpose(-2, -1) - ends)  # (batch, heads, chunks + 1, chunks + 1)
    with torch.autocast(q.device.type, enabled=False):  # these go on from span to span
        sums = torch.unflatten(kept @ every.flatten(3), -1, every.shape[3:])

    far = same.from_past(ends[:, :, :-1, None] - most).to(q.dtype)  # (batch, heads, chunks, chunk, 1)
    seen = torch.unflatten(q @ sums[:, :, :-1].to(q.dtype), 3, (groups, chunk)) * far[:, :, :, None]
    mixed = torch.unflatten(mixed, 3, (groups, chunk)) + seen
    mixed = mixed.transpose(2, 3).flatten(1, 2).flatten(2, 3)[:, :, :tokens]
    return mixed, PrefixSums(sums[:, :, -1], ends[:, :, -1:], same.last)


def running(keys: KeyFeatures, past: PrefixSums) -> Tensor:
    """The largest top up to each key, of its own text: (batch, heads, tokens, 1). Any number near it would do."""
    if keys.segments is None:
        return torch.maximum(keys.tops.cummax(2).values, past.top)
    text = keys.segments.diff(dim=2, prepend=keys.segments[:, :, :1]).ne(0).cumsum(2)[..., None] * APART
    most = (keys.tops + text).cummax(2).values - text
    if past.segment is None:
        return most.clamp(min=FeatureSums.NOTHING)
    goes_on = (keys.segments == past.segment)[..., None]
    return torch.where(goes_on, torch.maximum(most, past.top), most).clamp(min=FeatureSums.NOTHING)


class SegmentFilter:
    """Who is of the same text as whom. Differences of logs come in, factors go out: nothing of another text is left."""

    def __init__(self, segments: Tensor | None, past: Tensor | None) -> None:
        """`segments` (batch, 1, chunks, chunk); `past` (batch, 1, 1), absent where nothing is past."""
        self.segments, self.last = segments, None if segments is None else segments[:, :, -1, -1:]
        if segments is not None:
            nobody = torch.full_like(segments[:, :, 0, :1], -2)
            self.ends = torch.cat([nobody if past is None else past, segments[..., -1]], 2)  # (batch, 1, chunks + 1)

    def within(self, logs: Tensor) -> Tensor:
        earlier = torch.ones(logs.shape[-2:], dtype=torch.bool, device=logs.device).tril()
        seg = self.segments
        return factors(logs, earlier if seg is None else earlier & (seg[..., :, None] == seg[..., None, :]))

    def at_end(self, logs: Tensor) -> Tensor:
        return factors(logs, None if self.segments is None else (self.segments == self.ends[..., 1:, None])[..., None])

    def from_past(self, logs: Tensor) -> Tensor:
        return factors(logs, None if self.segments is None else (self.segments == self.ends[..., :-1, None])[..., None])

    def across(self, logs: Tensor) -> Tensor:
        earlier = torch.ones(logs.shape[-2:], dtype=torch.bool, device=logs.device).tril()
        if self.segments is None:
            return factors(logs, earlier)
        return factors(logs, earlier & (self.ends[..., :, None] == self.ends[..., None, :]))


def factors(logs: Tensor, seen: Tensor | None) -> Tensor:
    return (logs if seen is None else logs.masked_fill(~seen, -torch.inf)).exp()


def divide(mixed: Tensor, total: Tensor) -> Tensor:
    return torch.where(total > 0, mixed / total.clamp(min=torch.finfo(total.dtype).tiny), 0.0)
