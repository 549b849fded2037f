"""Fertilities of source tokens: copies of a source, and the likeliest fertilities for a target of known length."""

import torch
from torch import Tensor
from torch.nn import functional as F


def copy_tokens(tokens: Tensor, fertilities: Tensor, width: int | None = None) -> tuple[Tensor, Tensor]:
    """Repeat each of tokens (rows, source) by its fertility. Returns copies and their valid mask, both (rows, copies).

    `width` is the number of columns; None: as many as are needed, for which a GPU is waited for.
    """
    ends = fertilities.cumsum(1)
    totals = ends[:, -1:]
    width = int(totals.max()) if width is None else width
    places = torch.arange(width, device=tokens.device).expand(len(tokens), -1)
    index = torch.searchsorted(ends, places.contiguous(), right=True).clamp(max=tokens.size(1) - 1)
    return tokens.gather(1, index), places < totals


def even_fertilities(lengths: Tensor, sizes: Tensor, width: int) -> Tensor:
    """(rows, width): the first `sizes` (rows,) tokens spread evenly over targets of these lengths (rows,)."""
    places = torch.arange(1, width + 1, device=lengths.device)
    sizes = sizes.clamp(min=1)[:, None]
    ends = ((places * lengths[:, None] + sizes - 1) // sizes).clamp(max=lengths[:, None])
    return ends - F.pad(ends[:, :-1], (1, 0))


def best_fertilities(logprobs: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The likeliest fertilities (rows, source) that add up to the lengths (rows,), and their log-probability (rows,).

    `logprobs` (rows, source, classes) is 0 for fertility 0 of padding and minus infinity for all others. If a target is
    longer than the classes allow, the first token takes the rest.
    """
    rows, size, classes = logprobs.shape
    room = ((logprobs > -torch.inf).sum(2) - 1).sum(1)
    reachable = torch.minimum(lengths, room)
    longest = int(reachable.max()) if rows else 0
    best = logprobs.new_full((rows, longest + 1), -torch.inf)  # of the tokens so far, by their sum
    best[:, 0] = 0.0
    choices = []
    for token in range(size):
        before = F.pad(best, (classes - 1, 0), value=-torch.inf).unfold(1, classes, 1).flip(2)  # [:, sum, fertility]
        best, choice = (before + logprobs[:, token, None]).max(2)
        choices.append(choice)
    left, fertilities = reachable.clone(), torch.zeros(rows, size, dtype=torch.long, device=logprobs.device)
    for token in reversed(range(size)):
        fertilities[:, token] = choices[token].gather(1, left[:, None])[:, 0]
        left -= fertilities[:, token]
    fertilities[:, 0] += lengths - reachable
    return fertilities, best.gather(1, reachable[:, None])[:, 0]
