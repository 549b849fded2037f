"""What attention replaced: recurrence, and gated convolution. Both stand in a layer in the place of self-attention.

They have the verbs of `Attention`. Between calls a recurrence remembers its state and a convolution its last inputs, so
that beams, ragged rows and rows that come and go are the cache's affair here too.
"""

import warnings
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from .cache.base import CacheLayout, LayerCache
from .feed import neighbours
from .masks import Mask
from .positions import PositionTerms

Cell = Literal["lstm", "gru", "rnn"]
# torch keeps a recurrence's weights in one piece in float32 and half precision only, and tells of it in bfloat16
warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")

CELLS: dict[Cell, Any] = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
LONGEST = 32768  # tokens that torch's fused recurrences are given at once: cuDNN refuses 65,536
STEPS: dict[Cell, Any] = {"lstm": torch.lstm_cell, "gru": torch.gru_cell, "rnn": torch.rnn_tanh_cell}


class SequenceMixer(nn.Module):
    """What stands in attention's place: it is handed the same things, and looks only at its query."""

    outputs: int  # width of what it says

    def forward(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        mask: Mask,
        where: PositionTerms | None = None,
        memory: Any = None,
    ) -> Tensor:
        if memory is None:
            return self.read(query, mask)
        if memory.beams:  # alternatives side by side: each has its own memory, as a row has otherwise
            flat = self.go_on(query.flatten(0, 1)[:, None], None, memory)
            return flat.view(*query.shape[:2], -1)
        return self.go_on(query, mask.key_valid, memory)

    def read(self, x: Tensor, mask: Mask) -> Tensor:
        """Whole texts, (batch, tokens, width)."""
        raise NotImplementedError

    def go_on(self, x: Tensor, real: Tensor | None, memory: Any) -> Tensor:
        """What comes next in every row, (rows, tokens, width); `real` marks what is no padding."""
        raise NotImplementedError

    def prepare(self, mask: Mask, queries: int, keys: int, device: torch.device) -> None:
        """No form of the mask is shared by all layers but `laid_out`, which they make as they need it."""

    def cache_layout(self, capacity: int | None) -> tuple[Any, ...]:
        return (CacheLayout,)  # nothing has a slot: however long the text, as much is remembered


# --- Recurrence ------------------------------------------------------------------------------------------------------


class RecurrentState(LayerCache):
    """What a recurrence knows of the text so far. LSTMs have a second part, which nobody else sees."""

    policy, tokens = "state", None  # how evaluation names it; a state has no end of its own

    def __init__(self, rows: int, width: int, cell: Cell, like: Tensor) -> None:
        self.h = like.new_zeros(rows, width)
        self.c = like.new_zeros(rows, width) if cell == "lstm" else None

    def held(self) -> tuple[Tensor, ...]:
        return (self.h,) if self.c is None else (self.h, self.c)

    def take(self, new: tuple[Tensor, ...]) -> None:
        """Without a gradient, in place, so that a recorded step finds it; else beside it: a gradient needs the old."""
        for name, each in zip("hc", new, strict=False):
            if torch.is_grad_enabled():
                setattr(self, name, each.detach().to(getattr(self, name).dtype))
            else:
                getattr(self, name).copy_(each)

    def reset(self, rows: Tensor) -> None:
        for each in self.held():
            each.masked_fill_(rows[:, None], 0.0)


