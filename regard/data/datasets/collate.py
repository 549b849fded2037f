"""From encoded examples to batches: padded rows, and pairs padded or packed."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from ...parts.inputs import Inputs
from ...processors.base import IGNORED as IGNORED
from ...processors.text.tokenizers import Tokenizer
from ..batch import Batch

Ids: TypeAlias = np.ndarray  # the token ids of one text, int32


# --- rows ------------------------------------------------------------------------------------------------------------


def pad_tokens(rows: Sequence[Ids], padding: int, token_types: Sequence[Ids] | None = None) -> Inputs:
    """Rows of tokens of different lengths as one field."""
    types = None if token_types is None else pad_rows(token_types, 0)
    return Inputs("tokens", pad_rows(rows, padding), valid_mask(rows), token_types=types)


def pad_labels(rows: Sequence[Ids]) -> Inputs:
    """The label of every token, IGNORED where nothing is scored."""
    return Inputs("labels", pad_rows(rows, IGNORED))


def pad_rows(rows: Sequence[np.ndarray], padding: int) -> Tensor:
    """Rows of different lengths as one table. Integers become int64; other types stay."""
    lengths = np.array([len(row) for row in rows])
    zeros = np.zeros(len(rows), int)
    layout = RowLayout(lengths, np.arange(len(rows)), zeros, zeros)
    return layout.scatter(np.concatenate(rows), padding)


def valid_mask(rows: Sequence[np.ndarray]) -> Tensor:
    """True at the positions of tokens, False at padding."""
    lengths = torch.tensor([len(row) for row in rows])
    return torch.arange(int(lengths.max()))[None] < lengths[:, None]


# --- pairs -----------------------------------------------------------------------------------------------------------


def collate_pairs(
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    source: Tokenizer,
    target: Tokenizer,
    width: int = 0,
) -> Batch:
    """A batch of token ids without END: one example per row, or packed into rows of `width` tokens."""
    ended = [np.asarray([*text, source.end]) for text in sources]
    return collate_encoded(ended, [np.asarray([*text, target.end]) for text in targets], source, target, width)


def collate_encoded(
    sources: Sequence[Ids], targets: Sequence[Ids], source: Tokenizer, target: Tokenizer, width: int, min_rows: int = 0
) -> Batch:
    """A batch of token ids with END: `source`, `target` (START y, the decoder input) and `labels` (y END, predicted).

    For padded rows, `labels` has only the valid tokens and their indices in the flattened table, so that padding gets
    no logits. Packed tables are `width` wide and have at least `min_rows` rows: constant shapes are compiled once. A
    field has a valid mask only where attention needs it. A causal target needs none, because its padding comes last.
    Packed rows need none, because padding has its own segment.
    """
    lengths = np.array([[len(x), len(y)] for x, y in zip(sources, targets, strict=True)])
    rows, starts, segments = pack(lengths, width) if width else one_per_row(len(lengths))
    source_layout = RowLayout(lengths[:, 0], rows, starts[:, 0], segments, (min_rows, width))
    target_layout = RowLayout(lengths[:, 1], rows, starts[:, 1], segments, (min_rows, width))
    source_inputs = source_layout.tokens(np.concatenate(sources), source.pad, packed=bool(width))
    return Batch(
        {"source": source_inputs, **_target_inputs(targets, target_layout, target, bool(width))},
        int(lengths[:, 1].sum()),
    )


def prompted_targets(prompts: Sequence[Ids], targets: Sequence[Ids], padding: int) -> dict[str, Inputs]:
    """The fields `target` and `labels` of token ids with END, after prompts, which end in START and get no loss."""
    rows = [np.concatenate([prompt, ids[:-1]]) for prompt, ids in zip(prompts, targets, strict=True)]
    table = pad_rows(rows, padding)
    places = [
        row * table.size(1) + len(prompt) - 1 + np.arange(len(ids))
        for row, (prompt, ids) in enumerate(zip(prompts, targets, strict=True))
    ]
    labels = torch.from_numpy(np.concatenate(targets).astype(np.int64))
    flat = torch.from_numpy(np.concatenate(places).astype(np.int64))
    return {"target": Inputs("tokens", table), "labels": Inputs("tokens", labels, positions=flat)}


def _target_inputs(
    targets: Sequence[Ids], layout: "RowLayout", tokenizer: Tokenizer, packed: bool
) -> dict[str, Inputs]:
    ended = np.concatenate(targets)
    shifted = np.roll(ended, 1)
    shifted[layout.positions == 0] = tokenizer.start  # np.roll left the END of the previous text there
    if packed:
        labels = Inputs("tokens", layout.scatter(ended, tokenizer.pad), layout.valid())
    else:
        flat = np.ravel_multi_index(layout.index, layout.shape)
        labels = Inputs("tokens", torch.from_numpy(ended.astype(np.int64)), positions=torch.from_numpy(flat))
    return {"target": layout.tokens(shifted, tokenizer.pad, packed, causal=True), "labels": labels}


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
        """The values in their places. Integers become int64; other types stay."""
        integers = np.issubdtype(values.dtype, np.integer)
        table = np.full((*self.shape, *values.shape[1:]), padding, np.int64 if integers else values.dtype)
        table[self.index] = values
        return torch.from_numpy(table)

    def valid(self) -> Tensor:
        return self.scatter(np.ones(len(self.positions), bool), False)

    def tokens(self, ids: Ids, padding: int, packed: bool, causal: bool = False) -> Inputs:
        """The concatenated texts as one field."""
        table = self.scatter(ids, padding)
        if packed:
            return Inputs("tokens", table, None, self.scatter(self.positions, 0), self.scatter(self.segments, -1))
        return Inputs("tokens", table, None if causal else self.valid())


def one_per_row(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The layout of `pack` for one example per row."""
    return np.arange(count), np.zeros((count, 2), int), np.zeros(count, int)


def pack(lengths: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First-fit decreasing. Returns the row of each example, its source and target starts in it, and its segment."""
    count = len(lengths)
    rows, starts, segments = one_per_row(count)
    used = np.zeros((count, 2), int)  # source and target tokens in each row
    held = np.zeros(count, int)  # examples in each row
    begun = 0  # rows in use; the next one is empty
    for i in np.argsort(-lengths.max(1), kind="stable"):
        rows[i] = row = int((used[: begun + 1] + lengths[i] <= width).all(1).argmax())
        starts[i], segments[i] = used[row], held[row]
        used[row] += lengths[i]
        held[row] += 1
        begun = max(begun, row + 1)
    return rows, starts, segments
