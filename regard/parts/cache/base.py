"""The state that a decoder keeps between calls. Each row has its own length; the kernel chooses the kind of cache.

A `Cache` serves one stack. It gives the positions of the next tokens (`next_mask`), the masks of every layer
(`advance`) and one `LayerCache` per layer. Layers with the same kind of cache share a `CacheLayout`.

`select(rows)` reorders, repeats or drops rows. `put(rows, other, origin)` replaces rows by those of another cache, so
that texts join others that are under way. `branch(beams)` lets every row continue as several beams. The beams are
queries of the same row, side by side, and `reorder(parents)` tells which beam each one continues. Neither past keys nor
the source are copied: a mask limits each beam to its own ancestry.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from ..masks import ABSENT, Mask
from ..positions import beyond_context_message

if TYPE_CHECKING:
    from ..layer import Cross

OLD_NAMES = {"books": "layouts", "at": "positions", "to": "target_slots"}  # in the tensor names of older checkpoints


def select_rows(tensor: Tensor, rows: Tensor) -> Tensor:
    """Rows of `tensor`; in place if their number stays the same, so that compiled code keeps its addresses."""
    picked = tensor.index_select(0, rows)
    return tensor.copy_(picked) if picked.shape == tensor.shape else picked


def put_rows(tensor: Tensor, rows: Tensor, other: Tensor, origin: Tensor) -> None:
    """Replace rows of `tensor` in place by the rows `origin` of `other`, which may be the same tensor."""
    tensor.index_copy_(0, rows, other.index_select(0, origin).to(tensor.dtype))


class LayerCache:
    """The cache of one layer. This base class holds one state per row in its tensor attributes, or nothing."""

    beams = 0

    def extend_inputs(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Extend the inputs of the projections, (batch, keys, width)."""
        return key, value

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store projected keys and values, (batch, heads, keys, head_width); return all that the mask describes."""
        return k, v

    def select(self, rows: Tensor) -> None:
        for name, tensor in list(vars(self).items()):
            if isinstance(tensor, Tensor):
                setattr(self, name, select_rows(tensor, rows))

    def put(self, rows: Tensor, other: "LayerCache", origin: Tensor) -> None:
        """Replace these rows by the rows `origin` of another cache of this kind."""
        for name, tensor in vars(self).items():
            if isinstance(tensor, Tensor):
                put_rows(tensor, rows, getattr(other, name), origin)

    def reset(self, rows: Tensor) -> None:
        """Forget these rows (bool). Slot caches do nothing: the lengths alone decide what is visible."""

    def branch(self, beams: int) -> None:
        tensors = [tensor for tensor in vars(self).values() if isinstance(tensor, Tensor)]
        if tensors:
            rows = torch.arange(tensors[0].size(0), device=tensors[0].device)
            LayerCache.select(self, rows.repeat_interleave(beams))
        self.beams = beams

    def reorder(self, states: Tensor) -> None:
        """`states` (rows · beams) indexes the states of all beams. A state per beam has to move with its beam."""
        self.select(states)


class CacheLayout:
    """State shared by all layers with one kind of cache. This base class has no slots: it serves sums and states."""

    def __init__(self, rows: int = 0, device: torch.device | None = None, *settings: int | None) -> None:
        pass

    def advance(self, mask: Mask, lengths: Tensor) -> tuple[Mask, Mask]:
        """Masks (given, visible): the keys that the layers receive now, and all keys the queries attend to."""
        return mask, mask

    def select(self, rows: Tensor) -> None: ...

    def put(self, rows: Tensor, other: "CacheLayout", origin: Tensor) -> None: ...

    def reset(self, rows: Tensor) -> None: ...

    def rebound(self, tokens: int) -> None:
        """Know that no row has more than `tokens` any more: a growing cache then reads no more of its slots."""

    def skip_prompt(self) -> None:
        """Expect no prompt: the first token comes in a single step like all later ones."""

    def branch(self, beams: int, steps: int, lengths: Tensor) -> None: ...

    def reorder(self, parents: Tensor) -> None: ...


LayoutSpec = tuple[type[CacheLayout], *tuple[int | None, ...]]  # a layout class and its settings


class Cache:
    """The length of each row, one `LayerCache` per layer, and the layout that each of them uses."""

    context: int | None = None  # number of available positions; None: unlimited
    tokens_read: int | None = None  # upper bound on the tokens read by any row; None: not counted (fixed shapes)

    def __init__(
        self,
        rows: int,
        device: torch.device,
        layers: list[LayerCache],
        layouts: list[CacheLayout] | None = None,
        fixed: bool = False,
    ) -> None:
        """`layouts` has one entry per layer; layers of one kind share the object. `fixed`: no tensor ever grows."""
        self.layers, self.beams, self.fixed = layers, 0, fixed
        self.prefix_length = 0  # positions before every text; a reset row keeps them
        self.cross: Cross | None = None
        self.layouts = layouts or [CacheLayout()] * len(layers)
        self.lengths = torch.zeros(rows, dtype=torch.long, device=device)

    def next_mask(self, tokens: Tensor, valid: Tensor | None = None) -> Mask:
        """The mask of the next tokens; `valid` (rows, tokens) is False for padding."""
        self._check_context(1 if self.beams else tokens.size(1), valid)
        if self.beams:  # all beams of a row are at the same position
            return Mask(positions=self._clamp_to_context(self.lengths[:, None].repeat(1, tokens.size(1))))
        if valid is None:
            steps = torch.arange(tokens.size(1), device=tokens.device)
        else:
            steps = (valid.cumsum(1) - 1).clamp(min=0)  # padding repeats a valid position; no cache stores it
        return Mask(key_valid=valid, positions=self._clamp_to_context(self.lengths[:, None] + steps))

    def _clamp_to_context(self, positions: Tensor) -> Tensor:
        """A finished row that waits for the others stays at the last position."""
        return positions if self.context is None else positions.clamp(max=self.context - 1)

    def _check_context(self, tokens: int, valid: Tensor | None) -> None:
        """Refuse tokens beyond the context. Reads lengths from the device only when the upper bound reaches it."""
        if self.context is None or self.tokens_read is None:
            return
        self.tokens_read += tokens
        if self.tokens_read > self.context:
            lengths = self.lengths + (tokens if valid is None else valid.sum(1))
            least, most = int(lengths.min()), int(lengths.max())
            if (least if tokens == 1 else most) > self.context:  # in a single step, finished rows may wait
                raise ValueError(beyond_context_message(most, self.context))
            self.tokens_read = least

    def advance(self, mask: Mask) -> list[tuple[Mask, Mask]]:
        """Count these tokens and return (given, visible) masks per layer; layers that share a layout share objects."""
        assert mask.positions is not None
        masks = {id(layout): layout.advance(mask, self.lengths) for layout in self._distinct_layouts()}
        self.lengths += (
            (1 if self.beams else mask.positions.size(1)) if mask.key_valid is None else mask.key_valid.sum(1)
        )
        return [masks[id(layout)] for layout in self.layouts]

    def keep_prefix(self, tokens: int) -> None:
        """Declare the `tokens` stored so far a prefix of every text; `reset` keeps them."""
        self.prefix_length = tokens

    def reset(self, rows: Tensor) -> None:
        """Free the rows (bool) whose text has ended. Their next prompt starts anew; the other rows continue."""
        assert not self.beams, "beams share their past: select the rows that go on instead"
        self.lengths.masked_fill_(rows, self.prefix_length)
        for layer_cache in self.layers:
            layer_cache.reset(rows)
        for layout in self._distinct_layouts():
            layout.reset(rows)

    def select(self, rows: Tensor) -> "Cache":
        """Keep these rows, in this order."""
        self.lengths = select_rows(self.lengths, rows)
        for layout in self._distinct_layouts():
            layout.select(rows)
        states = (rows[:, None] * self.beams + torch.arange(self.beams, device=rows.device)).flatten()
        for layer_cache in self.layers:
            layer_cache.select(states if layer_cache.beams else rows)
        if self.cross is not None:
            self.cross = self.cross.select(rows)
        return self

    def put(self, rows: Tensor, other: "Cache", origin: Tensor) -> None:
        """Replace these rows by the rows `origin` of another cache of this model, or of this one; all others continue.

        It happens in place; only a longer source makes the tensors of the source grow.
        """
        assert not self.beams and not other.beams, "beams share their past: give each a row of its own instead"
        if self.tokens_read is not None:
            read = int(other.lengths.max()) if other.tokens_read is None else other.tokens_read
            self.tokens_read = max(self.tokens_read, read)
        put_rows(self.lengths, rows, other.lengths, origin)
        for layout, theirs in zip(self._distinct_layouts(), other._distinct_layouts(), strict=True):
            layout.put(rows, theirs, origin)
        for layer_cache, their_cache in zip(self.layers, other.layers, strict=True):
            layer_cache.put(rows, their_cache, origin)
        if self.cross is not None and other.cross is not None and other is not self:  # its own beams share a source
            self.cross = self.cross.put(rows, other.cross, origin)

    def rebound(self, tokens: int) -> None:
        """Tell the cache that no row that still counts has read more than `tokens`: after longer ones have left."""
        if self.tokens_read is not None:
            self.tokens_read = tokens + self.prefix_length
        for layout in self._distinct_layouts():
            layout.rebound(tokens + self.prefix_length)

    def skip_prompt(self) -> None:
        """Expect no prompt: the first step is like all others."""
        for layout in self._distinct_layouts():
            layout.skip_prompt()

    def branch(self, beams: int, steps: int) -> None:
        """From now on a step reads (rows, beams) tokens, all at the same position; at most `steps` such steps."""
        assert not self.beams, "a cache branches only once"
        self.beams = beams
        for layout in self._distinct_layouts():
            layout.branch(beams, steps, self.lengths)
        for layer_cache in self.layers:
            layer_cache.branch(beams)

    def reorder(self, parents: Tensor) -> None:
        """parents (rows, beams): the beam of the last step that each beam of the next step continues."""
        rows = torch.arange(len(parents), device=parents.device)[:, None]
        states = (rows * self.beams + parents).flatten()
        for layout in self._distinct_layouts():
            layout.reorder(parents)
        for layer_cache in self.layers:
            layer_cache.reorder(states)

    def state(self) -> dict[str, Tensor]:
        """Copies of all stored tensors by name; `load_state` restores them."""
        owners = ((prefix, vars(owner).items()) for prefix, owner in self._tensor_owners().items())
        return {f"{prefix}{key}": x.clone() for prefix, items in owners for key, x in items if isinstance(x, Tensor)}

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Restore `state()` of a cache of the same model with the same number of rows; older names are accepted."""
        device = self.lengths.device
        tensors = {current_name(name): tensor for name, tensor in tensors.items()}
        for prefix, owner in self._tensor_owners().items():
            for key in [key for key, value in vars(owner).items() if isinstance(value, Tensor | None)]:
                tensor = tensors.get(f"{prefix}{key}")
                setattr(owner, key, None if tensor is None else tensor.to(device, copy=True))

    def _tensor_owners(self) -> dict[str, object]:
        """The objects that hold tensors, by the prefix of their names in `state`."""
        assert self.cross is None and not self.beams, "only a cache with one text per row can be saved"
        layers = {f"layers.{i}.": layer_cache for i, layer_cache in enumerate(self.layers)}
        layouts = {f"layouts.{i}.": layout for i, layout in enumerate(self._distinct_layouts())}
        return {"": self, **layers, **layouts}

    def _distinct_layouts(self) -> list[CacheLayout]:
        return list({id(layout): layout for layout in self.layouts}.values())


