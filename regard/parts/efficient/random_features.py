"""Performer's random features (2009.14794): softmax attention in linear time, as an expectation.

exp(q·k/√d) is the mean of exp(w·q̂ − |q̂|²/2) · exp(w·k̂ − |k̂|²/2) over random directions w, where x̂ = x/d^¼. These
factors, the features, are positive. Orthogonal directions give a better estimate than independent ones.

Features span hundreds of orders of magnitude. So each token's features are divided by their largest, whose log is the
token's `top`. Sums are scaled relative to the largest top *so far*: neither padding nor later tokens affect the range.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..cache.base import CacheLayout, FeatureSums, LayerCache, LayoutSpec
from ..kernels import Kernel, masked_softmax, repeat_heads
from ..masks import FIELDS, Mask

SPAN_CHUNKS = 16  # chunks of a text that are processed together
HIDDEN_TOP = -1e30  # the top of a hidden key: less than FeatureSums.NO_KEY
SEGMENT_GAP = 1e4  # added per text in a packed row, so that the running maximum restarts with each text


class KeyFeatures(NamedTuple):
    """Keys in feature space with their values; `tops` are the logs of what the features were divided by."""

    features: Tensor  # (batch, heads, tokens, features)
    tops: Tensor  # (batch, heads, tokens, 1)
    values: Tensor  # (batch, heads, tokens, head_width + 8): ones follow the values, and their sum is the divisor
    segments: Tensor | None  # (batch, 1, tokens)

    def map(self, change: Callable[[Tensor, float], Tensor]) -> "KeyFeatures":
        """Apply `change(tensor, fill)` to every field; `fill` is the value for missing tokens."""
        segments = None if self.segments is None else change(self.segments[..., None], -1)[..., 0]
        return KeyFeatures(change(self.features, 0), change(self.tops, HIDDEN_TOP), change(self.values, 0), segments)


SUMS_ALL = "favor attention sums over all positions and cannot leave some out; use dense or window"


class RandomFeatureKernel(Kernel):
    """FAVOR+. The directions are a buffer of the model, redrawn every `redraw` training steps (0: never)."""

    biasable = False
    weights_note = "implied weights: the attention that the random features stand for"
    honors = ("causal", "positions", "key_valid", "segments")
    reasons = dict.fromkeys(FIELDS, SUMS_ALL)
    directions: Tensor

    def __init__(self, head_width: int, features: int, chunk: int = 128, redraw: int = 0) -> None:
        super().__init__()
        if features < 1:
            raise ValueError(f"{features} features are too few; use 1 or more")
        self.chunk, self.redraw = chunk, redraw
        self.register_buffer("directions", draw_directions(features, head_width))

    def resample(self, step: int, seed: int) -> None:
        """Redraw the directions before training step `step`, if it is due."""
        if self.redraw and step % self.redraw == 0:
            features, head_width = self.directions.shape
            self.directions.copy_(draw_directions(features, head_width, torch.Generator().manual_seed(seed)))

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        """Move the directions with the model but never round them: they are exponents."""
        exact = self.directions
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.directions = exact.to(self.directions.device)
        return self

    def features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(batch, heads, tokens, features), scaled so that the largest is 1, and the tops: the logs of the divisors."""
        logs = self.log_features(x)
        tops = logs.detach().amax(-1, keepdim=True)
        return (logs - tops).exp(), tops

    def log_features(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(torch.promote_types(x.dtype, torch.float32)) * x.size(-1) ** -0.25
            return x @ self.directions.to(x.dtype).T - x.square().sum(-1, keepdim=True) / 2

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Mask,
        bias: Tensor | None = None,
        layer_cache: LayerCache | None = None,
    ) -> Tensor:
        self.check_mask(mask)
        beams = 0 if layer_cache is None else layer_cache.beams
        if beams:  # each beam has sums of its own
            q, k, v = (x.transpose(1, 2).flatten(0, 1)[:, :, None] for x in (q, k, v))
        query_features, (features, tops) = self.features(q)[0], self.features(k)
        if mask.key_valid is not None:
            tops = tops.masked_fill(~mask.key_valid[:, None, :, None], HIDDEN_TOP)
        segments = None if mask.segments is None else mask.segments[:, None]
        keys = KeyFeatures(features.to(v.dtype), tops, F.pad(v, (0, 8), value=1.0), segments)
        query_features = query_features.to(v.dtype)
        mixed = (
            self._attend_causal(query_features, keys, layer_cache) if mask.causal else attend_all(query_features, keys)
        )
        mixed = safe_divide(mixed[..., :-8], mixed[..., -1:]).to(v.dtype)
        if beams:
            mixed = torch.unflatten(mixed[:, :, 0], 0, (-1, beams)).transpose(1, 2)
        return mixed

    def check_mask(self, mask: Mask) -> None:
        super().check_mask(mask)
        if mask.segments is not None and not mask.causal:
            raise ValueError(
                "favor attention in both directions keeps one sum per row and cannot pack; set data.packed=false, or "
                "use model.attention.kind=dense or window"
            )

    def _attend_causal(self, q: Tensor, keys: KeyFeatures, layer_cache: LayerCache | None) -> Tensor:
        """Go span by span, each from the sums of all before it; within a span, compute all chunks at once."""
        tokens, heads = q.size(2), keys.features.size(1)
        chunk = min(self.chunk, tokens)
        state = (
            layer_cache
            if isinstance(layer_cache, FeatureSums)
            else FeatureSums(q.size(0), heads, q.size(3), keys.values.size(3), q)
        )
        past = PrefixSums(state.sums, state.top, None)
        mixed = []
        for first in range(0, tokens, SPAN_CHUNKS * chunk):
            some = slice(first, first + SPAN_CHUNKS * chunk)
            own = keys.map(lambda x, _, some=some: x[:, :, some])  # type: ignore[misc]
            out, past = attend_span(q[:, :, some], own, past, chunk)
            mixed.append(out)
        if isinstance(layer_cache, FeatureSums):
            state.sums.copy_(past.sums)  # in place: CUDA graphs need fixed addresses
            state.top.copy_(past.top)
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed, 2)

    def weights(self, q: Tensor, k: Tensor, mask: Mask, bias: Tensor | None = None) -> Tensor:
        """The weight of each key: the product of the features, normalized over the visible keys."""
        (query_features, _), (features, tops) = self.features(q), self.features(repeat_heads(k, q.size(1)))
        return masked_softmax((query_features @ features.transpose(-2, -1)).log() + tops.transpose(-2, -1), mask, None)

    def prepare(self, mask: Mask, queries: int, keys: int, device: torch.device) -> None:
        """It needs no mask tensor."""

    def cache_layout(self, capacity: int | None) -> LayoutSpec:
        return (CacheLayout,)

    def layer_cache(self, layout: CacheLayout, rows: int, heads: int, head_width: int, like: Tensor) -> LayerCache:
        return FeatureSums(rows, heads, self.directions.size(0), head_width + 8, like)


