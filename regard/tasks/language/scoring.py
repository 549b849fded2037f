"""Log-probabilities of known texts under a language model: per token, or summed over a corpus."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ...config.data.texts import TextData
from ...data.batch import Batch
from ...data.datasets.corpus import Corpus, evaluation_windows, memory_windows
from ...decode import Ensemble
from ...decode.engine.jobs import Gather, Job, ModelContext
from ...decode.engine.passes import TokenScores
from ...decode.engine.wrappers import joint_logits
from ...families.protocols import CausalModel, memory_layer
from ...parts import Cache, Inputs
from ...progress import track

MAX_LOGITS = 2**27  # values of one tensor of logits, unless a single row has more
MAX_TOKENS = 2**14  # tokens of a batch


def text_states(model: CausalModel, batch: Batch, memory: Cache | None = None) -> Tensor:
    """The model's output for windows of known text: (batch, tokens, width)."""
    if memory is not None:
        memory.reset(batch["reset"].values)
    return model.decode(batch["text"], memory)


def target_logits(model: CausalModel | Ensemble, batch: Batch, memory: Cache | None = None) -> Tensor:
    """The logits (targets, vocab) at all valid targets; an ensemble averages probabilities."""
    labels = batch["labels"]
    states = ((member, text_states(member, batch, memory)) for member in model.members)
    return joint_logits([member.logits(valid_rows(rows, labels)).float() for member, rows in states])


def token_logprobs(logits: Tensor, labels: Inputs) -> Tensor:
    """The log-probabilities of all valid targets in one dimension."""
    return logits.gather(-1, valid_rows(labels.values, labels)[:, None])[:, 0] - logits.logsumexp(-1)


def valid_rows(values: Tensor, labels: Inputs) -> Tensor:
    """The values (batch, tokens, …) at the positions that are scored, (positions, …)."""
    return values.flatten(0, 1) if labels.valid is None else values[labels.valid]


# --- single texts ----------------------------------------------------------------------------------------------------


class Span(NamedTuple):
    """A window of a text from `first` to `last`. The tokens before `new` are context and not scored again."""

    first: int
    new: int
    last: int


def spans(length: int, context: int | None) -> Iterator[Span]:
    """The windows of a text. If it is longer than the context, each window begins with half of the previous one."""
    first, new = 0, 0
    while new < length:
        last = min(first + (context or length), length)
        yield Span(first, new, last)
        first, new = last - (context or 0) // 2, last


@dataclass(frozen=True, eq=False)
class ScoreWindow(Job[TokenScores]):
    """The log-probabilities of the tokens of a window of a known text."""

    tokens: tuple[int, ...]
    given: int = 1  # tokens at its beginning that are context and are not scored
    alternatives: int = 0  # the likeliest tokens that are returned for every place
    stage: ClassVar[int] = 2

    @property
    def cost(self) -> int:
        return len(self.tokens) - 1

    def limits(self, context: ModelContext, batch: int) -> tuple[int, int]:
        assert context.tokenizer is not None
        tokens = max(min(MAX_TOKENS, MAX_LOGITS // context.tokenizer.size), 1)
        return tokens, tokens

    @torch.no_grad()
    def run(self, jobs: Sequence["ScoreWindow"], context: ModelContext) -> list[TokenScores]:
        batch = _collate(jobs).to(context.device)
        logits = target_logits(context.model, batch)
        logprobs = iter(token_logprobs(logits, batch["labels"]).tolist())
        ranked = _likeliest(logits, max(job.alternatives for job in jobs))
        rows = []
        for job in jobs:
            count = len(job.tokens) - job.given
            alternatives = [row[: job.alternatives] for row in islice(ranked, count)]
            rows.append(TokenScores(list(islice(logprobs, count)), alternatives))
        return rows


def _likeliest(logits: Tensor, count: int) -> Iterator[list[tuple[int, float]]]:
    """The `count` likeliest tokens of every row with their log-probabilities; no rows for 0."""
    if count:
        best = logits.topk(min(count, logits.size(-1)))
        values = best.values - logits.logsumexp(-1, keepdim=True)
        for row in zip(best.indices.tolist(), values.tolist(), strict=True):
            yield list(zip(*row, strict=True))


async def score_known(tokens: Sequence[int], context: int | None) -> list[float]:
    """The log-probability of every token of a text except the first, in windows if the text exceeds the context."""

    async def score(span: Span) -> list[float]:
        return (await ScoreWindow(tuple(tokens[span.first : span.last + 1]), span.new - span.first + 1)).logprobs

    windows = [score(span) for span in spans(len(tokens) - 1, context)]
    return await windows[0] if len(windows) == 1 else [*chain.from_iterable(await Gather(windows))]


def _collate(windows: Sequence[ScoreWindow]) -> Batch:
    longest = max(len(window.tokens) for window in windows)
    tokens = torch.zeros(len(windows), longest, dtype=torch.long)
    valid = torch.zeros(len(windows), longest - 1, dtype=torch.bool)
    for row, window in enumerate(windows):
        tokens[row, : len(window.tokens)] = torch.tensor(window.tokens)
        valid[row, window.given - 1 : len(window.tokens) - 1] = True
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
    memory = None if stride else model.new_memory(rows)
    if memory is not None:
        policy, windows = f"{memory_layer(memory).policy}, segments of {width}", memory_windows(texts, width, rows)
    else:
        policy = f"stride {stride} of {width}" if 0 < stride < width else f"non-overlapping {width}"
        max_rows = min(MAX_TOKENS // width, MAX_LOGITS // vocab // (stride or width))
        windows = evaluation_windows(texts, width, stride, max(max_rows, 1))
    nats, tokens = torch.zeros((), dtype=torch.float64, device=device), 0
    for window in track(windows, "tokens", size=lambda window: window.count):
        batch = window.to(device)
        nats -= token_logprobs(target_logits(model, batch, memory), batch["labels"]).sum(dtype=torch.float64)
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
