"""The open batch of a generator (continuous batching): requests join and leave it while others run.

All requests share one cache and one step of the model. A request takes one row of the cache for each of its
hypotheses. Requests with equal settings share one search, although their lengths differ.
"""

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...families.protocols import TokenModel
from ..search.beam import BeamSearch, OpenCache, SearchState
from .closed_batch import build_search
from .cuda_graph import BatchStep
from .requests import SettingsBuilder

if TYPE_CHECKING:
    from .generator import Handle

PREFILL_MULTIPLE = 16  # capacities of prefilled caches are rounded up to it
GROWTH = 1.25  # of the rows when there are too few
DROP_BELOW = 0.5  # rows without a request are given up when at most this share is in use: it copies the others


class BeamRows:
    """The rows of the common cache that belong to one search, as its SearchCache: it reorders beams by copying rows."""

    fixed = True

    def __init__(self, batch: "OpenBatch", slots: Tensor) -> None:
        self.batch, self.slots = batch, slots  # (rows, width)

    def reorder(self, origin: Tensor) -> None:
        to, source = self.slots.flatten(), self.slots.gather(1, origin).flatten()
        if not to.is_cuda:  # on a GPU the check would wait for the device
            moved = (to != source).nonzero()[:, 0]
            to, source = to[moved], source[moved]
        if len(to):
            cache = self.batch.cache
            cache.put(to, cache, source)

    def skip_prompt(self) -> None: ...
    def branch(self, beams: int, steps: int) -> None: ...
    def select(self, rows: Tensor) -> None: ...


class SharedSearch:
    """One search for requests with equal settings."""

    def __init__(self, state: SearchState, rows: BeamRows, handles: list["Handle"]) -> None:
        self.state, self.rows, self.handles = state, rows, handles
        self.steps = [state.step] * len(handles)  # of each row; the state has them on the device

    @property
    def longest(self) -> int:
        """The most tokens that a row of the cache holds. The last token of each row is not read yet."""
        pairs = zip(self.handles, self.steps, strict=True)
        return max(len(handle.request.prompt) + step - 1 for handle, step in pairs)

    def join(self, other: "SharedSearch", builder: SettingsBuilder) -> None:
        self.state.join(other.state)
        self.rows.slots = torch.cat([self.rows.slots, other.rows.slots])
        self.handles, self.steps = self.handles + other.handles, self.steps + other.steps
        self._update(builder)

    def advance(self, logits: Tensor) -> Tensor:
        """Choose tokens from the logits (slots, vocab) of the whole batch; return those to read next, (rows, width)."""
        self.steps = [step + 1 for step in self.steps]
        return self.state.advance(logits[self.rows.slots])

    def finished(self) -> list[int]:
        """The rows that have finished. Other rows stream their new token, if it is final: a beam may still change."""
        state = self.state
        last = state.tokens[:, 0].gather(1, state.device_step[:, None] - 1)[:, 0]
        tokens, active = torch.stack([last, state.active.long()]).tolist()  # the only wait for the device
        if state.width == 1 and not isinstance(state, BeamSearch):
            for handle, token, going_on in zip(self.handles, tokens, active, strict=True):
                if going_on:
                    handle.tokens.append(token)
        return [row for row, going_on in enumerate(active) if not going_on]

    def remove(self, rows: list[int], builder: SettingsBuilder) -> Tensor:
        """Remove these rows; return their slots."""
        freed = self.rows.slots[torch.tensor(rows, device=self.rows.slots.device)]
        remaining = [row for row in range(len(self.handles)) if row not in set(rows)]
        self.handles, self.steps = [self.handles[row] for row in remaining], [self.steps[row] for row in remaining]
        if remaining:
            index = torch.tensor(remaining, device=freed.device)
            self.state.retain(index)
            self.rows.slots = self.rows.slots[index]
            self._update(builder)
        return freed

    def _update(self, builder: SettingsBuilder) -> None:
        """Tables in the settings have one entry for each row."""
        self.state.settings = builder([handle.request for handle in self.handles], self.rows.slots.device)
        self.state.step, self.state.ragged = max(self.steps), len(set(self.steps)) > 1