def current_name(name: str) -> str:
    """The name that `Cache.state` gives today to a tensor of an older checkpoint, e.g. "books.0.at"."""
    return ".".join(OLD_NAMES.get(part, part) for part in name.split("."))


class FeatureSums(LayerCache):
    """Performer: Σ φ(k)vᵀ in units of e^top, where top is the largest log-feature so far. That keeps sums in range."""

    NO_KEY = -1e29  # `top` before the first key

    def __init__(self, rows: int, heads: int, features: int, head_width: int, like: Tensor) -> None:
        exact = torch.promote_types(like.dtype, torch.float32)  # a long text adds many small numbers
        self.sums = like.new_zeros(rows, heads, features, head_width, dtype=exact)
        self.top = like.new_full((rows, heads, 1, 1), self.NO_KEY, dtype=exact)

    def reset(self, rows: Tensor) -> None:
        self.sums[rows], self.top[rows] = 0.0, self.NO_KEY


class CrossCache(LayerCache):
    """Cross-attention: keys and values of the source, projected once; all beams of a row share them."""

    def __init__(self, k: Tensor, v: Tensor) -> None:
        self.k, self.v = k, v

    def pad(self, keys: int) -> None:
        """Make room for a source of that many keys."""
        if more := keys - self.k.size(2):
            self.k, self.v = F.pad(self.k, (0, 0, 0, more)), F.pad(self.v, (0, 0, 0, more))


