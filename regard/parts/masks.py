"""A `Mask` describes which keys each query may attend to. Only the kernel that needs a tensor builds it."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import reduce
from operator import and_
from typing import Any, TypeVar

import torch
from torch import Tensor

ANY_SEGMENT = -2  # segment of a key that is visible from every segment
ABSENT = 2**30  # position of a missing key: later than any query and outside any window
T = TypeVar("T")
NO_REASONS: Mapping[str, str] = {}


@dataclass(frozen=True, eq=False)
class Mask:
    """Describes visible query-key pairs. A tensor that is None means the plain case: positions 0, 1, 2…, no padding,
    one segment.

    Rules compare *positions*, not indices in the row. So one description serves packing, ragged rows, a KV cache and
    the memory of Transformer-XL. A kernel declares the fields that it honors (`only`, `require`): it refuses all
    others, also those that a later version adds.
    """

    causal: bool = False  # hide keys at later positions
    exclude_self: bool = False  # hide the key at the query's own position
    window: int | None = None  # hide keys further away than this; global positions are exempt
    positions: Tensor | None = None  # (batch, queries)
    key_positions: Tensor | None = None  # (batch, keys); None: the keys are the queries
    key_valid: Tensor | None = None  # (batch, keys) bool: False for padding
    segments: Tensor | None = None  # (batch, queries): which of several packed sequences a token belongs to
    key_segments: Tensor | None = None  # (batch, keys); None: the keys are the queries
    global_positions: Tensor | None = None  # (batch, most): these attend to and are visible from everywhere; -1 fills
    beam_ancestry: Tensor | None = None  # (batch, queries, keys) bool: keys of each beam's own history
    length_runs: tuple[tuple[int, int], ...] | None = None  # (count, length) of the segments of a single packed row

    def only(self, *honored: str) -> bool:
        """True if no other field is set."""
        for name in self.cached("set", self.set_fields):  # noqa: SIM110, for every layer calls this
            if name not in honored:
                return False
        return True

    def require(self, who: str, honored: Sequence[str], reasons: Mapping[str, str] = NO_REASONS) -> None:
        """Refuse a field that `who` does not honor; `reasons` has better messages for some fields."""
        if not self.only(*honored):
            name = next(name for name in self.set_fields() if name not in honored)
            raise ValueError(reasons.get(name, f"{who} does not honor Mask.{name}; use dense attention"))

    def set_fields(self) -> list[str]:
        """The names of the fields that are set."""
        return [name for name in FIELDS if (value := getattr(self, name)) is not None and value is not False]

    @property
    def causal_only(self) -> bool:
        """True if causality is the only rule, so that a kernel needs no mask tensor."""
        return self.causal and self.only("causal")

    def query_key_positions(self, queries: int, keys: int, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
        """Positions of queries and keys, (batch or 1, queries) and (batch or 1, keys)."""
        positions = torch.arange(queries, device=device)[None] if self.positions is None else self.positions
        if self.key_positions is not None:
            return positions, self.key_positions
        return positions, positions if queries == keys else torch.arange(keys, device=device)[None]

    def visible(self, queries: int, keys: int, device: torch.device | None = None) -> Tensor | None:
        """(batch or 1, 1, queries or 1, keys) bool, True for visible pairs; None if every pair is visible."""
        return self.cached("visible", lambda: self._visible(queries, keys, device))

    def _visible(self, queries: int, keys: int, device: torch.device | None) -> Tensor | None:
        self.require("a table of visible pairs", DENSE)
        by_position = self.causal or self.exclude_self or self.window is not None
        rules = self._position_rules(queries, keys, device) if by_position else []
        if self.key_valid is not None:
            rules.append(self.key_valid[:, None])
        if self.segments is not None:
            key_segments = self.segments if self.key_segments is None else self.key_segments
            same = self.segments[:, :, None] == key_segments[:, None, :]
            rules.append(same if self.key_segments is None else same | (key_segments == ANY_SEGMENT)[:, None])
        if self.beam_ancestry is not None:
            rules.append(self.beam_ancestry)
        return reduce(and_, rules)[:, None] if rules else None

    def _position_rules(self, queries: int, keys: int, device: torch.device | None) -> list[Tensor]:
        """The rules that depend on positions alone, each (batch or 1, queries, keys)."""
        positions, key_positions = self.query_key_positions(queries, keys, device)
        distance, rules = positions[:, :, None] - key_positions[:, None, :], []
        if self.causal:
            rules.append(distance >= 0)
        if self.exclude_self:
            rules.append(distance != 0)
        if self.window is not None:
            near = distance.abs() <= self.window
            if self.global_positions is not None:
                near = near | self.is_global(keys)[:, None] | self.is_global(queries)[:, :, None]
            rules.append(near)
        return rules

    def is_global(self, keys: int) -> Tensor:
        """(batch, keys) bool: True at global positions."""
        assert self.global_positions is not None
        index = self.global_positions.masked_fill((self.global_positions < 0) | (self.global_positions > keys), keys)
        return index.new_zeros(len(index), keys + 1, dtype=torch.bool).scatter(1, index, True)[:, :keys]

    def cached(self, key: Hashable, build: Callable[[], T]) -> T:
        """Build a form of this mask that a kernel needs. A `CachedMask` builds each form only once."""
        return build()

    def tensors(self) -> dict[str, Tensor]:
        """The fields that are tensors, by name."""
        return {name: value for name in FIELDS if isinstance(value := getattr(self, name), Tensor)}

    def _fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in FIELDS}

    def replace(self, **changes: "Tensor | bool | int | None") -> "Mask":
        """The mask with other fields."""
        return Mask(**self._fields() | changes)

    def memoized(self) -> "CachedMask":
        """The mask with a memory for what kernels derive from it."""
        return CachedMask(**self._fields())

    def select(self, rows: Tensor) -> "Mask":
        """The mask of these rows of the batch. Tensors with a single row serve all rows and stay."""
        return self.replace(**{name: tensor[rows] for name, tensor in self.tensors().items() if tensor.size(0) > 1})


FIELDS = tuple(f.name for f in fields(Mask))  # a constant: compiled code cannot call dataclasses.fields
# Fields that `visible` honors. `length_runs` repeats what `segments` says.
DENSE = (
    "causal", "exclude_self", "window", "positions", "key_positions", "key_valid", "segments", "key_segments",
    "global_positions", "beam_ancestry", "length_runs",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class CachedMask(Mask):
    """A mask for one call of a stack, whose layers share the forms built from it. Do not keep it after the call.

    Sizes do not change within a call, so they are not part of the keys. In a key, they would specialize compiled code.
    """

    _forms: dict[Hashable, Any] = field(default_factory=dict, repr=False)

    def cached(self, key: Hashable, build: Callable[[], T]) -> T:
        if key not in self._forms:
            self._forms[key] = build()
        form: T = self._forms[key]
        return form
