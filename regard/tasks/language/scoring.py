"""Log-probabilities of known texts under a language model: per token, or summed over a corpus."""

import math
import time
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ...config.data.texts import TextData
from ...data.batch import Batch
from ...data.datasets.corpus import Corpus, evaluation_windows, memory_windows
from ...data.loading.sampler import sorted_batches
from ...decode import Ensemble
from ...decode.engine.wrappers import mean_logprobs
from ...families.protocols import CausalModel, memory_layer
from ...parts import Cache, Inputs
from ...progress import track

MAX_LOGITS = 2**27  # values of one tensor of logits, unless a single row has more
MAX_TOKENS = 2**14  # tokens of a batch


def hidden_states(model: CausalModel, batch: Batch, memory: Cache | None = None) -> Tensor:
    """The model's output for windows of known text: (batch, tokens, width)."""
    if memory is not None:
        memory.reset(batch["reset"].values)
    return model.decode(batch["text"], memory)


def token_logprobs(model: CausalModel | Ensemble, batch: Batch, memory: Cache | None = None) -> Tensor:
    """The log-probabilities of all valid targets in one dimension; an ensemble averages probabilities."""
    members = model.members if isinstance(model, Ensemble) else [model]
    labels = batch["labels"]
    logits = [member.logits(valid_rows(hidden_states(member, batch, memory), labels)).float() for member in members]
    scores = logits[0] if len(logits) == 1 else mean_logprobs(logits)  # (targets, vocab)
    return scores.gather(-1, valid_rows(labels.values, labels)[:, None])[:, 0] - scores.logsumexp(-1)


def valid_rows(values: Tensor, labels: Inputs) -> Tensor:
    """The values (batch, tokens, …) at the positions that are scored, (positions, …)."""
    return values.flatten(0, 1) if labels.valid is None else values[labels.valid]


# --- single texts ----------------------------------------------------------------------------------------------------


class Span(NamedTuple):
    """A window of a text from `first` to `last`. The tokens before `new` are context and not scored again."""

    text: int
    first: int
    new: int
    last: int


def spans(text: int, length: int, context: int | None) -> Iterator[Span]:
    """The windows of a text. If it is longer than the context, each window begins with half of the previous one."""
    first, new = 0, 0
    while new < length:
        last = min(first + (context or length), length)
        yield Span(text, first, new, last)
        first, new = last - (context or 0) // 2, last


@torch.no_grad()
def logprobs(
    model: CausalModel | Ensemble, texts: list[list[int]], context: int | None, vocab: int, device: torch.device
) -> list[list[float]]:
    """The log-probability of every token of these texts except the first."""
    windows = [span for i, text in enumerate(texts) for span in spans(i, len(text) - 1, context)]
    span_logprobs: dict[Span, list[float]] = {}
    budget = max(min(MAX_TOKENS, MAX_LOGITS // vocab), 1)
    batches = sorted_batches([span.last - span.first for span in windows], tokens=budget)
    for indices in track(batches, "windows", len(windows), len):
        batch = [windows[i] for i in indices]
        values = iter(token_logprobs(model, _collate(batch, texts).to(device)).tolist())
        span_logprobs |= {span: [next(values) for _ in range(span.new, span.last)] for span in batch}
    rows: list[list[float]] = [[] for _ in texts]
    for span in windows:  # the windows of a text are in order
        rows[span.text] += span_logprobs[span]
    return rows


def _collate(batch: list[Span], texts: list[list[int]]) -> Batch:
    longest = max(span.last - span.first for span in batch)
    tokens = torch.zeros(len(batch), longest + 1, dtype=torch.long)
    valid = torch.zeros(len(batch), longest, dtype=torch.bool)
    for row, span in enumerate(batch):
        tokens[row, : span.last - span.first + 1] = torch.tensor(texts[span.text][span.first : span.last + 1])
        valid[row, span.new - span.first : span.last - span.first] = True
    inputs = {"text": Inputs("tokens", tokens[:, :-1]), "labels": Inputs("tokens", tokens[:, 1:], valid)}
    return Batch(inputs, int(valid.sum()))


@torch.no_grad()
def generation_logits(model: CausalModel, tokens: list[int], prompt: int, device: torch.device) -> Tensor:
    """The logits (tokens, vocab) of a known text, as in a generation after the first `prompt` tokens.

    A model with memory reads the prompt at once and then token by token, so that each attends to the full memory.
    """
    row = torch.tensor([tokens], device=device)
    if model.new_memory(1) is None:
        return model.logits(model.decode(Inputs("tokens", row)))[0]
    cache = model.start(None, 1, None)
    parts = [row[:, :prompt], *(row[:, i : i + 1] for i in range(prompt, len(tokens)))]
    return torch.cat([model.step(part, cache)[0] for part in parts])


# --- a whole corpus --------------------------------------------------------------------------------------------------


class CorpusNll(NamedTuple):
    """The negative log-likelihood of a corpus, and how it was measured."""

    nats: float
    tokens: int
    policy: str  # how much of the text is context when a token is predicted
    seconds: float


@torch.no_grad()
def corpus_nll(
    model: CausalModel | Ensemble, texts: Corpus, data: TextData, vocab: int, device: torch.device, rows: int = 1
) -> CorpusNll:
    """The negative log-likelihood of every token of the texts.

    A model with memory reads the texts in order, in `rows` parallel parts. Other models read windows; so does a model
    with memory if data.stride is set.
    """
    began, width, stride = time.monotonic(), data.max_tokens, data.stride
    memory = None if stride or isinstance(model, Ensemble) else model.new_memory(rows)
    if memory is not None:
        policy, windows = f"{memory_layer(memory).policy}, segments of {width}", memory_windows(texts, width, rows)
    else:
        policy = f"stride {stride} of {width}" if 0 < stride < width else f"non-overlapping {width}"
        most = min(MAX_TOKENS // width, MAX_LOGITS // vocab // (stride or width))
        windows = evaluation_windows(texts, width, stride, max(most, 1))
    nats, tokens = torch.zeros((), dtype=torch.float64, device=device), 0
    for window in track(windows, "tokens", size=lambda window: window.count):
        nats -= token_logprobs(model, window.to(device), memory).sum(dtype=torch.float64)
        tokens += window.count
    return CorpusNll(float(nats), tokens, policy, time.monotonic() - began)


def lm_metrics(nll: CorpusNll, texts: Corpus) -> dict[str, float]:
    """Metrics over raw text. Words of a stream are counted as published: END counts as a word."""
    loss = nll.nats / max(nll.tokens, 1)
    bits = nll.nats / math.log(2)
    metrics = {"loss": loss, "perplexity": _exp(loss), "bits_per_byte": bits / max(texts.bytes, 1)}
    if texts.stream:
        metrics["word_perplexity"] = _exp(nll.nats / max(texts.words, 1))
    return metrics | {"bits_per_character": bits / max(texts.characters, 1)}


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
