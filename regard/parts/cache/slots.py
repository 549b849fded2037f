"""KV caches in numbered slots: `Dense*` keeps every key of a text, `Rolling*` the last ones in a ring buffer."""

import torch
from torch import Tensor
from torch.nn import functional as F

from ..masks import ABSENT, Mask
from .base import CacheLayout, LayerCache, put_rows, select_rows

COMPACT_EVERY = 8  # beam steps between two compactions, which drop the keys that no beam attends to any more


def round_up(slots: int) -> int:
    """GPU kernels prefer multiples of eight."""
    return -(-slots // 8) * 8


class SlotLayout(CacheLayout):
    """Assigns tokens to numbered slots. Slot 0 takes what need not be stored (padding)."""

    target_slots: Tensor  # (rows, tokens): the slots that the current tokens are written to
    read_size: int | None = None  # number of slots to read; None: all
    beams = 0
    slots: int  # number of slots
    beam_ancestry: Tensor  # (rows, beams, slots) bool: the slots of each beam's own history
    kept_slots: Tensor | None = None  # (rows, left): the slots that the last step kept, if it compacted

    def begin_beams(self, beams: int, positions: Tensor, slots: int) -> Tensor:
        """Let all beams share the past at `positions` (rows, old slots); return the positions of all slots."""
        rows, old = positions.shape
        self.beams, self.slots = beams, slots
        self.steps = torch.zeros((), dtype=torch.long, device=positions.device)  # a tensor: compiled steps reuse it
        self.beam_index = torch.arange(beams, device=positions.device)
        self.beam_ancestry = torch.zeros(rows, beams, slots, dtype=torch.bool, device=positions.device)
        self.beam_ancestry[:, :, :old] = (positions != ABSENT)[:, None]
        extended = positions.new_full((rows, slots), ABSENT)
        extended[:, :old] = positions
        return extended

    def mark_own_slots(self, slots: Tensor) -> None:
        """Record that each beam wrote its own one of `slots` (rows, beams), new slots or reused ones."""
        columns = slots[:, None].expand(-1, self.beams, -1)  # (rows, beams, beams)
        itself = torch.eye(self.beams, dtype=torch.bool, device=slots.device)
        self.beam_ancestry.scatter_(2, columns, itself.expand_as(columns))
        self.steps += 1

    def select(self, rows: Tensor) -> None:
        if self.beams:
            self.beam_ancestry = select_rows(self.beam_ancestry, rows)

    def reorder(self, parents: Tensor) -> None:
        self.beam_ancestry.copy_(self.beam_ancestry.gather(1, parents[:, :, None].expand_as(self.beam_ancestry)))


class SlotCache(LayerCache):
    """Keys and values of one layer, in the slots that the layout assigns."""

    def __init__(self, layout: SlotLayout, rows: int, heads: int, head_width: int, like: Tensor) -> None:
        self.layout = layout
        self.k, self.v = (like.new_zeros(rows, heads, layout.slots, head_width) for _ in range(2))

    def write(self, k: Tensor, v: Tensor) -> None:
        slots = self.layout.target_slots
        rows = None if k.is_cuda else torch.arange(len(k))[:, None]
        for stored, new in ((self.k, k.to(self.k.dtype)), (self.v, v.to(self.v.dtype))):
            if rows is None:  # scatter takes half the time on a GPU, and ten times as long on a CPU
                stored.scatter_(2, slots[:, None, :, None].expand_as(new), new)
            else:
                stored[rows, :, slots] = new.transpose(1, 2)

    def select(self, rows: Tensor) -> None:
        self.k, self.v = select_rows(self.k, rows), select_rows(self.v, rows)

    def put(self, rows: Tensor, other: LayerCache, origin: Tensor) -> None:
        """Copy the slots that both have. A text that fits into this cache has none beyond them."""
        assert isinstance(other, SlotCache)
        self.resize()
        size = min(self.k.size(2), other.k.size(2))
        put_rows(self.k[:, :, :size], rows, other.k[:, :, :size], origin)
        put_rows(self.v[:, :, :size], rows, other.v[:, :, :size], origin)

    def branch(self, beams: int) -> None:
        self.resize()

    def reorder(self, states: Tensor) -> None:
        """Move the kept slots after a compaction. Otherwise nothing moves: the layout's `beam_ancestry` changes."""
        if (kept_slots := self.layout.kept_slots) is not None:
            index = kept_slots[:, None, :, None].expand(-1, self.k.size(1), -1, self.k.size(3))
            for stored in (self.k, self.v):
                stored[:, :, : kept_slots.size(1)] = stored.gather(2, index)

    def resize(self) -> None:
        """Match the layout's number of slots: a text grows, or beams drop the rest of a preallocated row."""
        if more := self.layout.slots - self.k.size(2):
            self.k, self.v = F.pad(self.k, (0, 0, 0, more)), F.pad(self.v, (0, 0, 0, more))


class DenseCache(SlotCache):
    """The keys and values of all tokens of a layer."""

    layout: "DenseLayout"

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        self.resize()
        self.write(k, v)
        if self.layout.at_prompt:
            return k, v
        size = self.layout.read_size
        return (self.k, self.v) if size is None else (self.k[:, :, :size], self.v[:, :, :size])


class DenseLayout(SlotLayout):
    """Stores every key and value. Position p uses slot p + 1, so causality alone hides stale and unwritten slots.

    With a capacity the shapes never change (compiled decoding). Without one, the slots double when they run out.
    Beams write side by side behind the common past, and `beam_ancestry` records which slots belong to which beam.
    Most of those slots soon belong to no beam. Every step reads all slots, so without a capacity they are compacted
    now and then.
    """

    def __init__(self, rows: int, device: torch.device, capacity: int | None = None) -> None:
        self.capacity, self.used = capacity, 1
        self.expects_prompt = self.at_prompt = True  # nothing is stored: the current tokens are all keys
        self.slots = round_up((capacity or 15) + 1)
        self.positions = self._slot_positions(device)

    def _slot_positions(self, device: torch.device) -> Tensor:
        positions = torch.arange(-1, self.slots - 1, device=device)[None]
        positions[:, 0] = ABSENT
        return positions

    def advance(self, mask: Mask, lengths: Tensor) -> tuple[Mask, Mask]:
        assert mask.positions is not None
        if self.beams:
            return mask, self._advance_beams(mask, lengths)
        slots = mask.positions + 1
        self.target_slots = slots if mask.key_valid is None else torch.where(mask.key_valid, slots, 0)
        if self.capacity is None:
            self._grow(mask.positions.size(1))
        self.at_prompt, self.expects_prompt = self.expects_prompt, False
        if self.at_prompt:  # a prompt does not read the spare capacity, and without padding needs no mask tensor
            return mask, mask if mask.key_valid is not None else Mask(causal=True)
        return mask, mask.replace(key_valid=None, key_positions=self.positions[:, : self.read_size])

    def skip_prompt(self) -> None:
        self.expects_prompt = False

    def put(self, rows: Tensor, other: CacheLayout, origin: Tensor) -> None:
        assert isinstance(other, DenseLayout)
        self.expects_prompt = False
        if self.capacity is None:
            used = other.used if other.capacity is None else other.slots
            self._grow(max(used - self.used, 0))

    def rebound(self, tokens: int) -> None:
        if self.capacity is None:
            self.used = self.read_size = tokens + 1  # slot 0 holds no token

    def _grow(self, tokens: int) -> None:
        self.used += tokens  # an upper bound that does not wait for the device
        self.read_size = self.used
        if self.used > self.slots:
            self.slots = round_up(2 * self.used)
            self.positions = self._slot_positions(self.positions.device)

    def branch(self, beams: int, steps: int, lengths: Tensor) -> None:
        self.beam_start = min(round_up(int(lengths.max()) + 1), self.slots)  # the only wait for the device
        past = self.positions[:, : self.beam_start]
        past = torch.where(past < lengths[:, None], past, ABSENT)  # (rows, beam_start); other slots are stale or unused
        room = steps if self.capacity is not None else min(steps, 2 * COMPACT_EVERY)
        self.positions = self.begin_beams(beams, past, round_up(self.beam_start + room * beams))
        self.at_prompt = False
        if self.capacity is None:
            self.read_size = self.beam_start

    def reorder(self, parents: Tensor) -> None:
        super().reorder(parents)
        self.kept_slots = None
        if self.read_size is not None and self.read_size - self.beam_start >= COMPACT_EVERY * self.beams:
            self._compact()

    def _compact(self) -> None:
        """Keep, in order, the slots that some beam attends to; rows with fewer of them keep useless ones."""
        used = self.beam_ancestry[:, :, : self.read_size].any(1)  # (rows, read_size)
        left = int(used.sum(1).max())
        self.kept_slots = used.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :left]
        self.positions[:, :left] = self.positions.gather(1, self.kept_slots)
        columns = self.kept_slots[:, None].expand(-1, self.beams, -1)
        self.beam_ancestry[:, :, :left] = self.beam_ancestry.gather(2, columns)
        self.beam_start = self.read_size = left
        self.steps.zero_()

    def _advance_beams(self, mask: Mask, lengths: Tensor) -> Mask:
        if self.read_size is not None:
            self.read_size += self.beams
            if self.read_size > self.slots:
                more = round_up(2 * self.read_size) - self.slots
                self.slots += more
                self.positions = F.pad(self.positions, (0, more), value=ABSENT)
                self.beam_ancestry = F.pad(self.beam_ancestry, (0, more))
        slots = self.beam_start + self.steps * self.beams + self.beam_index
        self.target_slots = slots.expand(len(self.beam_ancestry), -1)  # (rows, beams)
        self.positions.scatter_(1, self.target_slots, lengths[:, None].expand(-1, self.beams))
        self.mark_own_slots(self.target_slots)
        size = self.read_size
        return mask.replace(key_positions=self.positions[:, :size], beam_ancestry=self.beam_ancestry[:, :, :size])

    def select(self, rows: Tensor) -> None:
        super().select(rows)
        if self.beams:  # without beams, positions are the same in every row
            self.positions = select_rows(self.positions, rows)


