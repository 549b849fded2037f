"""From encoded examples to tensors: padded rows, and pairs padded or packed."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from ..processors.tokenizers import Tokenizer

IGNORED = -1  # the label of positions that are not scored

Ids = np.ndarray  # the token ids of one text, int32


# --- rows ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TokenRows:
    """A batch of rows of tokens."""

    tokens: Tensor  # (batch, tokens)
    valid: Tensor  # (batch, tokens): False on padding
    labels: Tensor | None = None  # (batch,) of texts; (batch, tokens) of words, IGNORED where nothing is scored
    token_types: Tensor | None = None  # (batch, tokens): 1 in the second text of a pair
    next_sentence: Tensor | None = None  # (batch,): 0 if the second text of a pair follows the first, else 1

    def to(self, device: torch.device | str) -> "TokenRows":
        tensors = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: tensor.to(device) for name, tensor in tensors.items() if tensor is not None})


def pad_rows(rows: Sequence[Ids], padding: int) -> Tensor:
    """Rows of different lengths as one table."""
    lengths = np.array([len(row) for row in rows])
    zeros = np.zeros(len(rows), int)
    layout = RowLayout(lengths, np.arange(len(rows)), zeros, zeros)
    return layout.scatter(np.concatenate(rows).astype(np.int64), padding)


def valid_mask(rows: Sequence[Ids]) -> Tensor:
    lengths = torch.tensor([len(row) for row in rows])
    return torch.arange(int(lengths.max()))[None] < lengths[:, None]


# --- pairs -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PairBatch:
    """Sources with END, and shifted targets: START y is the decoder input, y END is predicted.

    The valid masks are False on padding.
    """

    source: Tensor  # (batch, source_tokens)
    source_valid: Tensor
    target_in: Tensor  # (batch, target_tokens)
    target_out: Tensor
    target_valid: Tensor
    target_index: Tensor | None = None  # padded only: the indices of valid target tokens in the flattened table
    source_segments: Tensor | None = None  # packed only: the example in the row that each token is of, -1 on padding
    target_segments: Tensor | None = None
    source_positions: Tensor | None = None  # packed only: the position of each token in its example
    target_positions: Tensor | None = None

    def to(self, device: torch.device | str) -> "PairBatch":
        tensors = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: tensor.to(device) for name, tensor in tensors.items() if tensor is not None})


def collate_pairs(
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    source: Tokenizer,
    target: Tokenizer,
    width: int = 0,
) -> PairBatch:
    """A batch of token ids without END: one example per row, or packed into rows of `width` tokens."""
    ended = [np.asarray([*text, source.end]) for text in sources]
    return collate_encoded(ended, [np.asarray([*text, target.end]) for text in targets], source, target, width)


def collate_encoded(
    sources: list[Ids], targets: list[Ids], source: Tokenizer, target: Tokenizer, width: int, min_rows: int = 0
) -> PairBatch:
    """A batch of token ids with END. Packed tables are `width` wide and have at least `min_rows` rows: shapes that
    do not change are compiled once."""
    lengths = np.array([[len(x), len(y)] for x, y in zip(sources, targets, strict=True)])
    rows, starts, segments = pack(lengths, width) if width else one_per_row(len(lengths))
    source_layout = RowLayout(lengths[:, 0], rows, starts[:, 0], segments, (min_rows, width))
    target_layout = RowLayout(lengths[:, 1], rows, starts[:, 1], segments, (min_rows, width))
    ended = np.concatenate(targets)
    shifted = np.roll(ended, 1)
    shifted[target_layout.positions == 0] = target.start  # np.roll left the END of the previous text there
    packed = [table for layout in (source_layout, target_layout) for table in layout.tables()] if width else []
    flat = None if width else torch.from_numpy(np.ravel_multi_index(target_layout.index, target_layout.shape))
    return PairBatch(
        source_layout.scatter(np.concatenate(sources), source.pad),
        source_layout.scatter(np.ones(len(source_layout.positions), bool), False),
        target_layout.scatter(shifted, target.pad),
        target_layout.scatter(ended, target.pad),
        target_layout.scatter(np.ones(len(target_layout.positions), bool), False),
        flat,
        *packed[::2],
        *packed[1::2],
    )


class RowLayout:
    """Maps the tokens of concatenated texts to (row, column) of a table."""

    def __init__(
        self,
        lengths: np.ndarray,
        rows: np.ndarray,
        starts: np.ndarray,
        segments: np.ndarray,
        min_shape: tuple[int, int] = (0, 0),
    ) -> None:
        self.positions = np.arange(lengths.sum()) - np.repeat(lengths.cumsum() - lengths, lengths)
        self.segments = np.repeat(segments, lengths)
        self.index = np.repeat(rows, lengths), np.repeat(starts, lengths) + self.positions
        self.shape = max(int(rows.max()) + 1, min_shape[0]), max(int((starts + lengths).max()), min_shape[1])

    def scatter(self, values: np.ndarray, padding: int) -> Tensor:
        table = np.full(self.shape, padding, bool if values.dtype == bool else np.int64)
        table[self.index] = values
        return torch.from_numpy(table)

    def tables(self) -> tuple[Tensor, Tensor]:
        """Segments, and positions in them."""
        return self.scatter(self.segments, -1), self.scatter(self.positions, 0)


def one_per_row(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The layout of `pack` for one example per row."""
    return np.arange(count), np.zeros((count, 2), int), np.zeros(count, int)


def pack(lengths: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First-fit decreasing. Returns the row of each example, its start there on each side, and its segment."""
    count = len(lengths)
    rows, starts, segments = one_per_row(count)
    used = np.zeros((count, 2), int)  # tokens in each row, per side
    held = np.zeros(count, int)  # examples in each row
    begun = 0  # rows in use; the next one is empty
    for i in np.argsort(-lengths.max(1), kind="stable"):
        rows[i] = row = int((used[: begun + 1] + lengths[i] <= width).all(1).argmax())
        starts[i], segments[i] = used[row], held[row]
        used[row] += lengths[i]
        held[row] += 1
        begun = max(begun, row + 1)
    return rows, starts, segments