class OpenBatch:
    """`rows` rows of a cache for `capacity` tokens each. The number of rows grows with the load.

    `fixed`: all slots of a row are allocated at once, for CUDA graphs. Otherwise they grow, and attention reads fewer.
    """

    cache: OpenCache
    step: BatchStep | None = None  # with the first request

    def __init__(self, model: TokenModel[Any], rows: int, capacity: int, builder: SettingsBuilder, fixed: bool) -> None:
        self.model, self.rows, self.capacity, self.builder, self.fixed = model, rows, capacity, builder, fixed
        self.used: set[int] = set()  # the rows of running requests
        self.searches: dict[Hashable, SharedSearch] = {}

    @property
    def free(self) -> int:
        return self.rows - len(self.used)

    @property
    def handles(self) -> list["Handle"]:
        return [handle for search in self.searches.values() for handle in search.handles]

    def prefill_room(self, tokens: int) -> int | None:
        """The capacity of a cache whose rows are to be admitted. The first such cache becomes the common one."""
        if not self.fixed:
            return None
        return self.capacity if self.step is None else -(-tokens // PREFILL_MULTIPLE) * PREFILL_MULTIPLE

    def admit(self, handles: Sequence["Handle"], cache: OpenCache, logits: Tensor) -> None:
        """Give rows to requests whose prompts this cache has read; choose their first tokens from (rows, vocab)."""
        groups: dict[Hashable, list[int]] = {}
        for i, handle in enumerate(handles):
            identity = id(handle) if handle.request.constraints.include else None  # its beam has its own width
            groups.setdefault((handle.request.agreement(), identity), []).append(i)
        slots, device = self._take_slots([handle.request.width for handle in handles]), logits.device
        origin = torch.tensor([i for i, row in enumerate(slots) for _ in row], device=device)
        self._put(torch.tensor([slot for row in slots for slot in row], device=device), cache, origin)
        for key, members in groups.items():
            group_slots = torch.tensor([slots[i] for i in members], device=device)
            group_logits = logits[torch.tensor(members, device=device)]
            self._begin(key, [handles[i] for i in members], group_slots, group_logits)
        self._drop_empty()

    def advance(self) -> None:
        """Read the last tokens of all rows and choose the next ones."""
        if self.searches and self.step is not None:
            self._drop_free_rows()
            self.cache.rebound(max(search.longest for search in self.searches.values()))
            logits = self.step()
            for search in self.searches.values():
                self.step.tokens[search.rows.slots.flatten(), 0] = search.advance(logits).flatten()
            self._retire_finished()

    def remove(self, handle: "Handle") -> None:
        """Free the rows of a request that has not finished."""
        for search in self.searches.values():
            if handle in search.handles:
                self._free(search.remove([search.handles.index(handle)], self.builder))
        self._drop_empty()

    # --- internals ---------------------------------------------------------------------------------------------

    def _begin(self, key: Hashable, handles: list["Handle"], slots: Tensor, logits: Tensor) -> None:
        assert self.step is not None
        settings = self.builder([handle.request for handle in handles], logits.device)
        limits = torch.tensor([handle.limit for handle in handles], device=logits.device)
        rows = BeamRows(self, slots)
        state = build_search(settings, rows, limits, self.capacity)
        tokens = state.advance(logits[:, None])
        self.step.tokens[slots.flatten(), 0], self.step.valid[slots.flatten(), 0] = tokens.flatten(), True
        search = SharedSearch(state, rows, handles)
        self._finish(search)
        if not search.handles:
            return
        if key in self.searches:
            self.searches[key].join(search, self.builder)
        else:
            self.searches[key] = search

    def _take_slots(self, widths: Sequence[int]) -> list[list[int]]:
        free = iter([slot for slot in range(self.rows) if slot not in self.used][: sum(widths)])
        slots = [[next(free) for _ in range(width)] for width in widths]
        self.used |= {slot for row in slots for slot in row}
        return slots

    def _put(self, slots: Tensor, cache: OpenCache, origin: Tensor) -> None:
        """Copy rows of a prefilled cache. The first such cache becomes the common one."""
        needed, device = max(self.used) + 1, slots.device
        if self.step is None:
            cache.select(torch.zeros(needed, dtype=torch.long, device=device).index_put((slots,), origin))
            self.cache, self.step = cache, BatchStep(self.model, cache, needed, device)
            self.step.refresh()
            return
        if needed > (size := len(self.step.tokens)):
            index = torch.arange(min(self.rows, max(needed, int(GROWTH * size))), device=device)
            self.cache.select(index.where(index < size, 0))
            self.step = self.step.grown(len(index))
        self.cache.put(slots, cache, origin)
        self.step.refresh()

    def _drop_free_rows(self) -> None:
        """Give up free rows if they are many. A fixed cache keeps them: a captured step has its shape."""
        assert self.step is not None
        if self.fixed or len(self.used) > DROP_BELOW * len(self.step.tokens):
            return
        slots = sorted(self.used)
        index, place = (
            torch.tensor(slots, device=self.step.tokens.device),
            {slot: row for row, slot in enumerate(slots)},
        )
        self.cache.select(index)
        self.step = self.step.select(index)
        for search in self.searches.values():
            search.rows.slots = torch.tensor([[place[slot] for slot in row] for row in search.rows.slots.tolist()])
        self.used = set(place.values())

    def _retire_finished(self) -> None:
        for search in self.searches.values():
            self._finish(search)
        self._drop_empty()

    def _finish(self, search: SharedSearch) -> None:
        rows = search.finished()
        if not rows:
            return
        results = search.state.results(torch.tensor(rows, device=search.rows.slots.device))
        handles = [search.handles[row] for row in rows]
        self._free(search.remove(rows, self.builder))
        for handle, best in zip(handles, results, strict=True):
            handle.complete(best)

    def _free(self, slots: Tensor) -> None:
        assert self.step is not None
        self.step.valid[slots.flatten(), 0] = False
        self.used -= set(slots.flatten().tolist())

    def _drop_empty(self) -> None:
        self.searches = {key: search for key, search in self.searches.items() if search.handles}
        if not self.searches and not self.fixed:
            self.step = None  # the next load may be smaller; a captured step stays
