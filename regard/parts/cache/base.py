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

from ..masks import ABSENT, Mask
from ..positions import beyond_context

if TYPE_CHECKING:
    from ..layer import Cross


def select_rows(held: Tensor, rows: Tensor) -> Tensor:
    """Rows of `held`; in place when the number stays, so that compiled code keeps its addresses."""
    picked = held.index_select(0, rows)
    return held.copy_(picked) if picked.shape == held.shape else picked


class LayerCache:
    """One layer's share of a cache. This one holds a state per row; without any tensor it keeps nothing."""

    beams = 0

    def extend_inputs(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        return key, value  # before projection: (batch, keys, width)

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return k, v  # after projection: (batch, heads, keys, head_width)

    def select(self, rows: Tensor) -> None:
        for name, held in list(vars(self).items()):
            if isinstance(held, Tensor):
                setattr(self, name, select_rows(held, rows))

    def reset(self, rows: Tensor) -> None:
        """Forget these rows (bool). Nothing to do where lengths alone decide what is visible."""

    def branch(self, beams: int) -> None:
        held = [tensor for tensor in vars(self).values() if isinstance(tensor, Tensor)]
        if held:
            rows = torch.arange(held[0].size(0), device=held[0].device)
            LayerCache.select(self, rows.repeat_interleave(beams))
        self.beams = beams

    def reorder(self, flat: Tensor) -> None:
        """`flat` (rows · beams) numbers states, which do not stand side by side and have to move."""
        self.select(flat)


class CacheLayout:
    """What the layers with one kind of memory share. This one has no slots: sums, states."""

    def __init__(self, rows: int = 0, device: torch.device | None = None) -> None:
        pass

    def advance(self, mask: Mask, lengths: Tensor) -> tuple[Mask, Mask]:
        """(handed, seen): the keys the layers are given now, and all that will be seen."""
        return mask, mask

    def select(self, rows: Tensor) -> None: ...

    def reset(self, rows: Tensor) -> None: ...

    def skip_prompt(self) -> None:
        """The first tokens come as all later ones do, in single steps."""

    def branch(self, beams: int, steps: int, lengths: Tensor) -> None: ...

    def reorder(self, origin: Tensor) -> None: ...


class Cache:
    """How far each row is, one memory per layer, and the book that each of them is kept by."""

    context: int | None = None  # how many places the positions know; None: any number
    read: int | None = None  # no row has read more; counted where shapes may change anyway, and places can run out

    def __init__(
        self,
        rows: int,
        device: torch.device,
        layers: list[LayerCache],
        books: list[CacheLayout] | None = None,
        fixed: bool = False,
    ) -> None:
        """`books` has one entry per layer; layers of one kind name the same book. `fixed`: nothing in it ever grows."""
        self.layers, self.beams, self.fixed = layers, 0, fixed
        self.prefix_length = 0  # places before every text, which stay when a row starts anew
        self.cross: Cross | None = None
        self.layouts = books or [CacheLayout()] * len(layers)
        self.lengths = torch.zeros(rows, dtype=torch.long, device=device)

    def next_mask(self, tokens: Tensor, real: Tensor | None = None) -> Mask:
        """The mask of the tokens about to be read; `real` (rows, tokens) marks those that are not padding."""
        self._count(1 if self.beams else tokens.size(1), real)
        if self.beams:
            return Mask(
                positions=self._places(self.lengths[:, None].repeat(1, tokens.size(1)))
            )  # alternatives for one place
        if real is None:
            steps = torch.arange(tokens.size(1), device=tokens.device)
        else:
            steps = (real.cumsum(1) - 1).clamp(min=0)  # padding borrows a valid place; nothing will remember it
        return Mask(key_valid=real, positions=self._places(self.lengths[:, None] + steps))

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
                raise ValueError(beyond_context(most, self.context))
            self.read = least

    def advance(self, mask: Mask) -> list[tuple[Mask, Mask]]:
        """Count these tokens in; every layer's masks (handed, seen), the same objects where layers share a book."""
        assert mask.positions is not None
        here = {id(book): book.advance(mask, self.lengths) for book in self._distinct()}
        self.lengths += (
            (1 if self.beams else mask.positions.size(1)) if mask.key_valid is None else mask.key_valid.sum(1)
        )
        return [here[id(book)] for book in self.layouts]

    def keep_prefix(self, places: int) -> None:
        """What was remembered up to here, so many places, stands before every text."""
        self.prefix_length = places

    def reset(self, rows: Tensor) -> None:
        """Rows (bool) whose text is over: the next prompt read there starts anew, while the others go on."""
        assert not self.beams, "beams share their past: select the rows that go on instead"
        self.lengths.masked_fill_(rows, self.prefix_length)
        for memory in self.layers:
            memory.reset(rows)
        for book in self._distinct():
            book.reset(rows)

    def select(self, rows: Tensor) -> "Cache":
        """Keep these rows, in this order."""
        self.lengths = select_rows(self.lengths, rows)
        for book in self._distinct():
            book.select(rows)
        states = (rows[:, None] * self.beams + torch.arange(self.beams, device=rows.device)).flatten()
        for memory in self.layers:
            memory.select(states if memory.beams else rows)
        if self.cross is not None:
            self.cross = self.cross.select(rows)
        return self

    def skip_prompt(self) -> None:
        """No prompt comes: the first step is one like all others."""
        for book in self._distinct():
            book.skip_prompt()

    def branch(self, beams: int, steps: int) -> None:
        """From here on a step reads (rows, beams) tokens, alternatives for one place; `steps` such steps at most."""
        assert not self.beams, "a cache branches only once"
        self.beams = beams
        for book in self._distinct():
            book.branch(beams, steps, self.lengths)
        for memory in self.layers:
            memory.branch(beams)

    def reorder(self, origin: Tensor) -> None:
        """origin (rows, beams): which alternative of the last step each one of the next continues."""
        rows = torch.arange(len(origin), device=origin.device)[:, None]
        flat = (rows * self.beams + origin).flatten()
        for book in self._distinct():
            book.reorder(origin)
        for memory in self.layers:
            memory.reorder(flat)

    def state(self) -> dict[str, Tensor]:
        """A copy of all that is remembered, by name; `fill` puts it back."""
        held = ((name, vars(each).items()) for name, each in self._holders().items())
        return {f"{name}{key}": each.clone() for name, every in held for key, each in every if isinstance(each, Tensor)}

    def load_state(self, tensors: dict[str, Tensor]) -> None:
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

    def _distinct(self) -> list[CacheLayout]:
        return list({id(book): book for book in self.layouts}.values())


class FeatureSums(LayerCache):
    """Performer: Σ φ(k)vᵀ in units of e^top, the largest log-feature so far, which keeps the sums in range."""

    NOTHING = -1e29  # the top where there is no key yet

    def __init__(self, rows: int, heads: int, features: int, head_width: int, like: Tensor) -> None:
        exact = torch.promote_types(like.dtype, torch.float32)  # a long text is many small numbers
        self.sums = like.new_zeros(rows, heads, features, head_width, dtype=exact)
        self.top = like.new_full((rows, heads, 1, 1), self.NOTHING, dtype=exact)

    def reset(self, rows: Tensor) -> None:
        self.sums[rows], self.top[rows] = 0.0, self.NOTHING


class CrossCache(LayerCache):
    """Cross-attention: the source's keys and values, projected once, one row for all the beams of a sentence."""

    def __init__(self, k: Tensor, v: Tensor) -> None:
        self.k, self.v = k, v


class InputCache(LayerCache):
    """Transformer-XL: the layer's last inputs, so that their projections still learn."""

    def __init__(self, tokens: int) -> None:
        self.tokens, self.policy = tokens, f"memory {tokens}"
        self.past: Tensor | None = None

    def extend_inputs(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        both = key if self.past is None else torch.cat([self.past, key], 1)
        self.past = both[:, -self.tokens :].detach().contiguous()  # or all of it would be kept
        return both, both

    def select(self, rows: Tensor) -> None:
        """A copy: the gradient of the segment just read may still need these inputs as they are."""
        self.past = None if self.past is None else self.past[rows]


class InputLayout(CacheLayout):
    """Where the remembered inputs stand. For training on equal segments; decoding uses the ordinary slots."""

    def __init__(self, rows: int, device: torch.device, tokens: int) -> None:
        self.tokens, self.at = tokens, torch.empty(rows, 0, dtype=torch.long, device=device)

    def advance(self, mask: Mask, lengths: Tensor) -> tuple[Mask, Mask]:
        assert mask.positions is not None
        new = mask.positions if mask.key_valid is None else mask.positions.masked_fill(~mask.key_valid, ABSENT)
        at = torch.cat([self.at, new], 1)
        self.at = at[:, -self.tokens :].contiguous()
        seen = mask.replace(key_valid=None, key_positions=at)
        return seen, seen

    def reset(self, rows: Tensor) -> None:
        self.at = self.at.masked_fill(rows[:, None], ABSENT)

    def select(self, rows: Tensor) -> None:
        self.at = self.at[rows]
