"""Keys and values in numbered slots: all of a text, or the last of it in a ring. A book knows who sits where."""

import torch
from torch import Tensor
from torch.nn import functional as F

from ..masks import ABSENT, Mask
from .base import CacheLayout, LayerCache, select_rows

COMPACT_EVERY = 8  # steps of beams after which what they left behind is cleared away


def round_up(slots: int) -> int:
    """GPU kernels like multiples of eight."""
    return -(-slots // 8) * 8


class SlotLayout(CacheLayout):
    """Numbered slots. Slot 0 takes what need not be remembered (padding)."""

    to: Tensor  # (rows, tokens): where the tokens at hand go
    size: int | None = None  # how many slots to read; None: all of them
    beams = 0
    slots: int  # how many there are
    beam_ancestry: Tensor  # (rows, beams, slots) bool, once there are beams
    kept: Tensor | None = None  # (rows, left): the slots that are left, if the last step tidied up

    def begin_beams(self, beams: int, at: Tensor, slots: int) -> Tensor:
        """All beams share the past at positions `at` (rows, old slots); returns the positions of all slots."""
        rows, old = at.shape
        self.beams, self.slots = beams, slots
        self.steps = torch.zeros((), dtype=torch.long, device=at.device)  # a tensor: compiled steps reuse it
        self.own = torch.arange(beams, device=at.device)
        self.beam_ancestry = torch.zeros(rows, beams, slots, dtype=torch.bool, device=at.device)
        self.beam_ancestry[:, :, :old] = (at != ABSENT)[:, None]
        places = at.new_full((rows, slots), ABSENT)
        places[:, :old] = at
        return places

    def enter(self, to: Tensor) -> None:
        """The beams write side by side at `to` (rows, beams): a new place, or an old one taken again."""
        columns = to[:, None].expand(-1, self.beams, -1)  # (rows, beams, beams)
        self.beam_ancestry.scatter_(
            2, columns, torch.eye(self.beams, dtype=torch.bool, device=to.device).expand_as(columns)
        )
        self.steps += 1

    def select(self, rows: Tensor) -> None:
        if self.beams:
            self.beam_ancestry = select_rows(self.beam_ancestry, rows)

    def reorder(self, origin: Tensor) -> None:
        self.beam_ancestry.copy_(self.beam_ancestry.gather(1, origin[:, :, None].expand_as(self.beam_ancestry)))


class SlotCache(LayerCache):
    """Keys and values, in the slots that the book numbers."""

    def __init__(self, book: SlotLayout, rows: int, heads: int, head_width: int, like: Tensor) -> None:
        self.book = book
        self.k, self.v = (like.new_zeros(rows, heads, book.slots, head_width) for _ in range(2))

    def write(self, k: Tensor, v: Tensor) -> None:
        to = self.book.to
        for held, new in ((self.k, k.to(self.k.dtype)), (self.v, v.to(self.v.dtype))):
            if held.is_cuda:  # half the time there, and ten times on a CPU
                held.scatter_(2, to[:, None, :, None].expand_as(new), new)
            else:
                held[torch.arange(len(new))[:, None], :, to] = new.transpose(1, 2)

    def select(self, rows: Tensor) -> None:
        self.k, self.v = select_rows(self.k, rows), select_rows(self.v, rows)

    def branch(self, beams: int) -> None:
        self.fit()

    def reorder(self, flat: Tensor) -> None:
        """The book's kin says it; but where it was tidied, what is left moves together."""
        if (kept := self.book.kept) is not None:
            index = kept[:, None, :, None].expand(-1, self.k.size(1), -1, self.k.size(3))
            for held in (self.k, self.v):
                held[:, :, : kept.size(1)] = held.gather(2, index)

    def fit(self) -> None:
        """Have as many slots as the book: more as a text grows, fewer when beams leave a preallocated row behind."""
        if more := self.book.slots - self.k.size(2):
            self.k, self.v = F.pad(self.k, (0, 0, 0, more)), F.pad(self.v, (0, 0, 0, more))


class DenseCache(SlotCache):
    book: "DenseLayout"

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        self.fit()
        self.write(k, v)
        if self.book.empty:
            return k, v
        size = self.book.size
        return (self.k, self.v) if size is None else (self.k[:, :, :size], self.v[:, :, :size])


class DenseLayout(SlotLayout):
    """Every key and value. Position p sits in slot p + 1, so causality alone hides what is stale or not yet written.

    With a capacity the shapes never change (compiled decoding); without one the slots double when they run out.
    Beams write behind the common past, side by side, and the book notes who is whose kin. Most of what they wrote is
    soon nobody's past: without a capacity it is cleared away now and then, for every step reads all that is there.
    """

    def __init__(self, rows: int, device: torch.device, capacity: int | None = None) -> None:
        self.capacity, self.used = capacity, 1
        self.fresh = self.empty = True  # nothing is held yet: the tokens at hand are all there is to see
        self.slots = round_up((capacity or 15) + 1)
        self.at = self._numbered(device)

    def _numbered(self, device: torch.device) -> Tensor:
        at = torch.arange(-1, self.slots - 1, device=device)[None]
        at[:, 0] = ABSENT
        return at

    def advance(self, mask: Mask, lengths: Tensor) -> tuple[Mask, Mask]:
        assert mask.positions is not None
        if self.beams:
            return mask, self._open_beams(mask, lengths)
        self.to = mask.positions + 1 if mask.key_valid is None else torch.where(mask.key_valid, mask.positions + 1, 0)
        if self.capacity is None:
            self._make_room(mask.positions.size(1))
        self.empty, self.fresh = self.fresh, False
        if self.empty:  # a prompt never pays for the capacity, and without padding needs no mask tensor
            return mask, mask if mask.key_valid is not None else Mask(causal=True)
        return mask, mask.replace(key_valid=None, key_positions=self.at[:, : self.size])

    def skip_prompt(self) -> None:
        self.fresh = False

    def _make_room(self, tokens: int) -> None:
        self.used += tokens  # an upper bound that needs no look at the device
        self.size = self.used
        if self.used > self.slots:
            self.slots = round_up(2 * self.used)
            self.at = self._numbered(self.at.device)

    def branch(self, beams: int, steps: int, lengths: Tensor) -> None:
        self.base = min(round_up(int(lengths.max()) + 1), self.slots)  # the one look at the device that beams cost
        held = self.at[:, : self.base]
        held = torch.where(
            held < lengths[:, None], held, ABSENT
        )  # (rows, base); the rest is stale or another row's room
        room = steps if self.capacity is not None else min(steps, 2 * COMPACT_EVERY)
        self.at = self.begin_beams(beams, held, round_up(self.base + room * beams))
        self.empty = False
        if self.capacity is None:
            self.size = self.base

    def reorder(self, origin: Tensor) -> None:
        super().reorder(origin)
        self.kept = None
        if self.size is not None and self.size - self.base >= COMPACT_EVERY * self.beams:
            self._tidy()

    def _tidy(self) -> None:
        """Keep, in their order, the slots that some beam still sees; rows with fewer of them keep some in vain."""
        seen = self.beam_ancestry[:, :, : self.size].any(1)  # (rows, size)
        left = int(seen.sum(1).max())
        self.kept = seen.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :left]
        self.at[:, :left] = self.at.gather(1, self.kept)
        self.beam_ancestry[:, :, :left] = self.beam_ancestry.gather(2, self.kept[:, None].expand(-1, self.beams, -1))
        self.base = self.size = left
        self.steps.zero_()

    def _open_beams(self, mask: Mask, lengths: Tensor) -> Mask:
        if self.size is not None:
            self.size += self.beams
            if self.size > self.slots:
                more = round_up(2 * self.size) - self.slots
                self.slots += more
                self.at, self.beam_ancestry = (
                    F.pad(self.at, (0, more), value=ABSENT),
                    F.pad(self.beam_ancestry, (0, more)),
                )
        self.to = (self.base + self.steps * self.beams + self.own).expand(len(self.beam_ancestry), -1)  # (rows, beams)
        self.at.scatter_(1, self.to, lengths[:, None].expand(-1, self.beams))
        self.enter(self.to)
        return mask.replace(key_positions=self.at[:, : self.size], beam_ancestry=self.beam_ancestry[:, :, : self.size])

    def select(self, rows: Tensor) -> None:
        super().select(rows)
        if self.beams:  # before that, positions are the same in every row
            self.at = select_rows(self.at, rows)


