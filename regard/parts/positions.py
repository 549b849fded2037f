"""Positional schemes. Each implements only the methods it needs.

`Positions.add_to_input` adds to the input of a stack. `Positions.terms` runs once per call of a stack; the
`PositionTerms` it returns serve every layer: `add_to_query_key` (inputs of the projections), `rotate` (query and key
heads), `bias` (scores, from the query before rotation).
"""

import math
from collections.abc import Callable
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from .masks import Mask

SinusoidLayout = Literal["interleaved", "halves", "whisper"]


class PositionTerms:
    """The positional contributions to one call of a stack. This base class contributes nothing."""

    includes_mask = False  # True: `bias` already includes the mask

    def add_to_query_key(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys with what positions add to them."""
        return query, key  # (batch, tokens, width)

    def rotate(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Rotated queries and keys."""
        return q, k  # (batch, heads, tokens, head_width)

    def bias(self, q: Tensor) -> Tensor | None:
        """What positions add to the scores; None: nothing."""
        return None  # broadcastable to (batch, heads, queries, keys), in units of the final score

    def select_queries(self, index: Tensor) -> "PositionTerms":
        """The terms for a subset of the queries; `index` (batch, some) holds their indices in the row."""
        return self


NO_POSITIONS = PositionTerms()


class Positions(nn.Module):
    """A scheme of positions; this one adds nothing."""

    biased = False  # True: it adds to scores, so a stack refuses kernels without scores
    context: int | None = None  # number of supported positions; None: unlimited

    def add_to_input(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """The input with position vectors."""
        return x

    def terms(self, x: Tensor, new_mask: Mask, visible_mask: Mask) -> PositionTerms:
        """`new_mask` describes the keys that the layers receive now, `visible_mask` those and the cached ones."""
        return NO_POSITIONS


def query_key_positions(x: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
    """The positions of queries and keys."""
    keys = x.size(1) if mask.key_positions is None else mask.key_positions.size(1)
    return mask.query_key_positions(x.size(1), keys, x.device)


class LearnedPositions(Positions):
    """A learned vector per position. RoBERTa, BART and Longformer leave the first rows of the table unused (`skip`)."""

    def __init__(self, tokens: int, width: int, skip: int = 0) -> None:
        super().__init__()
        self.table, self.skip, self.context = nn.Embedding(tokens + skip, width), skip, tokens

    def add_to_input(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        if positions is None:
            if self.context is not None and x.size(1) > self.context:
                raise ValueError(beyond_context_message(x.size(1), self.context))
            return x + self.table.weight[self.skip : self.skip + x.size(1)]
        out: Tensor = x + self.table(positions + self.skip)
        return out


def beyond_context_message(tokens: int, context: int) -> str:
    """The message for a text that is longer than the positions."""
    return (
        f"a text of {tokens} tokens is longer than the {context} learned positions; "
        "shorten it, or train with more (model.positions.tokens) or with model.positions.kind=rotary or sinusoid"
    )


class FrequencyPositions(Positions):
    """Base of the schemes whose angles grow with the position, each at its own rate."""

    rate: Tensor

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        """Move the rates with the model but never round them: in bfloat16 an angle at position 500 would be noise."""
        exact = self.rate
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.rate = exact.to(self.rate.device)
        return self


class SinusoidPositions(FrequencyPositions):
    """Vaswani et al.: sine and cosine `interleaved`. Marian uses `halves`; `whisper` too, with stretched rates."""

    def __init__(self, width: int, layout: SinusoidLayout = "interleaved") -> None:
        super().__init__()
        if width % 2:
            raise ValueError(f"sinusoidal positions need an even width, not {width}; use {width + 1}")
        half = width // 2
        rate = torch.exp(torch.arange(half) * (-math.log(10000.0) / (half - 1 if layout == "whisper" else half)))
        self.register_buffer("rate", rate, persistent=False)
        self.layout = layout

    def vectors(self, positions: Tensor) -> Tensor:
        """The vectors of positions."""
        angle = positions[..., None] * self.rate  # positions may be fractional: DETR's grid
        sin, cos = angle.sin(), angle.cos()
        if self.layout == "interleaved":
            return torch.stack([sin, cos], -1).flatten(-2)
        return torch.cat([sin, cos], -1)

    def add_to_input(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        positions = torch.arange(x.size(1), device=x.device) if positions is None else positions
        return x + self.vectors(positions).to(x.dtype)


class StoredPositions(Positions):
    """A fixed vector per position, from a table that is saved with the weights."""

    table: Tensor

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.register_buffer("table", table)

    def add_to_input(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        rows = self.table[: x.size(1)] if positions is None else self.table[positions]
        return x + rows.to(x.dtype)


class GridPositions(nn.Module):
    """DETR: row and column positions over valid pixels, scaled to 2π; half of the width for each."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.sinusoid = SinusoidPositions(width // 2)

    def forward(self, valid: Tensor) -> Tensor:
        """valid (batch, rows, columns) bool -> (batch, rows · columns, width)."""
        y, x = valid.float().cumsum(1), valid.float().cumsum(2)
        y, x = y / (y[:, -1:] + 1e-6) * 2 * math.pi, x / (x[:, :, -1:] + 1e-6) * 2 * math.pi
        return torch.cat([self.sinusoid.vectors(y), self.sinusoid.vectors(x)], -1).flatten(1, 2)


class RotaryPositions(FrequencyPositions):
    """Su et al. (2104.09864): rotate query and key heads by angles that grow with the position."""

    def __init__(self, head_width: int, base: float = 10000.0) -> None:
        super().__init__()
        if head_width % 2:
            raise ValueError(
                f"rotary positions rotate pairs and need an even head width, not {head_width}; use {head_width + 1}"
            )
        self.register_buffer("rate", base ** (-torch.arange(0, head_width, 2) / head_width), persistent=False)

    def terms(self, x: Tensor, new_mask: Mask, visible_mask: Mask) -> PositionTerms:
        positions, key_positions = query_key_positions(x, new_mask)
        queries = self._angles(positions, x.dtype)
        return RotaryTerms(queries, queries if key_positions is positions else self._angles(key_positions, x.dtype))

    def _angles(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        angle = positions[:, None, :, None] * self.rate  # (batch, 1, tokens, head_width / 2)
        return angle.cos().to(dtype), angle.sin().to(dtype)


class RotaryTerms(PositionTerms):
    """The rotations of one call."""

    def __init__(self, queries: tuple[Tensor, Tensor], keys: tuple[Tensor, Tensor]) -> None:
        self.queries, self.keys = queries, keys

    def rotate(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Keep the dtype of the heads: under autocast the angles are more precise."""
        return rotate_pairs(q, *self.queries).to(q.dtype), rotate_pairs(k, *self.keys).to(k.dtype)

    def select_queries(self, index: Tensor) -> PositionTerms:
        cos, sin = (
            table.expand(len(index), -1, -1, -1).gather(2, index[:, None, :, None].expand(-1, -1, -1, table.size(3)))
            for table in self.queries
        )
        return RotaryTerms((cos, sin), self.keys)


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs of values."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


class BucketPositions(Positions):
    """T5 (1910.10683): a learned score per head and distance bucket; one table for the whole stack."""

    biased = True

    def __init__(self, heads: int, buckets: int = 32, far: int = 128, causal: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(buckets, heads)
        self.buckets, self.far, self.causal = buckets, far, causal

    def terms(self, x: Tensor, new_mask: Mask, visible_mask: Mask) -> PositionTerms:
        positions, key_positions = query_key_positions(x, visible_mask)
        bucket = self._bucket(key_positions[:, None, :] - positions[:, :, None])  # (batch, queries, keys)
        scores = self.table(bucket).permute(0, 3, 1, 2)  # (batch, heads, queries, keys)
        visible = visible_mask.visible(x.size(1), key_positions.size(1), x.device)
        # Masked here, once for all layers; a later masked_fill would copy this large tensor in each of them.
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
    """A bias of one call."""

    includes_mask = True

    def __init__(self, scores: Tensor) -> None:
        self.scores = scores

    def bias(self, q: Tensor) -> Tensor | None:
        return self.scores.to(q.dtype)


class RelativePositions(Positions):
    """Transformer-XL (1901.02860): ((q + u)·k + (q + v)·r)/√d, with r a projection of the sinusoid of the distance.

    Each layer has its own projection, so a stack receives a list of these; they may share u and v.
    """

    biased = True

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.sinusoid = SinusoidPositions(width)
        self.key = nn.Linear(width, width, bias=False)
        self.u, self.v = (nn.Parameter(torch.zeros(heads, 1, width // heads)) for _ in range(2))

    def terms(self, x: Tensor, new_mask: Mask, visible_mask: Mask) -> PositionTerms:
        positions, key_positions = query_key_positions(x, visible_mask)
        keys, width = key_positions.size(1), self.key.in_features
        distances = torch.arange(keys, device=x.device)
        sinusoids = visible_mask.cached(
            ("sinusoids", width, keys), lambda: self.sinusoid.vectors(distances).to(x.dtype)
        )
        if visible_mask.positions is None and visible_mask.key_positions is None:
            return RelativeTerms(self, sinusoids, None)

        def build() -> Tensor:
            return (positions[:, :, None] - key_positions[:, None, :]).clamp(0, keys - 1)  # later keys are masked

        return RelativeTerms(self, sinusoids, visible_mask.cached("distances", build)[:, None])

    def scores(self, q: Tensor, sinusoids: Tensor) -> Tensor:
        """(q + v)·r/√d for every distance, (batch, heads, queries, distances)."""
        q, heads = (q + self.v) / math.sqrt(q.size(-1)), self.v.size(0)
        if q.size(0) * q.size(2) * heads < sinusoids.size(1):  # few: project the queries instead
            return q @ torch.unflatten(self.key.weight, 0, (heads, -1)).to(q.dtype) @ sinusoids.T
        table = torch.unflatten(self.key(sinusoids), -1, (heads, -1)).transpose(0, 1)  # (heads, distances, head_width)
        return q @ table.transpose(-2, -1)


class RelativeTerms(PositionTerms):
    """`sinusoids` (distances, width). `distances` (batch, 1, queries, keys); None: positions are 0, 1, 2…"""

    def __init__(self, scheme: RelativePositions, sinusoids: Tensor, distances: Tensor | None) -> None:
        self.scheme, self.sinusoids, self.distances = scheme, sinusoids, distances

    def rotate(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return q + self.scheme.u, k

    def bias(self, q: Tensor) -> Tensor | None:
        scores = self.scheme.scores(q, self.sinusoids)
        if self.distances is None:
            return shift_scores(scores)
        return scores.gather(-1, self.distances.expand(*scores.shape[:3], -1))


def shift_scores(scores: Tensor) -> Tensor:
    """scores[…, i, distance] -> […, i, j] with distance = i − j, by one padded copy; later keys hold garbage."""
    queries, keys = scores.shape[-2:]
    flipped = nn.functional.pad(scores.flip(-1), (1, 0))  # column j + 1 now holds distance keys − 1 − j
    return torch.unflatten(flipped.flatten(-2)[..., queries:], -1, (queries, keys))


class AddedTerms(PositionTerms):
    """DETR: add the same vectors to the query and key inputs of every layer, never to the values."""

    def __init__(self, queries: Tensor, keys: Tensor) -> None:
        self.queries, self.keys = queries, keys

    def add_to_query_key(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return query + self.queries, key + self.keys

    def select_queries(self, index: Tensor) -> PositionTerms:
        queries = self.queries.expand(len(index), -1, -1)
        return AddedTerms(queries.gather(1, index[..., None].expand(-1, -1, queries.size(2))), self.keys)
