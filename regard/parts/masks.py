"""Who may look at whom. A mask is described here and materialised only by the kernel that needs it."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, fields
from functools import reduce
from operator import and_
from typing import Any, TypeVar

import torch
from torch import Tensor

ANY_SEGMENT = -2  # the segment of a key that belongs to all of them
ABSENT = 2**30  # the position of a key that is not there: later than any query, further than any reach
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Mask:
    """True is visible. An absent tensor means the plain case: positions 0, 1, 2…, every key real, one segment.

    Queries and keys are compared by *position*, not by place in the row: that is what lets one description
    serve packing, ragged rows, a cache and Transformer-XL's memory.
    """

    causal: bool = False  # no query sees a later position
    exclude_self: bool = False  # no query sees its own position
    window: int | None = None  # no query sees further than this, except global positions
    positions: Tensor | None = None  # (batch, queries) positions
    key_positions: Tensor | None = None  # (batch, keys); absent: the keys are the queries
    key_valid: Tensor | None = None  # (batch, keys) bool, real rather than padding
    segments: Tensor | None = None  # (batch, queries) several sequences share one row
    key_segments: Tensor | None = None  # (batch, keys); absent: the keys are the queries
    global_positions: Tensor | None = (
        None  # (batch, most) places seen from, and seeing, everywhere; -1 in rows with fewer
    )
    beam_ancestry: Tensor | None = (
        None  # (batch, queries, keys) bool: beams of a row stand side by side, each sees its own past
    )
    length_runs: tuple[tuple[int, int], ...] | None = (
        None  # the segments of the only row in numbers: so many of such a length
    )

    @property
    def causal_only(self) -> bool:
        """Is 'causal' all there is to say, so that a kernel needs no tensor?"""
        rest = self.window, self.positions, self.key_positions, self.key_valid, self.segments, self.beam_ancestry
        return self.causal and not self.exclude_self and all(word is None for word in rest)

    def query_key_positions(self, queries: int, keys: int, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
        """Positions of queries and keys, (batch or 1, queries) and (batch or 1, keys)."""
        at = torch.arange(queries, device=device)[None] if self.positions is None else self.positions
        if self.key_positions is not None:
            return at, self.key_positions
        return at, at if queries == keys else torch.arange(keys, device=device)[None]

    def visible(self, queries: int, keys: int, device: torch.device | None = None) -> Tensor | None:
        """(batch or 1, 1, queries or 1, keys) bool, or None where everything is visible."""
        return self.cached("visible", lambda: self._visible(queries, keys, device))

    def _visible(self, queries: int, keys: int, device: torch.device | None) -> Tensor | None:
        rules = (
            self._by_place(queries, keys, device) if self.causal or self.exclude_self or self.window is not None else []
        )
        if self.key_valid is not None:
            rules.append(self.key_valid[:, None])
        if self.segments is not None:
            other = self.segments if self.key_segments is None else self.key_segments
            same = self.segments[:, :, None] == other[:, None, :]
            rules.append(same if self.key_segments is None else same | (other == ANY_SEGMENT)[:, None])
        if self.beam_ancestry is not None:
            rules.append(self.beam_ancestry)
        return reduce(and_, rules)[:, None] if rules else None

    def _by_place(self, queries: int, keys: int, device: torch.device | None) -> list[Tensor]:
        """What positions alone rule, each (batch or 1, queries, keys)."""
        at, keys_at = self.query_key_positions(queries, keys, device)
        gap, rules = at[:, :, None] - keys_at[:, None, :], []
        if self.causal:
            rules.append(gap >= 0)
        if self.exclude_self:
            rules.append(gap != 0)
        if self.window is not None:
            near = gap.abs() <= self.window
            if self.global_positions is not None:
                near = near | self.is_global(keys)[:, None] | self.is_global(queries)[:, :, None]
            rules.append(near)
        return rules

    def is_global(self, keys: int) -> Tensor:
        """(batch, keys) bool: the global places."""
        assert self.global_positions is not None
        spare = self.global_positions.masked_fill((self.global_positions < 0) | (self.global_positions > keys), keys)
        return spare.new_zeros(len(spare), keys + 1, dtype=torch.bool).scatter(1, spare, True)[:, :keys]

    def cached(self, key: Hashable, make: Callable[[], T]) -> T:
        """A form of this mask that some kernel needs; a `Sight` makes each only once."""
        return make()

    def fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in FIELDS}

    def replace(self, **changes: Any) -> "Mask":
        return Mask(**self.fields() | changes)

    def memoized(self) -> "CachedMask":
        return CachedMask(**self.fields())

    def select(self, rows: Tensor) -> "Mask":
        tensors = ((name, word) for name, word in self.fields().items() if isinstance(word, Tensor))
        return self.replace(**{name: tensor[rows] for name, tensor in tensors if tensor.size(0) > 1})


FIELDS = tuple(f.name for f in fields(Mask))  # here, because a compiled step cannot ask a class for its fields


@dataclass(frozen=True, eq=False)
class CachedMask(Mask):
    """A mask for one call of a stack: all its layers share the forms built from it. Never keep one.

    Sizes are the same throughout such a call and no part of a form's key: that would tie compiled code to each of them.
    """

    _made: dict[Hashable, Any] = field(default_factory=dict, repr=False)

    def cached(self, key: Hashable, make: Callable[[], T]) -> T:
        if key not in self._made:
            self._made[key] = make()
        made: T = self._made[key]
        return made