class RollingCache(SlotCache):
    """The keys and values of the last tokens of a layer."""

    layout: "RollingLayout"

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        self.resize()
        visible = torch.cat([self.k, k], 2), torch.cat([self.v, v], 2)  # read before writing: a prompt may lap the ring
        self.write(k, v)
        return visible


class RollingLayout(SlotLayout):
    """Stores the last `window` keys and values with their positions: constant memory for any text length.

    A text shorter than the window needs only as many slots as it has tokens: `capacity`, or what it grows to.
    """

    def __init__(self, rows: int, device: torch.device, window: int, capacity: int | None = None) -> None:
        self.window, self.capacity, self.used = window, capacity, 0
        self.slots = round_up(min(window, capacity or 15) + 1)
        self.positions = torch.full((rows, self.slots), ABSENT, device=device)

    def advance(self, mask: Mask, lengths: Tensor) -> tuple[Mask, Mask]:
        assert mask.positions is not None
        if self.beams:
            return mask, self._advance_beams(mask)
        if self.capacity is None:
            self._grow(mask.positions.size(1))
        valid = torch.ones_like(mask.positions, dtype=torch.bool) if mask.key_valid is None else mask.key_valid
        after = lengths + valid.sum(1)
        # Tokens that this same call overwrites are not written at all: a GPU does not define the order of such writes.
        last = valid & (mask.positions >= after[:, None] - self.window)
        self.target_slots = torch.where(last, mask.positions % self.window + 1, 0)
        key_positions = torch.cat([self.positions, mask.positions.masked_fill(~valid, ABSENT)], 1)  # copies the old
        self.positions.scatter_(1, self.target_slots, mask.positions)
        self.positions[:, 0] = ABSENT
        return mask, mask.replace(key_valid=None, key_positions=key_positions)

    def put(self, rows: Tensor, other: CacheLayout, origin: Tensor) -> None:
        assert isinstance(other, RollingLayout)
        if self.capacity is None:
            used = other.used if other.capacity is None else other.slots
            self._grow(max(used - self.used, 0))
        size = min(self.slots, other.slots)
        positions = self.positions.new_full((len(origin), self.slots), ABSENT)
        positions[:, :size] = other.positions[origin, :size]
        self.positions.index_copy_(0, rows, positions)

    def _grow(self, tokens: int) -> None:
        self.used += tokens  # an upper bound that does not wait for the device
        if self.used >= self.slots <= self.window:
            slots = round_up(min(2 * self.used, self.window) + 1)
            self.positions, self.slots = F.pad(self.positions, (0, slots - self.slots), value=ABSENT), slots

    def branch(self, beams: int, steps: int, lengths: Tensor) -> None:
        self.beam_start = self.slots  # the common past stays in its ring and expires; the beams share a second ring
        room = min(self.window, steps) * beams
        self.positions = self.begin_beams(beams, self.positions, round_up(self.beam_start + room))

    def _advance_beams(self, mask: Mask) -> Mask:
        assert mask.positions is not None
        rows = len(mask.positions)
        itself = torch.eye(self.beams, dtype=torch.bool, device=mask.positions.device).expand(rows, -1, -1)
        visible = mask.replace(
            window=self.window if mask.window is None else min(mask.window, self.window),  # the common past expires
            key_positions=torch.cat([self.positions, mask.positions], 1),
            beam_ancestry=torch.cat([self.beam_ancestry, itself], 2),
        )
        slots = self.beam_start + self.steps % self.window * self.beams + self.beam_index
        self.target_slots = slots.expand(rows, -1)
        self.positions.scatter_(1, self.target_slots, mask.positions)
        self.mark_own_slots(self.target_slots)
        return visible

    def reset(self, rows: Tensor) -> None:
        self.positions.masked_fill_(rows[:, None], ABSENT)

    def select(self, rows: Tensor) -> None:
        super().select(rows)
        self.positions = select_rows(self.positions, rows)
