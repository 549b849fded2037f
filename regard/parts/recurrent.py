"""Recurrence and gated convolution, which take the place of self-attention in a layer.

They implement `SequenceMixer` like `Attention`. Between calls a recurrence stores its state and a convolution its last
inputs. So the cache handles beams, ragged rows and rows that come and go as it does for attention.
"""

import warnings
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from .cache.base import CacheLayout, LayerCache
from .feed import gather_neighbors
from .masks import Mask
from .mixer import SequenceMixer
from .positions import PositionTerms

Cell = Literal["lstm", "gru", "rnn"]
HiddenState = Tensor | tuple[Tensor, ...]  # as torch has it: h, or h and c of an LSTM
# torch keeps RNN weights contiguous in float32 and half precision only, and warns about it in bfloat16.
warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")

CELLS: dict[Cell, Any] = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
STEPS: dict[Cell, Any] = {"lstm": torch.lstm_cell, "gru": torch.gru_cell, "rnn": torch.rnn_tanh_cell}
MAX_TOKENS = 32768  # tokens per call of torch's fused RNNs: cuDNN refuses 65,536

SEQUENTIAL = ("causal", "positions", "key_valid", "segments")  # fields of a mask that a reading in order honors


class StatefulMixer(SequenceMixer):
    """A mixer with a fixed-size state. It has the signature of attention and reads only the query."""

    outputs: int  # width of the output

    def forward(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        mask: Mask,
        position_terms: PositionTerms | None = None,
        layer_cache: LayerCache | None = None,
    ) -> Tensor:
        mask.require(type(self).__name__, SEQUENTIAL if self.causal else SEQUENTIAL[1:])
        if layer_cache is None:
            return self.read_all(query, mask)
        if layer_cache.beams:  # (rows, beams): each beam has its own state, as each row has otherwise
            out = self.read_next(query.flatten(0, 1)[:, None], None, layer_cache)
            return out.view(*query.shape[:2], -1)
        return self.read_next(query, mask.key_valid, layer_cache)

    def read_all(self, x: Tensor, mask: Mask) -> Tensor:
        """Read complete texts, (batch, tokens, width)."""
        raise NotImplementedError

    def read_next(self, x: Tensor, valid: Tensor | None, layer_cache: Any) -> Tensor:
        """Read the next tokens of every row, (rows, tokens, width); `valid` is False for padding."""
        raise NotImplementedError


# --- Recurrence ------------------------------------------------------------------------------------------------------


class RecurrentState(LayerCache):
    """The hidden state `h` of a recurrence; an LSTM also has a cell state `c`."""

    policy, tokens = "state", None  # its name in evaluation; a state has no maximal number of tokens

    def __init__(self, rows: int, width: int, cell: Cell, like: Tensor) -> None:
        self.h = like.new_zeros(rows, width)
        self.c = like.new_zeros(rows, width) if cell == "lstm" else None

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.h,) if self.c is None else (self.h, self.c)

    def update(self, new: tuple[Tensor, ...]) -> None:
        """Store new states: in place without gradients (CUDA graphs need it), else as new tensors (backward does)."""
        for name, tensor in zip("hc", new, strict=False):
            if torch.is_grad_enabled():
                setattr(self, name, tensor.detach().to(getattr(self, name).dtype))
            else:
                getattr(self, name).copy_(tensor)

    def reset(self, rows: Tensor) -> None:
        for tensor in self.tensors():
            tensor.masked_fill_(rows[:, None], 0.0)