class Recurrence(SequenceMixer):
    """An LSTM, a GRU or a plain recurrence over every text, by torch's fused ones. `both`: from both of its ends, each
    with half of the width."""

    def __init__(self, width: int, cell: Cell = "lstm", both: bool = False) -> None:
        super().__init__()
        if both and width % 2:
            raise ValueError(halved(width))
        self.cell, self.width, self.causal = cell, width // 2 if both else width, not both
        self.outputs = width
        self.forth = CELLS[cell](width, self.width, batch_first=True)
        self.back = CELLS[cell](width, self.width, batch_first=True) if both else None

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def read(self, x: Tensor, mask: Mask) -> Tensor:
        lay = mask.cached("laid out", lambda: laid_out(mask))
        if lay is None:
            forth = through(self.forth, x)
            return forth if self.back is None else torch.cat([forth, through(self.back, x.flip(1)).flip(1)], -1)
        forth = lay.returned(through(self.forth, lay.taken(x)))
        if self.back is None:
            return forth
        lay = mask.cached("laid out backwards", lay.backwards)
        return torch.cat([forth, lay.returned(through(self.back, lay.taken(x)))], -1)

    def go_on(self, x: Tensor, real: Tensor | None, memory: RecurrentState) -> Tensor:
        return self._step(x, real, memory) if x.size(1) == 1 else self._several(x, real, memory)

    def _step(self, x: Tensor, real: Tensor | None, memory: RecurrentState) -> Tensor:
        """One token: a few small kernels, which compile and can be recorded."""
        layer, held = self.forth, memory.held()
        weights = layer.weight_ih_l0, layer.weight_hh_l0, layer.bias_ih_l0, layer.bias_hh_l0
        new = self._parts(STEPS[self.cell](x[:, 0], self._whole(held), *weights))
        out = new[0][:, None]
        if real is not None:
            new = tuple(torch.where(real, each, old) for each, old in zip(new, held, strict=True))
        memory.take(new)
        return out

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _several(self, x: Tensor, real: Tensor | None, memory: RecurrentState) -> Tensor:
        """Ragged rows are packed, because only so an LSTM tells its whole state behind a row's own last token."""
        held = tuple(each[None] for each in memory.held())
        if real is None:
            out, last = went(self.forth, x, self._whole(held))
            memory.take(tuple(each[0] for each in self._parts(last)))
            return out
        lay, full = by_rows(real), real.any(1, keepdim=True)  # a row may have nothing but padding
        lengths = lay.lengths.clamp(min=1).cpu()
        rows = pack_padded_sequence(lay.taken(x), lengths, batch_first=True, enforce_sorted=False)
        packed, last = self.forth(rows, self._whole(held))
        new = zip(self._parts(last), held, strict=True)
        memory.take(tuple(torch.where(full, each[0], old[0]) for each, old in new))
        return lay.returned(pad_packed_sequence(packed, batch_first=True, total_length=x.size(1))[0])

    def _whole(self, held: tuple[Tensor, ...]) -> Any:
        """The state as torch takes it, and back: an LSTM's has two parts."""
        return held if self.cell == "lstm" else held[0]

    def _parts(self, new: Any) -> tuple[Tensor, ...]:
        return tuple(new) if self.cell == "lstm" else (new,)

    def layer_cache(self, book: Any, rows: int) -> RecurrentState:
        return RecurrentState(rows, self.width, self.cell, self.forth.weight_hh_l0)


def through(layer: nn.Module, x: Tensor) -> Tensor:
    return went(layer, x)[0]


