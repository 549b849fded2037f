"""How well a language model foresees texts that are known: token by token, or over a whole corpus."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import batched
from typing import Any

import torch
from torch import Tensor

from ..data.batches import sorted_batches
from ..data.corpus import Corpus, Window, evaluation
from ..decode import Ensemble
from ..decode.ensemble import mean
from ..parts import Cache, Mask

Model = Any  # a language model: decode, logits, recall, context
LOGITS = 2**27  # numbers at most in one tensor of logits, unless a single text has more
TOKENS = 2**14  # at once, at most


def states(model: Model, batch: Window, memory: Cache | None = None) -> Tensor:
    """The model's output for windows of known text: (batch, tokens, width)."""
    if memory is not None:
        memory.reset(batch.fresh)
        return model.decode(batch.tokens, memory.ahead(batch.tokens), memory)
    mask = Mask() if batch.segments is None else Mask(at=batch.at, segments=batch.segments)
    return model.decode(batch.tokens, mask)


def logits(model: Model, batch: Window, memory: Cache | None = None) -> Tensor:
    """(batch, tokens, vocab); of an ensemble, the mean."""
    if isinstance(model, Ensemble):
        return mean([logits(member, batch) for member in model.members])
    return model.logits(states(model, batch, memory))


def chosen(scores: Tensor, targets: Tensor) -> Tensor:
    """The log-probability of every target: (batch, tokens), from (batch, tokens, vocab)."""
    scores = scores.float()
    return scores.gather(-1, targets[..., None])[..., 0] - scores.logsumexp(-1)


# --- single texts --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Span:
    """So much of a text as is read at once: tokens[first:last], of which those from `new` on have not been scored."""

    text: int
    first: int
    new: int
    last: int


def spans(text: int, length: int, context: int | None) -> Iterator[Span]:
    """All of a text; one that is longer than the context in windows, each with half of the one before as its past."""
    first, new = 0, 0
    while new < length:
        last = length if context is None else min(first + context, length)
        yield Span(text, first, new, last)
        first, new = last - (context or 0) // 2, last


@torch.no_grad()
def logprobs(
    model: Model, given: list[list[int]], wanted: list[list[int]], context: int | None, vocab: int, device: torch.device
) -> list[list[float]]:
    """The log-probability of every wanted token behind what is given, which is one token at least."""
    texts = [[*before, *after] for before, after in zip(given, wanted, strict=True)]
    found: list[list[float]] = [[] for _ in texts]
    pieces = [span for i, text in enumerate(texts) for span in spans(i, len(text) - 1, context)]
    budget = min(max(LOGITS // vocab, 1), TOKENS)
    scored = [[0.0]] * len(pieces)
    for batch in sorted_batches([span.last - span.first for span in pieces], tokens=budget):
        rows = [(pieces[i], texts[pieces[i].text]) for i in batch]
        longest = max(span.last - span.first for span, _ in rows)
        known = torch.tensor(
            [text[span.first : span.last + 1] + [0] * (longest - span.last + span.first) for span, text in rows],
            device=device,
        )
        window = Window(known[:, :-1], known[:, 1:], torch.ones_like(known[:, 1:], dtype=torch.bool))
        values = chosen(logits(model, window), window.targets).tolist()
        for i, row, (span, _) in zip(batch, values, rows, strict=True):
            scored[i] = row[span.new - span.first : span.last - span.first]
    for span, values in zip(pieces, scored, strict=True):
        found[span.text] += values
    return [row[len(before) - 1 :] for row, before in zip(found, given, strict=True)]
