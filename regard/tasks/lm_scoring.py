"""How well a language model foresees texts that are known: token by token, or over a whole corpus."""

import math
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..config.schema import TextData
from ..data.corpus import Corpus, TextWindow, evaluation_windows, memory_windows
from ..data.sampler import sorted_batches
from ..decode import Ensemble
from ..decode.ensemble import mean
from ..parts import Cache, Mask

Model = Any  # a language model: decode, logits, recall
LOGITS = 2**27  # numbers at most in one tensor of logits, unless a single row has more
TOKENS = 2**14  # that are read at once, at most


def states(model: Model, batch: TextWindow, memory: Cache | None = None) -> Tensor:
    """The model's output for windows of known text: (batch, tokens, width)."""
    if memory is not None:
        assert batch.reset is not None
        memory.reset(batch.reset)
        return model.decode(batch.tokens, memory.next_mask(batch.tokens), memory)
    mask = Mask() if batch.segments is None else Mask(positions=batch.positions, segments=batch.segments)
    return model.decode(batch.tokens, mask)


def token_logprobs(model: Model, batch: TextWindow, memory: Cache | None = None) -> Tensor:
    """The log-probability of every real target, one after the other; of an ensemble, that of the mean probability."""
    members = model.members if isinstance(model, Ensemble) else [model]
    scores = [member.logits(states(member, batch, memory)[batch.valid]).float() for member in members]
    whole = scores[0] if len(scores) == 1 else mean(scores)  # (real, vocab)
    return whole.gather(-1, batch.targets[batch.valid][:, None])[:, 0] - whole.logsumexp(-1)


# --- single texts ----------------------------------------------------------------------------------------------------


class Span(NamedTuple):
    """So much of a text as is read at once: from `first` to `last`, of which what is before `new` was read already."""

    text: int
    first: int
    new: int
    last: int


def spans(text: int, length: int, context: int | None) -> Iterator[Span]:
    """All of a text; one that is longer than the context in windows, each with half of the one before as its past."""
    first, new = 0, 0
    while new < length:
        last = min(first + (context or length), length)
        yield Span(text, first, new, last)
        first, new = last - (context or 0) // 2, last


@torch.no_grad()
def logprobs(
    model: Model, texts: list[list[int]], context: int | None, vocab: int, device: torch.device
) -> list[list[float]]:
    """The log-probability of every token of these texts but the first, which is given."""
    pieces = [span for i, text in enumerate(texts) for span in spans(i, len(text) - 1, context)]
    found: dict[Span, list[float]] = {}
    budget = max(min(TOKENS, LOGITS // vocab), 1)
    for some in sorted_batches([span.last - span.first for span in pieces], tokens=budget):
        batch = [pieces[i] for i in some]
        values = iter(token_logprobs(model, _window(batch, texts).to(device)).tolist())
        found |= {span: [next(values) for _ in range(span.new, span.last)] for span in batch}
    told: list[list[float]] = [[] for _ in texts]
    for span in pieces:  # those of a text follow one another
        told[span.text] += found[span]
    return told


def _window(batch: list[Span], texts: list[list[int]]) -> TextWindow:
    longest = max(span.last - span.first for span in batch)
    tokens = torch.zeros(len(batch), longest + 1, dtype=torch.long)
    real = torch.zeros(len(batch), longest, dtype=torch.bool)
    for row, span in enumerate(batch):
        tokens[row, : span.last - span.first + 1] = torch.tensor(texts[span.text][span.first : span.last + 1])
        real[row, span.new - span.first : span.last - span.first] = True
    return TextWindow(tokens[:, :-1], tokens[:, 1:], real)


# --- a whole corpus --------------------------------------------------------------------------------------------------


class CorpusNll(NamedTuple):
    nats: float
    tokens: int
    policy: str  # what of the text is seen when a token is predicted
    seconds: float


@torch.no_grad()
def corpus_nll(
    model: Model, texts: Corpus, data: TextData, vocab: int, device: torch.device, rows: int = 1
) -> CorpusNll:
    """Every token of the texts once. A model with memory reads them in order, in `rows` parts at a time; others, and it
    too if data.stride is set, in windows."""
    began, width, stride = time.monotonic(), data.max_tokens, data.stride
    memory = None if stride or isinstance(model, Ensemble) else model.new_memory(rows)
    if memory is not None:
        policy, windows = f"{memory.layers[0].policy}, segments of {width}", memory_windows(texts, width, rows)
    else:
        policy = f"stride {stride} of {width}" if 0 < stride < width else f"non-overlapping {width}"
        most = min(TOKENS // width, LOGITS // vocab // (stride or width))
        windows = evaluation_windows(texts, width, stride, max(most, 1))
    nats, tokens = torch.zeros((), dtype=torch.float64, device=device), 0
    for window in windows:
        nats -= token_logprobs(model, window.to(device), memory).sum(dtype=torch.float64)
        tokens += window.count
    return CorpusNll(float(nats), tokens, policy, time.monotonic() - began)


def lm_metrics(found: CorpusNll, texts: Corpus) -> dict[str, float]:
    """Of nats over raw text. The words of a stream, END counted as one, are those of its distributors."""
    loss = found.nats / max(found.tokens, 1)
    bits = found.nats / math.log(2)
    told = {"loss": loss, "perplexity": _exp(loss), "bits_per_byte": bits / max(texts.bytes, 1)}
    if texts.stream:
        told["word_perplexity"] = _exp(found.nats / max(texts.words, 1))
    return told | {"bits_per_character": bits / max(texts.characters, 1)}


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