def went(layer: nn.Module, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
    """A text that is too long for one call goes in stretches, each from the state behind the one before."""
    found = []
    for stretch in torch.split(x, LONGEST, 1):
        out, state = layer(stretch, state)
        found.append(out)
    return found[0] if len(found) == 1 else torch.cat(found, 1), state


def halved(width: int) -> str:
    return f"width {width} cannot be halved between two directions; use {width - 1} or {width + 1}"


# --- Convolution -----------------------------------------------------------------------------------------------------


class ConvCache(LayerCache):
    """The last inputs of a convolution."""

    def __init__(self, rows: int, tokens: int, width: int, like: Tensor) -> None:
        self.past = like.new_zeros(rows, tokens, width)

    def reset(self, rows: Tensor) -> None:
        self.past.masked_fill_(rows[:, None, None], 0.0)


class GatedConvolution(SequenceMixer):
    """Dauphin et al. (1612.08083): a convolution over `size` tokens, half of whose outputs are gates of the others.

    A causal one reads a token with those before it, another one as many on each side. What is padding or another text
    counts as zeros, as beyond the row's ends.
    """

    def __init__(self, width: int, size: int = 3, causal: bool = False) -> None:
        super().__init__()
        if size % 2 == 0 and not causal:
            raise ValueError(f"a convolution over {size} tokens has no middle; use {size - 1} or {size + 1}")
        self.width, self.outputs, self.causal = width, width, causal
        self.before, self.behind = (size - 1, 0) if causal else (size // 2, size // 2)
        self.into = nn.Linear(size * width, 2 * width)

    def read(self, x: Tensor, mask: Mask) -> Tensor:
        return F.glu(self.into(neighbours(x, mask, self.before, self.behind)), -1)

    def go_on(self, x: Tensor, real: Tensor | None, memory: ConvCache) -> Tensor:
        lay = None if real is None else by_rows(real)
        rows = torch.cat([memory.past.to(x.dtype), x if lay is None else lay.taken(x)], 1)
        near = torch.cat([rows[:, i : i + x.size(1)] for i in range(self.before + 1)], -1)
        if real is None:
            memory.past.copy_(rows[:, x.size(1) :])
        else:
            places = real.sum(1)[:, None] + torch.arange(self.before, device=x.device)
            memory.past.copy_(rows.gather(1, places[..., None].expand(-1, -1, x.size(2))))
        out = F.glu(self.into(near), -1)
        return out if lay is None else lay.returned(out)

    def layer_cache(self, book: Any, rows: int) -> ConvCache:
        return ConvCache(rows, self.before, self.width, self.into.weight)


# --- Every text in a row of its own ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class UnpackedTexts:
    """Texts as a recurrence reads them: each from the beginning of a row, padding behind it."""

    source: Tensor  # (texts, longest): which of the batch's tokens, counted through, stands there
    place: Tensor  # (batch, tokens): where among those each token of the batch went
    lengths: Tensor  # (texts,)

    def taken(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1).index_select(0, self.source.flatten())
        return rows.view(*self.source.shape, -1)  # (texts, longest, width)

    def returned(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1).index_select(0, self.place.flatten())
        return rows.view(*self.place.shape, -1)  # (batch, tokens, width)

    def backwards(self) -> "UnpackedTexts":
        """The same texts, each from its end to its beginning."""
        longest = self.source.size(1)
        steps = torch.arange(longest, device=self.source.device)
        turned = torch.where(steps < self.lengths[:, None], self.lengths[:, None] - 1 - steps, steps)  # its own inverse
        texts = torch.arange(len(turned), device=turned.device)[:, None] * longest
        return UnpackedTexts(self.source.gather(1, turned), (turned + texts).flatten()[self.place], self.lengths)


def laid_out(mask: Mask) -> UnpackedTexts | None:
    """None where every row is one whole text already."""
    if mask.segments is not None:
        return by_texts(mask.segments, mask.key_valid)
    return None if mask.key_valid is None else by_rows(mask.key_valid)


def by_rows(real: Tensor) -> UnpackedTexts:
    """A text for each row: its real tokens together, whatever is between them. No look at the device."""
    order = (~real).long().argsort(dim=1, stable=True)
    rows = torch.arange(len(real), device=real.device)[:, None] * real.size(1)
    return UnpackedTexts(order + rows, order.argsort(1) + rows, real.sum(1))


def by_texts(segments: Tensor, real: Tensor | None) -> UnpackedTexts:
    """A text for each segment of each row; their number and length are asked of the device."""
    if real is not None:
        segments = segments.masked_fill(~real, int(segments.min()) - 1)
    low, high = int(segments.min()), int(segments.max())
    rows = torch.arange(len(segments), device=segments.device)[:, None] * (high - low + 1)
    order, found = (segments - low + rows).flatten().sort(stable=True)
    _, text, lengths = torch.unique_consecutive(order, return_inverse=True, return_counts=True)
    longest = int(lengths.max())
    within = torch.arange(len(text), device=text.device) - (lengths.cumsum(0) - lengths)[text]
    there = text * longest + within  # of the tokens in that order
    source = found.new_zeros(len(lengths) * longest).scatter(0, there, found)
    place = torch.empty_like(found).scatter(0, found, there)
    return UnpackedTexts(source.view(-1, longest), place.view_as(segments), lengths)


# --- Alone, for measuring --------------------------------------------------------------------------------------------


class StandaloneMixer(nn.Module):
    """A recurrence or a convolution outside any layer: (x, mask) -> (batch, tokens, width)."""

    def __init__(self, mixer: SequenceMixer) -> None:
        super().__init__()
        self.mixer = mixer

    def forward(self, x: Tensor, mask: Mask = Mask()) -> Tensor:
        return self.mixer.read(x, mask.memoized())


def recurrent(width: int, cell: Cell = "lstm", both: bool = True) -> StandaloneMixer:
    return StandaloneMixer(Recurrence(width, cell, both))


def convolved(width: int, size: int = 3, causal: bool = False) -> StandaloneMixer:
    return StandaloneMixer(GatedConvolution(width, size, causal))