def draw_directions(
    features: int, width: int, generator: torch.Generator | None = None, orthogonal: bool = True
) -> Tensor:
    """Directions (features, width) with the lengths of normal vectors; each `width` of them are orthogonal."""
    lengths = torch.randn(features, width, generator=generator)
    if not orthogonal:
        return lengths
    # Not torch.linalg.qr alone: its signs are not random, which biases the estimate for any number of features.
    squares = [
        nn.init.orthogonal_(torch.empty(width, width), generator=generator) for _ in range(-(-features // width))
    ]
    directions: Tensor = torch.cat(squares)[:features] * lengths.norm(dim=1, keepdim=True)
    return directions


def attend_all(q: Tensor, keys: KeyFeatures) -> Tensor:
    """Every query attends to every key: one sum serves all queries."""
    top = keys.tops.amax(2, keepdim=True).clamp(min=FeatureSums.NO_KEY)
    sums = keys.features.transpose(-2, -1) @ ((keys.tops - top).exp().to(keys.values.dtype) * keys.values)
    return q @ repeat_heads(sums, q.size(1))


class PrefixSums(NamedTuple):
    """Sums over all earlier keys in units of e^top, and the segment they belong to."""

    sums: Tensor  # (batch, heads, features, head_width + 8)
    top: Tensor  # (batch, heads, 1, 1)
    segment: Tensor | None  # (batch, 1, 1)


def attend_span(q: Tensor, keys: KeyFeatures, past: PrefixSums, chunk: int) -> tuple[Tensor, PrefixSums]:
    """Attend to the sums of all earlier chunks and, by a triangular mask, within the own chunk; return the new sums.

    All exponents are differences to the running maximum, so none exceeds zero.
    """
    tokens, groups, extra = q.size(2), q.size(1) // keys.features.size(1), -q.size(2) % chunk
    if extra:
        q, keys = F.pad(q, (0, 0, 0, extra)), keys.map(lambda x, fill: F.pad(x, (0, 0, 0, extra), value=fill))
    maxima = running_max(keys, past)
    q = torch.unflatten(torch.unflatten(q, 1, (-1, groups)), 3, (-1, chunk)).transpose(2, 3).flatten(3, 4)
    own = keys.map(lambda x, _: torch.unflatten(x, 2, (-1, chunk)))
    maxima = torch.unflatten(maxima, 2, (-1, chunk))  # (batch, heads, chunks, chunk, 1)
    ends = torch.cat([past.top, maxima[:, :, :, -1]], 2)  # (batch, heads, chunks + 1, 1)
    same = SegmentFilter(own.segments, past.segment)

    near = same.within(own.tops.transpose(-2, -1) - maxima).to(q.dtype)  # (batch, heads, chunks, chunk, chunk)
    scores = torch.unflatten(q @ own.features.transpose(-2, -1), 3, (groups, chunk)) * near[:, :, :, None]
    mixed = scores.flatten(3, 4) @ own.values

    left = same.at_end(own.tops - ends[:, :, 1:, None]).to(q.dtype) * own.values
    new = (own.features.transpose(-2, -1) @ left).to(past.sums.dtype)  # (batch, heads, chunks, features, …)
    every = torch.cat([past.sums[:, :, None], new], 2)
    kept = same.across(ends.transpose(-2, -1) - ends)  # (batch, heads, chunks + 1, chunks + 1)
    with torch.autocast(q.device.type, enabled=False):  # errors in these would add up over spans
        sums = torch.unflatten(kept @ every.flatten(3), -1, every.shape[3:])

    far = same.from_past(ends[:, :, :-1, None] - maxima).to(q.dtype)  # (batch, heads, chunks, chunk, 1)
    earlier = torch.unflatten(q @ sums[:, :, :-1].to(q.dtype), 3, (groups, chunk)) * far[:, :, :, None]
    mixed = torch.unflatten(mixed, 3, (groups, chunk)) + earlier
    mixed = mixed.transpose(2, 3).flatten(1, 2).flatten(2, 3)[:, :, :tokens]
    return mixed, PrefixSums(sums[:, :, -1], ends[:, :, -1:], same.last)


def running_max(keys: KeyFeatures, past: PrefixSums) -> Tensor:
    """The largest top up to each key within its segment, (batch, heads, tokens, 1). It need not be exact."""
    if keys.segments is None:
        return torch.maximum(keys.tops.cummax(2).values, past.top)
    offset = keys.segments.diff(dim=2, prepend=keys.segments[:, :, :1]).ne(0).cumsum(2)[..., None] * SEGMENT_GAP
    maxima = (keys.tops + offset).cummax(2).values - offset
    if past.segment is None:
        return maxima.clamp(min=FeatureSums.NO_KEY)
    continues = (keys.segments == past.segment)[..., None]
    return torch.where(continues, torch.maximum(maxima, past.top), maxima).clamp(min=FeatureSums.NO_KEY)


class SegmentFilter:
    """Turns differences of logs into factors, with zeros between tokens of different segments."""

    def __init__(self, segments: Tensor | None, past: Tensor | None) -> None:
        """`segments` (batch, 1, chunks, chunk); `past` (batch, 1, 1), None if nothing is past."""
        self.segments, self.last = segments, None if segments is None else segments[:, :, -1, -1:]
        if segments is not None:
            none = torch.full_like(segments[:, :, 0, :1], -2)
            self.ends = torch.cat([none if past is None else past, segments[..., -1]], 2)  # (batch, 1, chunks + 1)

    def within(self, logs: Tensor) -> Tensor:
        earlier = torch.ones(logs.shape[-2:], dtype=torch.bool, device=logs.device).tril()
        seg = self.segments
        return masked_exp(logs, earlier if seg is None else earlier & (seg[..., :, None] == seg[..., None, :]))

    def at_end(self, logs: Tensor) -> Tensor:
        return masked_exp(
            logs, None if self.segments is None else (self.segments == self.ends[..., 1:, None])[..., None]
        )

    def from_past(self, logs: Tensor) -> Tensor:
        return masked_exp(
            logs, None if self.segments is None else (self.segments == self.ends[..., :-1, None])[..., None]
        )

    def across(self, logs: Tensor) -> Tensor:
        earlier = torch.ones(logs.shape[-2:], dtype=torch.bool, device=logs.device).tril()
        if self.segments is None:
            return masked_exp(logs, earlier)
        return masked_exp(logs, earlier & (self.ends[..., :, None] == self.ends[..., None, :]))


def masked_exp(logs: Tensor, visible: Tensor | None) -> Tensor:
    """The exponential, with zeros where the mask is False."""
    return (logs if visible is None else logs.masked_fill(~visible, -torch.inf)).exp()


def safe_divide(mixed: Tensor, total: Tensor) -> Tensor:
    """The quotient, with zeros where the divisor is zero."""
    return torch.where(total > 0, mixed / total.clamp(min=torch.finfo(total.dtype).tiny), 0.0)
