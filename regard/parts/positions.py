"""Positional schemes, asked by index tensors. Each fills only the seams it needs.

`place` adds to the input of a stack. `where` is asked once per call of a stack; the `Where` it returns serves every
layer: `tint` (inputs of query and key), `rotate` (their heads), `bias` (scores, from the raw query).
"""

import math
from collections.abc import Callable
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from .masks import Mask

Layout = Literal["interleaved", "halves", "whisper"]


class PositionTerms:
    """What one call of a stack knows about places. This one knows nothing."""

    includes_mask = False  # does `bias` already hide what the mask hides?

    def add_to_query_key(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return query, key  # (batch, tokens, width)

    def rotate(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return q, k  # (batch, heads, tokens, head_width)

    def bias(self, q: Tensor) -> Tensor | None:
        return None  # broadcastable to (batch, heads, queries, keys), in units of the final score

    def select_queries(self, index: Tensor) -> "PositionTerms":
        """The same where only these of the queries ask, (batch, some) by their places in the row."""
        return self


NO_POSITIONS = PositionTerms()


class Positions(nn.Module):
    biased = False  # does it add to scores? a kernel without scores refuses it at build time
    context: int | None = None  # how many places it knows; None: any number

    def add_to_input(self, x: Tensor, at: Tensor | None = None) -> Tensor:
        return x

    def terms(self, x: Tensor, handed: Mask, seen: Mask) -> PositionTerms:
        """`handed` describes the keys given to the layers now, `seen` those plus the remembered ones."""
        return NO_POSITIONS


def positions_of(x: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
    keys = x.size(1) if mask.key_positions is None else mask.key_positions.size(1)
    return mask.query_key_positions(x.size(1), keys, x.device)


class LearnedPositions(Positions):
    """A vector for each place. RoBERTa, BART and Longformer leave the first rows of the table unused (`skip`)."""

    def __init__(self, tokens: int, width: int, skip: int = 0) -> None:
        super().__init__()
        self.table, self.skip, self.context = nn.Embedding(tokens + skip, width), skip, tokens

    def add_to_input(self, x: Tensor, at: Tensor | None = None) -> Tensor:
        if at is None:
            if self.context is not None and x.size(1) > self.context:
                raise ValueError(beyond_context(x.size(1), self.context))
            return x + self.table.weight[self.skip : self.skip + x.size(1)]
        placed: Tensor = x + self.table(at + self.skip)
        return placed


def beyond_context(tokens: int, context: int) -> str:
    return (
        f"a text of {tokens} tokens is longer than the {context} places that learned positions know; "
        "shorten it, or train with more (model.positions.tokens) or with model.positions.kind=rotary or sinusoid"
    )


class FrequencyPositions(Positions):
    """Angles grow with the position, each at its own rate."""

    rate: Tensor

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        """Rates move with the model but are never rounded: in bfloat16 an angle at place 500 would be noise."""
        exact = self.rate
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.rate = exact.to(self.rate.device)
        return self


class SinusoidPositions(FrequencyPositions):
    """Vaswani et al.: sine and cosine `interleaved`. Marian lays them out in `halves`; so does `whisper`, stretched."""

    def __init__(self, width: int, layout: Layout = "interleaved") -> None:
        super().__init__()
        if width % 2:
            raise ValueError(f"sinusoidal positions need an even width, not {width}")
        half = width // 2
        rate = torch.exp(torch.arange(half) * (-math.log(10000.0) / (half - 1 if layout == "whisper" else half)))
        self.register_buffer("rate", rate, persistent=False)
        self.layout = layout

    def vectors(self, at: Tensor) -> Tensor:
        angle = at[..., None] * self.rate  # `at` may be fractional: DETR's grid
        sin, cos = angle.sin(), angle.cos()
        if self.layout == "interleaved":
            return torch.stack([sin, cos], -1).flatten(-2)
        return torch.cat([sin, cos], -1)

    def add_to_input(self, x: Tensor, at: Tensor | None = None) -> Tensor:
        at = torch.arange(x.size(1), device=x.device) if at is None else at
        return x + self.vectors(at).to(x.dtype)


class GridPositions(nn.Module):
    """DETR: rows and columns counted over real pixels, scaled to a full turn; half of the width for each."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.sinusoid = SinusoidPositions(width // 2)

    def forward(self, real: Tensor) -> Tensor:
        """real (batch, rows, columns) bool -> (batch, rows · columns, width)."""
        y, x = real.float().cumsum(1), real.float().cumsum(2)
        y, x = y / (y[:, -1:] + 1e-6) * 2 * math.pi, x / (x[:, :, -1:] + 1e-6) * 2 * math.pi
        return torch.cat([self.sinusoid.vectors(y), self.sinusoid.vectors(x)], -1).flatten(1, 2)


class RotaryPositions(FrequencyPositions):
    """Su et al. (2104.09864): query and key heads are turned by an angle that grows with the position."""

    def __init__(self, head_width: int, base: float = 10000.0) -> None:
        super().__init__()
        if head_width % 2:
            raise ValueError(f"rotary positions turn pairs and need an even head width, not {head_width}")
        self.register_buffer("rate", base ** (-torch.arange(0, head_width, 2) / head_width), persistent=False)

    def terms(self, x: Tensor, handed: Mask, seen: Mask) -> PositionTerms:
        at, keys_at = positions_of(x, handed)
        queries = self._angles(at, x.dtype)
        return RotaryTerms(queries, queries if keys_at is at else self._angles(keys_at, x.dtype))

    def _angles(self, at: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        angle = at[:, None, :, None] * self.rate  # (batch, 1, tokens, head_width / 2)
        return angle.cos().to(dtype), angle.sin().to(dtype)


class RotaryTerms(PositionTerms):
    def __init__(self, queries: tuple[Tensor, Tensor], keys: tuple[Tensor, Tensor]) -> None:
        self.queries, self.keys = queries, keys

    def rotate(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """As precise as they came: under autocast the angles are finer than the heads."""
        return rotate_pairs(q, *self.queries).to(q.dtype), rotate_pairs(k, *self.keys).to(k.dtype)

    def select_queries(self, index: Tensor) -> PositionTerms:
        cos, sin = (
            each.expand(len(index), -1, -1, -1).gather(2, index[:, None, :, None].expand(-1, -1, -1, each.size(3)))
            for each in self.queries
        )
        return RotaryTerms((cos, sin), self.keys)


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


class BucketPositions(Positions):
    """T5 (1910.10683): a learned score per head and per bucket of distance; one table for a whole stack."""

    biased = True

    def __init__(self, heads: int, buckets: int = 32, far: int = 128, causal: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(buckets, heads)
        self.buckets, self.far, self.causal = buckets, far, causal

    def terms(self, x: Tensor, handed: Mask, seen: Mask) -> PositionTerms:
        at, keys_at = positions_of(x, seen)
        bucket = self._bucket(keys_at[:, None, :] - at[:, :, None])  # (batch, queries, keys)
        scores = self.table(bucket).permute(0, 3, 1, 2)  # (batch, heads, queries, keys)
        visible = seen.visible(x.size(1), keys_at.size(1), x.device)
        # Hidden here, once for all layers; a later masked_fill would repeat this large tensor in each of them.
        return BiasTerms(scores if visible is None else scores.masked_fill(~visible, -torch.inf))

    def _bucket(self, gap: Tensor) -> Tensor:
        buckets, side = self.buckets, torch.zeros_like(gap)
        if self.causal:
            gap = (-gap).clamp(min=0)
        else:
            buckets //= 2
            side, gap = (gap > 0) * buckets, gap.abs()
        exact = buckets // 2
        log = torch.log(gap.clamp(min=1) / exact) / math.log(self.far / exact)
        coarse = exact + (log * (buckets - exact)).long()
        return side + torch.where(gap < exact, gap, coarse.clamp(max=buckets - 1))


class BiasTerms(PositionTerms):
    includes_mask = True

    def __init__(self, scores: Tensor) -> None:
        self.scores = scores

    def bias(self, q: Tensor) -> Tensor | None:
        return self.scores.to(q.dtype)


class RelativePositions(Positions):
    """Transformer-XL (1901.02860): ((q + u)·k + (q + v)·r)/√d, with r a projection of the sinusoid of the distance.

    The projection is each layer's own, so a stack is given a list of these; u and v may be shared between them.
    """

    biased = True

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.sinusoid = SinusoidPositions(width)
        self.key = nn.Linear(width, width, bias=False)
        self.u, self.v = (nn.Parameter(torch.zeros(heads, 1, width // heads)) for _ in range(2))

    def terms(self, x: Tensor, handed: Mask, seen: Mask) -> PositionTerms:
        at, keys_at = positions_of(x, seen)
        keys, width = keys_at.size(1), self.key.in_features
        distances = torch.arange(keys, device=x.device)
        waves = seen.cached(("waves", width, keys), lambda: self.sinusoid.vectors(distances).to(x.dtype))
        if seen.positions is None and seen.key_positions is None:
            return RelativeTerms(self, waves, None)
        gaps = lambda: (at[:, :, None] - keys_at[:, None, :]).clamp(0, keys - 1)  # noqa: E731  later keys are masked
        return RelativeTerms(self, waves, seen.cached("gaps", gaps)[:, None])

    def scores(self, q: Tensor, waves: Tensor) -> Tensor:
        """(q + v)·r/√d for every distance, (batch, heads, queries, distances)."""
        q, heads = (q + self.v) / math.sqrt(q.size(-1)), self.v.size(0)
        if q.size(0) * q.size(2) * heads < waves.size(1):  # few: sooner they go to the waves than all waves to them
            return q @ torch.unflatten(self.key.weight, 0, (heads, -1)).to(q.dtype) @ waves.T
        table = torch.unflatten(self.key(waves), -1, (heads, -1)).transpose(0, 1)  # (heads, distances, head_width)
        return q @ table.transpose(-2, -1)


class RelativeTerms(PositionTerms):
    """`waves` (distances, width); `gap` (batch, 1, queries, keys) says how far each key is, None: they are 0, 1, 2…"""

    def __init__(self, own: RelativePositions, waves: Tensor, gap: Tensor | None) -> None:
        self.own, self.waves, self.gap = own, waves, gap

    def rotate(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return q + self.own.u, k

    def bias(self, q: Tensor) -> Tensor | None:
        scores = self.own.scores(q, self.waves)
        return shift(scores) if self.gap is None else scores.gather(-1, self.gap.expand(*scores.shape[:3], -1))


def shift(scores: Tensor) -> Tensor:
    """scores[…, i, distance] -> […, i, j] with distance = i − j, by one padded copy; later keys hold leftovers."""
    queries, keys = scores.shape[-2:]
    flipped = nn.functional.pad(scores.flip(-1), (1, 0))  # column j + 1 now holds distance keys − 1 − j
    return torch.unflatten(flipped.flatten(-2)[..., queries:], -1, (queries, keys))


class AddedTerms(PositionTerms):
    """DETR: the same vectors are added to the query and key inputs of every layer, never to the values."""

    def __init__(self, queries: Tensor, keys: Tensor) -> None:
        self.queries, self.keys = queries, keys

    def add_to_query_key(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return query + self.queries, key + self.keys

    def select_queries(self, index: Tensor) -> PositionTerms:
        queries = self.queries.expand(len(index), -1, -1)
        return AddedTerms(queries.gather(1, index[..., None].expand(-1, -1, queries.size(2))), self.keys)