class InputCache(LayerCache):
    """Transformer-XL: the last inputs of a layer. They are projected again, so the projections still get gradients."""

    def __init__(self, tokens: int) -> None:
        self.tokens, self.policy = tokens, f"memory {tokens}"
        self.past: Tensor | None = None

    def extend_inputs(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        both = key if self.past is None else torch.cat([self.past, key], 1)
        self.past = both[:, -self.tokens :].detach().contiguous()  # a view would keep all of `both` alive
        return both, both

    def select(self, rows: Tensor) -> None:
        """Copy: the backward pass of the last segment may still need these inputs unchanged."""
        self.past = None if self.past is None else self.past[rows]


class InputLayout(CacheLayout):
    """Positions of the stored inputs. For training on segments of equal length; decoding uses slots."""

    def __init__(self, rows: int, device: torch.device, tokens: int) -> None:
        self.tokens, self.positions = tokens, torch.empty(rows, 0, dtype=torch.long, device=device)

    def advance(self, mask: Mask, lengths: Tensor) -> tuple[Mask, Mask]:
        assert mask.positions is not None
        new = mask.positions if mask.key_valid is None else mask.positions.masked_fill(~mask.key_valid, ABSENT)
        positions = torch.cat([self.positions, new], 1)
        self.positions = positions[:, -self.tokens :].contiguous()
        visible = mask.replace(key_valid=None, key_positions=positions)
        return visible, visible

    def reset(self, rows: Tensor) -> None:
        self.positions = self.positions.masked_fill(rows[:, None], ABSENT)

    def select(self, rows: Tensor) -> None:
        self.positions = self.positions[rows]
