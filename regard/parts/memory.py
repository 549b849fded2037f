"""What a decoder remembers between calls. Rows have their own lengths; the kernel chooses the kind of memory.

A `Cache` serves one stack. It says where the coming tokens stand (`ahead`), which keys they will see (`open`) and hands
each layer its `Memory`. Layers with the same kind of memory share a `Book`, which knows the slots.
`select(rows)` reorders, repeats or drops rows. `branch(beams)` lets every row go on as several alternatives that stand
side by side as queries of that row, and `follow(origin)` says which of them each one continues: nothing is copied,
neither their own past nor the source they look at; each just sees its own kin.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from .masks import FAR, Mask
from .positions import beyond

if TYPE_CHECKING:
    from .layer import Cross


TIDY = 8  # steps of beams after which what they left behind is cleared away


def pick(held: Tensor, rows: Tensor) -> Tensor:
    """Rows of `held`; in place when the number stays, so that compiled code keeps its addresses."""
    picked = held.index_select(0, rows)
    return held.copy_(picked) if picked.shape == held.shape else picked


def rounded(slots: int) -> int:
    """GPU kernels like multiples of eight."""
    return -(-slots // 8) * 8


class Memory:
    """One layer's share of a cache. This one holds a state per row; without any tensor it keeps nothing."""

    beams = 0

    def inputs(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        return key, value  # before projection: (batch, keys, width)

    def keep(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return k, v  # after projection: (batch, heads, keys, head_width)

    def select(self, rows: Tensor) -> None:
        for name, held in list(vars(self).items()):
            if isinstance(held, Tensor):
                setattr(self, name, pick(held, rows))

    def reset(self, rows: Tensor) -> None:
        """Forget these rows (bool). Nothing to do where lengths alone decide what is visible."""

    def branch(self, beams: int) -> None:
        held = [tensor for tensor in vars(self).values() if isinstance(tensor, Tensor)]
        if held:
            rows = torch.arange(held[0].size(0), device=held[0].device)
            Memory.select(self, rows.repeat_interleave(beams))
        self.beams = beams

    def follow(self, flat: Tensor) -> None:
        """`flat` (rows · beams) numbers states, which do not stand side by side and have to move."""
        self.select(flat)


class Book:
    """What the layers with one kind of memory share. This one has no slots: sums, states."""

    def __init__(self, rows: int = 0, device: torch.device | None = None) -> None:
        pass

    def open(self, mask: Mask, lengths: Tensor) -> tuple[Mask, Mask]:
        """(handed, seen): the keys the layers are given now, and all that will be seen."""
        return mask, mask

    def select(self, rows: Tensor) -> None: ...

    def reset(self, rows: Tensor) -> None: ...

    def branch(self, beams: int, steps: int, lengths: Tensor) -> None: ...

    def follow(self, origin: Tensor) -> None: ...


class Cache:
    """How far each row is, one memory per layer, and the book that each of them is kept by."""

    context: int | None = None  # how many places the positions know; None: any number
    read: int | None = None  # no row has read more; counted where shapes may change anyway, and places can run out

    def __init__(
        self,
        rows: int,
        device: torch.device,
        layers: list[Memory],
        books: list[Book] | None = None,
        fixed: bool = False,
    ) -> None:
        """`books` has one entry per layer; layers of one kind name the same book. `fixed`: nothing in it ever grows."""
        self.layers, self.beams, self.fixed = layers, 0, fixed
        self.front = 0  # places before every text, which stay when a row starts anew
        self.cross: Cross | None = None
        self.books = books or [Book()] * len(layers)
        self.lengths = torch.zeros(rows, dtype=torch.long, device=device)

    def ahead(self, tokens: Tensor, real: Tensor | None = None) -> Mask:
        """The mask of the tokens about to be read; `real` (rows, tokens) marks those that are not padding."""
        self._count(1 if self.beams else tokens.size(1), real)
        if self.beams:
            return Mask(at=self._places(self.lengths[:, None].repeat(1, tokens.size(1))))  # alternatives for one place
        if real is None:
            steps = torch.arange(tokens.size(1), device=tokens.device)
        else:
            steps = (real.cumsum(1) - 1).clamp(min=0)  # padding borrows a valid place; nothing will remember it
        return Mask(keys=real, at=self._places(self.lengths[:, None] + steps))

    def _places(self, at: Tensor) -> Tensor:
        """A row that has ended and waits beside the others stays at the last place there is."""
        return at if self.context is None else at.clamp(max=self.context - 1)

    def _count(self, tokens: int, real: Tensor | None) -> None:
        """Refuse what no place is left for. The device is asked only when the count says that it may be so."""
        if self.context is None or self.read is None:
            return
        self.read += tokens
        if self.read > self.context:
            lengths = self.lengths + (tokens if real is None else real.sum(1))
            least, most = int(lengths.min()), int(lengths.max())
            if (least if tokens == 1 else most) > self.context:  # in a single step, rows that have ended may wait
                raise ValueError(beyond(most, self.context))
            self.read = least

    def open(self, mask: Mask) -> list[tuple[Mask, Mask]]:
        """Count these tokens in; every layer's masks (handed, seen), the same objects where layers share a book."""
        assert mask.at is not None
        here = {id(book): book.open(mask, self.lengths) for book in self._distinct()}
        self.lengths += (1 if self.beams else mask.at.size(1)) if mask.keys is None else mask.keys.sum(1)
        return [here[id(book)] for book in self.books]

    def begin(self, places: int) -> None:
        """What was remembered up to here, so many places, stands before every text."""
        self.front = places

    def reset(self, rows: Tensor) -> None:
        """Rows (bool) whose text is over: the next prompt read there starts anew, while the others go on."""
        assert not self.beams, "beams share their past: select the rows that go on instead"
        self.lengths.masked_fill_(rows, self.front)
        for memory in self.layers:
            memory.reset(rows)
        for book in self._distinct():
            book.reset(rows)

    def select(self, rows: Tensor) -> "Cache":
        """Keep these rows, in this order."""
        self.lengths = pick(self.lengths, rows)
        for book in self._distinct():
            book.select(rows)
        states = (rows[:, None] * self.beams + torch.arange(self.beams, device=rows.device)).flatten()
        for memory in self.layers:
            memory.select(states if memory.beams else rows)
        if self.cross is not None:
            self.cross = self.cross.select(rows)
        return self

    def branch(self, beams: int, steps: int) -> None:
        """From here on a step reads (rows, beams) tokens, alternatives for one place; `steps` such steps at most."""
        assert not self.beams, "a cache branches only once"
        self.beams = beams
        for book in self._distinct():
            book.branch(beams, steps, self.lengths)
        for memory in self.layers:
            memory.branch(beams)

    def follow(self, origin: Tensor) -> None:
        """origin (rows, beams): which alternative of the last step each one of the next continues."""
        rows = torch.arange(len(origin), device=origin.device)[:, None]
        flat = (rows * self.beams + origin).flatten()
        for book in self._distinct():
            book.follow(origin)
        for memory in self.layers:
            memory.follow(flat)

    def tensors(self) -> dict[str, Tensor]:
        """A copy of all that is remembered, by name; `fill` puts it back."""
        held = ((name, vars(each).items()) for name, each in self._holders().items())
        return {f"{name}{key}": each.clone() for name, every in held for key, each in every if isinstance(each, Tensor)}

    def fill(self, tensors: dict[str, Tensor]) -> None:
        """Remember this instead, in a cache of the same model with the same number of rows."""
        device = self.lengths.device
        for name, each in self._holders().items():
            own = {
                key: tensors.get(f"{name}{key}") for key, held in vars(each).items() if isinstance(held, Tensor | None)
            }
            for key, tensor in own.items():
                setattr(each, key, None if tensor is None else tensor.to(device, copy=True))

    def _holders(self) -> dict[str, object]:
        assert self.cross is None and not self.beams, "only what reads one text per row can be put away"
        layers = {f"layers.{i}.": memory for i, memory in enumerate(self.layers)}
        return {"": self, **layers, **{f"books.{i}.": book for i, book in enumerate(self._distinct())}}

    def _distinct(self) -> list[Book]:
        return list({id(book): book for book in self.books}.values())


class SlotBook(Book):
    """Numbered slots. Slot 0 takes what need not be remembered (padding)."""

    to: Tensor  # (rows, tokens): where the tokens at hand go
    size: int | None = None  # how many slots to read; None: all of them
    beams = 0
    slots: int  # how many there are
    kin: Tensor  # (rows, beams, slots) bool, once there are beams
    kept: Tensor | None = None  # (rows, left): the slots that are left, if the last step tidied up

    def begin_beams(self, beams: int, at: Tensor, slots: int) -> Tensor:
        """All beams share the past at positions `at` (rows, old slots); returns the positions of all slots."""
        rows, old = at.shape
        self.beams, self.slots = beams, slots
        self.steps = torch.zeros((), dtype=torch.long, device=at.device)  # a tensor: compiled steps reuse it
        self.own = torch.arange(beams, device=at.device)
        self.kin = torch.zeros(rows, beams, slots, dtype=torch.bool, device=at.device)
        self.kin[:, :, :old] = (at != FAR)[:, None]
        places = at.new_full((rows, slots), FAR)
        places[:, :old] = at
        return places

    def enter(self, to: Tensor) -> None:
        """The beams write side by side at `to` (rows, beams): a new place, or an old one taken again."""
        columns = to[:, None].expand(-1, self.beams, -1)  # (rows, beams, beams)
        self.kin.scatter_(2, columns, torch.eye(self.beams, dtype=torch.bool, device=to.device).expand_as(columns))
        self.steps += 1

    def select(self, rows: Tensor) -> None:
        if self.beams:
            self.kin = pick(self.kin, rows)

    def follow(self, origin: Tensor) -> None:
        self.kin.copy_(self.kin.gather(1, origin[:, :, None].expand_as(self.kin)))


class Slots(Memory):
    """Keys and values, in the slots that the book numbers."""

    def __init__(self, book: SlotBook, rows: int, heads: int, head_width: int, like: Tensor) -> None:
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
        self.k, self.v = pick(self.k, rows), pick(self.v, rows)

    def branch(self, beams: int) -> None:
        self.fit()

    def follow(self, flat: Tensor) -> None:
        """The book's kin says it; but where it was tidied, what is left moves together."""
        if (kept := self.book.kept) is not None:
            index = kept[:, None, :, None].expand(-1, self.k.size(1), -1, self.k.size(3))
            for held in (self.k, self.v):
                held[:, :, : kept.size(1)] = held.gather(2, index)

    def fit(self) -> None:
        """Have as many slots as the book: more as a text grows, fewer when beams leave a preallocated row behind."""
        if more := self.book.slots - self.k.size(2):
            self.k, self.v = F.pad(self.k, (0, 0, 0, more)), F.pad(self.v, (0, 0, 0, more))


class DenseSlots(Slots):
    book: "DenseBook"

    def keep(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        self.fit()
        self.write(k, v)
        if self.book.empty:
            return k, v
        size = self.book.size
        return (self.k, self.v) if size is None else (self.k[:, :, :size], self.v[:, :, :size])


class DenseBook(SlotBook):
    """Every key and value. Position p sits in slot p + 1, so causality alone hides what is stale or not yet written.

    With a capacity the shapes never change (compiled decoding); without one the slots double when they run out.
    Beams write behind the common past, side by side, and the book notes who is whose kin. Most of what they wrote is
    soon nobody's past: without a capacity it is cleared away now and then, for every step reads all that is there.
    """

    def __init__(self, rows: int, device: torch.device, capacity: int | None = None) -> None:
        self.capacity, self.used = capacity, 1
        self.fresh = self.empty = True  # nothing is held yet: the tokens at hand are all there is to see
        self.slots = rounded((capacity or 15) + 1)
        self.at = self._numbered(device)

    def _numbered(self, device: torch.device) -> Tensor:
        at = torch.arange(-1, self.slots - 1, device=device)[None]
        at[:, 0] = FAR
        return at

    def open(self, mask: Mask, lengths: Tensor) -> tuple[Mask, Mask]:
        assert mask.at is not None
        if self.beams:
            return mask, self._open_beams(mask, lengths)
        self.to = mask.at + 1 if mask.keys is None else torch.where(mask.keys, mask.at + 1, 0)
        if self.capacity is None:
            self._make_room(mask.at.size(1))
        self.empty, self.fresh = self.fresh, False
        if self.empty:  # a prompt never pays for the capacity, and without padding needs no mask tensor
            return mask, mask if mask.keys is not None else Mask(causal=True)
        return mask, mask.but(keys=None, keys_at=self.at[:, : self.size])

    def _make_room(self, tokens: int) -> None:
        self.used += tokens  # an upper bound that needs no look at the device
        self.size = self.used
        if self.used > self.slots:
            self.slots = rounded(2 * self.used)
            self.at = self._numbered(self.at.device)

    def branch(self, beams: int, steps: int, lengths: Tensor) -> None:
        self.base = min(rounded(int(lengths.max()) + 1), self.slots)  # the one look at the device that beams cost
        held = self.at[:, : self.base]
        held = torch.where(held < lengths[:, None], held, FAR)  # (rows, base); the rest is stale or another row's room
        room = steps if self.capacity is not None else min(steps, 2 * TIDY)
        self.at = self.begin_beams(beams, held, rounded(self.base + room * beams))
        self.empty = False
        if self.capacity is None:
            self.size = self.base

    def follow(self, origin: Tensor) -> None:
        super().follow(origin)
        self.kept = None
        if self.size is not None and self.size - self.base >= TIDY * self.beams:
            self._tidy()

    def _tidy(self) -> None:
        """Keep, in their order, the slots that some beam still sees; rows with fewer of them keep some in vain."""
        seen = self.kin[:, :, : self.size].any(1)  # (rows, size)
        left = int(seen.sum(1).max())
        self.kept = seen.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :left]
        self.at[:, :left] = self.at.gather(1, self.kept)
        self.kin[:, :, :left] = self.kin.gather(2, self.kept[:, None].expand(-1, self.beams, -1))
        self.base = self.size = left
        self.steps.zero_()

    def _open_beams(self, mask: Mask, lengths: Tensor) -> Mask:
        if self.size is not None:
            self.size += self.beams
            if self.size > self.slots:
                more = rounded(2 * self.size) - self.slots
                self.slots += more
                self.at, self.kin = F.pad(self.at, (0, more), value=FAR), F.pad(self.kin, (0, more))
        self.to = (self.base + self.steps * self.beams + self.own).expand(len(self.kin), -1)  # (rows, beams)
        self.at.scatter_(1, self.to, lengths[:, None].expand(-1, self.beams))
        self.enter(self.to)
        return mask.but(keys_at=self.at[:, : self.size], kin=self.kin[:, :, : self.size])

    def select(self, rows: Tensor) -> None:
        super().select(rows)
        if self.beams:  # before that, positions are the same in every row
            self.at = pick(self.at, rows)


class Ring(Slots):
    book: "RingBook"

    def keep(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        seen = torch.cat([self.k, k], 2), torch.cat([self.v, v], 2)  # read before writing: a prompt may lap the ring
        self.write(k, v)
        return seen


class RingBook(SlotBook):
    """The last `window` keys and values, each with its position; constant memory however long the text."""

    def __init__(self, rows: int, device: torch.device, window: int) -> None:
        self.window, self.slots = window, rounded(window + 1)
        self.at = torch.full((rows, self.slots), FAR, device=device)

    def open(self, mask: Mask, lengths: Tensor) -> tuple[Mask, Mask]:
        assert mask.at is not None
        if self.beams:
            return mask, self._open_beams(mask)
        real = torch.ones_like(mask.at, dtype=torch.bool) if mask.keys is None else mask.keys
        after = lengths + real.sum(1)
        # What the same call will lap is not written at all: on a GPU the order of such writes is undefined.
        self.to = torch.where(real & (mask.at >= after[:, None] - self.window), mask.at % self.window + 1, 0)
        seen = mask.but(keys=None, keys_at=torch.cat([self.at, mask.at.masked_fill(~real, FAR)], 1))
        self.at.scatter_(1, self.to, mask.at)  # `seen` already holds a copy of the old places
        self.at[:, 0] = FAR
        return mask, seen

    def branch(self, beams: int, steps: int, lengths: Tensor) -> None:
        self.base = self.slots  # the common past stays in its ring and fades; the beams share a second one
        self.at = self.begin_beams(beams, self.at, rounded(self.base + self.window * beams))

    def _open_beams(self, mask: Mask) -> Mask:
        assert mask.at is not None
        rows = len(mask.at)
        itself = torch.eye(self.beams, dtype=torch.bool, device=mask.at.device).expand(rows, -1, -1)
        seen = mask.but(keys_at=torch.cat([self.at, mask.at], 1), kin=torch.cat([self.kin, itself], 2))
        self.to = (self.base + self.steps % self.window * self.beams + self.own).expand(rows, -1)
        self.at.scatter_(1, self.to, mask.at)
        self.enter(self.to)
        return seen

    def reset(self, rows: Tensor) -> None:
        self.at.masked_fill_(rows[:, None], FAR)

    def select(self, rows: Tensor) -> None:
        super().select(rows)
        self.at = pick(self.at, rows)


class Sums(Memory):
    """Performer: Σ φ(k)vᵀ in units of e^top, the largest log-feature so far, which keeps the sums in range."""

    NOTHING = -1e29  # the top where there is no key yet

    def __init__(self, rows: int, heads: int, features: int, head_width: int, like: Tensor) -> None:
        exact = torch.promote_types(like.dtype, torch.float32)  # a long text is many small numbers
        self.sums = like.new_zeros(rows, heads, features, head_width, dtype=exact)
        self.top = like.new_full((rows, heads, 1, 1), self.NOTHING, dtype=exact)

    def reset(self, rows: Tensor) -> None:
        self.sums[rows], self.top[rows] = 0.0, self.NOTHING


class Fixed(Memory):
    """Cross-attention: the source's keys and values, projected once, one row for all the beams of a sentence."""

    def __init__(self, k: Tensor, v: Tensor) -> None:
        self.k, self.v = k, v


class Inputs(Memory):
    """Transformer-XL: the layer's last inputs, so that their projections still learn."""

    def __init__(self, tokens: int) -> None:
        self.tokens, self.policy = tokens, f"memory {tokens}"
        self.past: Tensor | None = None

    def inputs(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        both = key if self.past is None else torch.cat([self.past, key], 1)
        self.past = both[:, -self.tokens :].detach().contiguous()  # or all of it would be kept
        return both, both

    def select(self, rows: Tensor) -> None:
        """A copy: the gradient of the segment just read may still need these inputs as they are."""
        self.past = None if self.past is None else self.past[rows]


class InputBook(Book):
    """Where the remembered inputs stand. For training on equal segments; decoding uses the ordinary slots."""

    def __init__(self, rows: int, device: torch.device, tokens: int) -> None:
        self.tokens, self.at = tokens, torch.empty(rows, 0, dtype=torch.long, device=device)

    def open(self, mask: Mask, lengths: Tensor) -> tuple[Mask, Mask]:
        assert mask.at is not None
        new = mask.at if mask.keys is None else mask.at.masked_fill(~mask.keys, FAR)
        at = torch.cat([self.at, new], 1)
        self.at = at[:, -self.tokens :].contiguous()
        seen = mask.but(keys=None, keys_at=at)
        return seen, seen

    def reset(self, rows: Tensor) -> None:
        self.at = self.at.masked_fill(rows[:, None], FAR)

    def select(self, rows: Tensor) -> None:
        self.at = self.at[rows]
