"""The words of a mask, read out naively: what every kernel is held to."""

from itertools import product

import torch
from torch import Tensor

from regard.parts import Mask
from regard.parts.masks import FAR

from .checks import ragged

SIZES = [(1, 1), (5, 5), (7, 11), (11, 7)]  # queries and keys


def sees(mask: Mask, row: int, i: int, j: int) -> bool:
    """The glossary of a mask's words, read out one pair at a time. A tensor of one row serves all rows."""

    def pick(tensor: Tensor | None, place: int) -> int:
        return place if tensor is None else int(tensor[min(row, len(tensor) - 1), place])

    at, key_at = pick(mask.at, i), pick(mask.at if mask.keys_at is None else mask.keys_at, j)
    marked = [] if mask.globals is None else mask.globals[row].tolist()
    far = mask.reach is not None and abs(at - key_at) > mask.reach and i not in marked and j not in marked
    segments = mask.segments if mask.keys_segments is None else mask.keys_segments
    return not (
        (mask.causal and key_at > at)
        or (mask.others and key_at == at)
        or far
        or (mask.keys is not None and not mask.keys[row, j])
        or (mask.segments is not None and mask.segments[row, i] != segments[row, j])
        or (mask.kin is not None and not mask.kin[row, i, j])
    )


def seen_by_pairs(mask: Mask, queries: int, keys: int, rows: int = 2) -> Tensor:
    places = product(range(rows), range(queries), range(keys))
    return torch.tensor([sees(mask, *place) for place in places]).view(rows, 1, queries, keys)


def masks(queries: int, keys: int) -> dict[str, Mask]:
    """Every word of a mask, alone and in company, for two rows."""
    square = queries == keys
    words = {
        "nothing": Mask(),
        "causal": Mask(causal=True),
        "others": Mask(others=True),
        "reach": Mask(reach=2),
        "keys": Mask(keys=ragged([keys, max(keys // 2, 1)])),
        "no keys": Mask(keys=ragged([keys, 0], keys)),
        "keys_at": Mask(causal=True, at=torch.randint(9, (2, queries)), keys_at=torch.randint(9, (2, keys))),
        "far": Mask(causal=True, at=torch.randint(9, (1, queries)), keys_at=torch.tensor([[FAR] * keys])),
        "both segments": Mask(segments=torch.randint(2, (2, queries)), keys_segments=torch.randint(2, (2, keys))),
        "kin": Mask(kin=torch.rand(2, queries, keys) > 0.4),
    }
    if square:
        words |= {
            "segments": Mask(causal=True, segments=torch.randint(2, (2, keys)).sort(1).values),
            "at": Mask(causal=True, at=torch.stack([torch.arange(keys), torch.arange(keys).flip(0)])),
            "globals": Mask(reach=1, globals=torch.tensor([[0, keys - 1], [keys // 2, -1]])),
            "all": Mask(True, True, 3, keys=ragged([keys, max(keys - 1, 1)]), segments=torch.randint(2, (2, keys))),
        }
    return words
