"""A naive reference for the rules of a mask, which all kernels must match."""

from itertools import product

import torch
from torch import Tensor

from regard.parts import Mask
from regard.parts.masks import ABSENT

from .checks import ragged

SIZES = [(1, 1), (5, 5), (7, 11), (11, 7)]  # queries and keys


def sees(mask: Mask, row: int, i: int, j: int) -> bool:
    """True if query `i` may attend to key `j`. A tensor with a single row serves all rows."""

    def pick(tensor: Tensor | None, place: int) -> int:
        return place if tensor is None else int(tensor[min(row, len(tensor) - 1), place])

    at, key_at = pick(mask.positions, i), pick(mask.positions if mask.key_positions is None else mask.key_positions, j)
    marked = [] if mask.global_positions is None else mask.global_positions[row].tolist()
    far = mask.window is not None and abs(at - key_at) > mask.window and i not in marked and j not in marked
    segments = mask.segments if mask.key_segments is None else mask.key_segments
    return not (
        (mask.causal and key_at > at)
        or (mask.exclude_self and key_at == at)
        or far
        or (mask.key_valid is not None and not mask.key_valid[row, j])
        or (mask.segments is not None and mask.segments[row, i] != segments[row, j])
        or (mask.beam_ancestry is not None and not mask.beam_ancestry[row, i, j])
    )


def seen_by_pairs(mask: Mask, queries: int, keys: int, rows: int = 2) -> Tensor:
    places = product(range(rows), range(queries), range(keys))
    return torch.tensor([sees(mask, *place) for place in places]).view(rows, 1, queries, keys)


def masks(queries: int, keys: int) -> dict[str, Mask]:
    """Every field of a mask, alone and combined, for two rows."""
    square = queries == keys
    words = {
        "nothing": Mask(),
        "causal": Mask(causal=True),
        "exclude_self": Mask(exclude_self=True),
        "window": Mask(window=2),
        "keys": Mask(key_valid=ragged([keys, max(keys // 2, 1)])),
        "no keys": Mask(key_valid=ragged([keys, 0], keys)),
        "key_positions": Mask(
            causal=True, positions=torch.randint(9, (2, queries)), key_positions=torch.randint(9, (2, keys))
        ),
        "far": Mask(
            causal=True, positions=torch.randint(9, (1, queries)), key_positions=torch.tensor([[ABSENT] * keys])
        ),
        "both segments": Mask(segments=torch.randint(2, (2, queries)), key_segments=torch.randint(2, (2, keys))),
        "beam_ancestry": Mask(beam_ancestry=torch.rand(2, queries, keys) > 0.4),
    }
    if square:
        words |= {
            "segments": Mask(causal=True, segments=torch.randint(2, (2, keys)).sort(1).values),
            "at": Mask(causal=True, positions=torch.stack([torch.arange(keys), torch.arange(keys).flip(0)])),
            "globals": Mask(window=1, global_positions=torch.tensor([[0, keys - 1], [keys // 2, -1]])),
            "all": Mask(
                True, True, 3, key_valid=ragged([keys, max(keys - 1, 1)]), segments=torch.randint(2, (2, keys))
            ),
        }
    return words