class Recurrence(StatefulMixer):
    """An LSTM, a GRU or a plain RNN over every text, by torch's fused kernels.

    `bidirectional`: one in each direction, with half of the width each.
    """

    def __init__(self, width: int, cell: Cell = "lstm", bidirectional: bool = False) -> None:
        super().__init__()
        if bidirectional and width % 2:
            raise ValueError(odd_width_message(width))
        self.cell, self.width, self.causal = cell, width // 2 if bidirectional else width, not bidirectional
        self.outputs = width
        self.forth = CELLS[cell](width, self.width, batch_first=True)
        self.back = CELLS[cell](width, self.width, batch_first=True) if bidirectional else None

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def read_all(self, x: Tensor, mask: Mask) -> Tensor:
        texts = mask.cached("unpacked", lambda: unpack(mask))
        if texts is None:
            forth = run_outputs(self.forth, x)
            return forth if self.back is None else torch.cat([forth, run_outputs(self.back, x.flip(1)).flip(1)], -1)
        forth = texts.scatter_back(run_outputs(self.forth, texts.gather(x)))
        if self.back is None:
            return forth
        texts = mask.cached("unpacked reversed", texts.reversed)
        return torch.cat([forth, texts.scatter_back(run_outputs(self.back, texts.gather(x)))], -1)

    def read_next(self, x: Tensor, valid: Tensor | None, layer_cache: RecurrentState) -> Tensor:
        return self._read_one(x, valid, layer_cache) if x.size(1) == 1 else self._read_several(x, valid, layer_cache)

    def _read_one(self, x: Tensor, valid: Tensor | None, layer_cache: RecurrentState) -> Tensor:
        """Read one token per row with a few small kernels, which compile and fit into a CUDA graph."""
        layer, old = self.forth, layer_cache.tensors()
        weights = layer.weight_ih_l0, layer.weight_hh_l0, layer.bias_ih_l0, layer.bias_hh_l0
        new = self._split_state(STEPS[self.cell](x[:, 0], self._join_state(old), *weights))
        out = new[0][:, None]
        if valid is not None:
            new = tuple(torch.where(valid, after, before) for after, before in zip(new, old, strict=True))
        layer_cache.update(new)
        return out

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _read_several(self, x: Tensor, valid: Tensor | None, layer_cache: RecurrentState) -> Tensor:
        """Read several tokens. Ragged rows are packed: only so torch returns the state after each row's last token."""
        old = tuple(tensor[None] for tensor in layer_cache.tensors())
        if valid is None:
            out, last = run_in_chunks(self.forth, x, self._join_state(old))
            layer_cache.update(tuple(tensor[0] for tensor in self._split_state(last)))
            return out
        texts, nonempty = unpack_rows(valid), valid.any(1, keepdim=True)  # a row may be all padding
        lengths = texts.lengths.clamp(min=1).cpu()
        rows = pack_padded_sequence(texts.gather(x), lengths, batch_first=True, enforce_sorted=False)
        packed, last = self.forth(rows, self._join_state(old))
        pairs = zip(self._split_state(last), old, strict=True)
        layer_cache.update(tuple(torch.where(nonempty, after[0], before[0]) for after, before in pairs))
        return texts.scatter_back(pad_packed_sequence(packed, batch_first=True, total_length=x.size(1))[0])

    def _join_state(self, tensors: tuple[Tensor, ...]) -> HiddenState:
        """The state in torch's form: a pair for an LSTM, else one tensor."""
        return tensors if self.cell == "lstm" else tensors[0]

    def _split_state(self, state: HiddenState) -> tuple[Tensor, ...]:
        return state if isinstance(state, tuple) else (state,)

    def layer_cache(self, layout: CacheLayout, rows: int) -> RecurrentState:
        return RecurrentState(rows, self.width, self.cell, self.forth.weight_hh_l0)


def run_outputs(layer: nn.Module, x: Tensor) -> Tensor:
    """The outputs of a recurrent layer, without its last state."""
    return run_in_chunks(layer, x)[0]


def run_in_chunks(layer: nn.Module, x: Tensor, state: HiddenState | None = None) -> tuple[Tensor, HiddenState]:
    """Run an RNN over chunks of at most `MAX_TOKENS`; each chunk starts from the state after the one before."""
    outputs = []
    for chunk in torch.split(x, MAX_TOKENS, 1):
        out, state = layer(chunk, state)
        outputs.append(out)
    assert state is not None
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1), state


def odd_width_message(width: int) -> str:
    """The message for an odd width."""
    return f"width {width} cannot be halved between two directions; use {width - 1} or {width + 1}"


# --- Convolution -----------------------------------------------------------------------------------------------------


class ConvCache(LayerCache):
    """The last inputs of a convolution."""

    def __init__(self, rows: int, tokens: int, width: int, like: Tensor) -> None:
        self.past = like.new_zeros(rows, tokens, width)

    def reset(self, rows: Tensor) -> None:
        self.past.masked_fill_(rows[:, None, None], 0.0)