class RollingCache(SlotCache):
    book: "RollingLayout"

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        self.fit()
        seen = torch.cat([self.k, k], 2), torch.cat([self.v, v], 2)  # read before writing: a prompt may lap the ring
        self.write(k, v)
        return seen


class RollingLayout(SlotLayout):
    """The last `window` keys and values, each with its position; constant memory however long the text.

    A text shorter than the window needs no more slots than it has tokens: `capacity` of them, or what it grows to.
    """

    def __init__(self, rows: int, device: torch.device, window: int, capacity: int | None = None) -> None:
        self.window, self.capacity, self.used = window, capacity, 0
        self.slots = round_up(min(window, capacity or 15) + 1)
        self.at = torch.full((rows, self.slots), ABSENT, device=device)

    def advance(self, mask: Mask, lengths: Tensor) -> tuple[Mask, Mask]:
        assert mask.positions is not None
        if self.beams:
            return mask, self._open_beams(mask)
        if self.capacity is None:
            self._make_room(mask.positions.size(1))
        real = torch.ones_like(mask.positions, dtype=torch.bool) if mask.key_valid is None else mask.key_valid
        after = lengths + real.sum(1)
        # What the same call will lap is not written at all: on a GPU the order of such writes is undefined.
        self.to = torch.where(
            real & (mask.positions >= after[:, None] - self.window), mask.positions % self.window + 1, 0
        )
        seen = mask.replace(
            key_valid=None, key_positions=torch.cat([self.at, mask.positions.masked_fill(~real, ABSENT)], 1)
        )
        self.at.scatter_(1, self.to, mask.positions)  # `seen` already holds a copy of the old places
        self.at[:, 0] = ABSENT
        return mask, seen

    def _make_room(self, tokens: int) -> None:
        self.used += tokens  # an upper bound that needs no look at the device
        if self.used >= self.slots <= self.window:
            slots = round_up(min(2 * self.used, self.window) + 1)
            self.at, self.slots = F.pad(self.at, (0, slots - self.slots), value=ABSENT), slots

    def branch(self, beams: int, steps: int, lengths: Tensor) -> None:
        self.base = self.slots  # the common past stays in its ring and fades; the beams share a second one
        self.at = self.begin_beams(beams, self.at, round_up(self.base + min(self.window, steps) * beams))

    def _open_beams(self, mask: Mask) -> Mask:
        assert mask.positions is not None
        rows = len(mask.positions)
        itself = torch.eye(self.beams, dtype=torch.bool, device=mask.positions.device).expand(rows, -1, -1)
        reach = self.window if mask.window is None else min(mask.window, self.window)  # the common past fades
        seen = mask.replace(
            window=reach,
            key_positions=torch.cat([self.at, mask.positions], 1),
            beam_ancestry=torch.cat([self.beam_ancestry, itself], 2),
        )
        self.to = (self.base + self.steps % self.window * self.beams + self.own).expand(rows, -1)
        self.at.scatter_(1, self.to, mask.positions)
        self.enter(self.to)
        return seen

    def reset(self, rows: Tensor) -> None:
        self.at.masked_fill_(rows[:, None], ABSENT)

    def select(self, rows: Tensor) -> None:
        super().select(rows)
        self.at = select_rows(self.at, rows)