class GatedConvolution(StatefulMixer):
    """Dauphin et al. (1612.08083): a convolution over `size` tokens; half of its outputs gate the other half.

    A causal one reads each token with those before it, otherwise with as many on each side. Padding and tokens of other
    texts count as zeros, like positions beyond the row's ends.
    """

    def __init__(self, width: int, size: int = 3, causal: bool = False) -> None:
        super().__init__()
        if size % 2 == 0 and not causal:
            raise ValueError(f"a convolution over {size} tokens has no middle; use {size - 1} or {size + 1}")
        self.width, self.outputs, self.causal = width, width, causal
        self.before, self.behind = (size - 1, 0) if causal else (size // 2, size // 2)
        self.into = nn.Linear(size * width, 2 * width)

    def read_all(self, x: Tensor, mask: Mask) -> Tensor:
        return F.glu(self.into(gather_neighbors(x, mask, self.before, self.behind)), -1)

    def read_next(self, x: Tensor, valid: Tensor | None, layer_cache: ConvCache) -> Tensor:
        texts = None if valid is None else unpack_rows(valid)
        rows = torch.cat([layer_cache.past.to(x.dtype), x if texts is None else texts.gather(x)], 1)
        near = torch.cat([rows[:, i : i + x.size(1)] for i in range(self.before + 1)], -1)
        if valid is None:
            layer_cache.past.copy_(rows[:, x.size(1) :])
        else:
            index = valid.sum(1)[:, None] + torch.arange(self.before, device=x.device)
            layer_cache.past.copy_(rows.gather(1, index[..., None].expand(-1, -1, x.size(2))))
        out = F.glu(self.into(near), -1)
        return out if texts is None else texts.scatter_back(out)

    def layer_cache(self, layout: CacheLayout, rows: int) -> ConvCache:
        return ConvCache(rows, self.before, self.width, self.into.weight)


# --- One text per row ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class UnpackedTexts:
    """Moves the packed texts of a batch into separate rows, each at the start of its row with padding after it."""

    source: Tensor  # (texts, longest): index of each token in the flattened batch
    inverse: Tensor  # (batch, tokens): index of each token of the batch in the flattened texts
    lengths: Tensor  # (texts,)

    def gather(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1).index_select(0, self.source.flatten())
        return rows.view(*self.source.shape, -1)  # (texts, longest, width)

    def scatter_back(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1).index_select(0, self.inverse.flatten())
        return rows.view(*self.inverse.shape, -1)  # (batch, tokens, width)

    def reversed(self) -> "UnpackedTexts":
        """The same texts, each in reverse order."""
        longest = self.source.size(1)
        steps = torch.arange(longest, device=self.source.device)
        order = torch.where(steps < self.lengths[:, None], self.lengths[:, None] - 1 - steps, steps)  # its own inverse
        texts = torch.arange(len(order), device=order.device)[:, None] * longest
        return UnpackedTexts(self.source.gather(1, order), (order + texts).flatten()[self.inverse], self.lengths)


def unpack(mask: Mask) -> UnpackedTexts | None:
    """One row per text; None if every row already is one text without padding."""
    if mask.segments is not None:
        return unpack_segments(mask.segments, mask.key_valid)
    return None if mask.key_valid is None else unpack_rows(mask.key_valid)


def unpack_rows(valid: Tensor) -> UnpackedTexts:
    """One text per row: its valid tokens, without the padding between them. Does not wait for the device."""
    order = (~valid).long().argsort(dim=1, stable=True)
    rows = torch.arange(len(valid), device=valid.device)[:, None] * valid.size(1)
    return UnpackedTexts(order + rows, order.argsort(1) + rows, valid.sum(1))


def unpack_segments(segments: Tensor, valid: Tensor | None) -> UnpackedTexts:
    """One text per segment of each row. It waits for the device to get their number and lengths."""
    if valid is not None:
        segments = segments.masked_fill(~valid, int(segments.min()) - 1)
    low, high = int(segments.min()), int(segments.max())
    rows = torch.arange(len(segments), device=segments.device)[:, None] * (high - low + 1)
    order, index = (segments - low + rows).flatten().sort(stable=True)
    _, text, lengths = torch.unique_consecutive(order, return_inverse=True, return_counts=True)
    longest = int(lengths.max())
    within = torch.arange(len(text), device=text.device) - (lengths.cumsum(0) - lengths)[text]
    target = text * longest + within  # of the sorted tokens
    source = index.new_zeros(len(lengths) * longest).scatter(0, target, index)
    inverse = torch.empty_like(index).scatter(0, index, target)
    return UnpackedTexts(source.view(-1, longest), inverse.view_as(segments), lengths)


# --- Standalone, for benchmarks --------------------------------------------------------------------------------------


class StandaloneMixer(nn.Module):
    """A recurrence or a convolution outside any layer: (x, mask) -> (batch, tokens, width)."""

    def __init__(self, mixer: StatefulMixer) -> None:
        super().__init__()
        self.mixer: StatefulMixer = mixer

    def forward(self, x: Tensor, mask: Mask = Mask()) -> Tensor:
        return self.mixer.read_all(x, mask.memoized())


def standalone_recurrence(width: int, cell: Cell = "lstm", bidirectional: bool = True) -> StandaloneMixer:
    """A recurrence outside a stack."""
    return StandaloneMixer(Recurrence(width, cell, bidirectional))


def standalone_convolution(width: int, size: int = 3, causal: bool = False) -> StandaloneMixer:
    """A convolution outside a stack."""
    return StandaloneMixer(GatedConvolution(width, size, causal))
