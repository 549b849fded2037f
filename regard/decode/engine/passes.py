"""Single passes over a source: the encoder alone, known targets, their attention, the next token."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ...data.batch import Batch
from ...data.datasets.collate import prompted_targets
from ...families.protocols import Seq2SeqModel, as_module
from ...look import AttentionSite, attention_sites, record_attention
from ...parts import Encoded, Inputs
from ...processors.text.tokenizers import Tokenizer
from .jobs import Job, ModelContext, R
from .requests import stack_sources
from .wrappers import Ensemble, joint_logits, mean_logprobs

TRACE_ROWS = 16  # targets of a batch whose attention weights are all in memory


@dataclass(frozen=True, eq=False)
class Encode(Job[Inputs]):
    """The encoder's output for one source, as the source of other jobs (`encoded=True`).

    It is for requests that ask several times about a source. Others give the source to their only job, whose batch
    then runs the encoder.
    """

    source: Inputs
    stage: ClassVar[int] = 7

    @property
    def cost(self) -> int:
        return self.source.values.shape[1]

    def group(self) -> Hashable:
        return type(self), self.source.modality

    @torch.no_grad()
    def run(self, jobs: Sequence["Encode"], context: ModelContext) -> list[Inputs]:
        encoded = context.model.encode(stack_sources([job.source for job in jobs], 0, context.device))
        return [Inputs("frames", row) for row in encoded_rows(encoded)]


@dataclass(frozen=True, eq=False)
class KnownTarget(Job[R]):
    """A source with its target, which the decoder reads after a prompt that ends in START."""

    source: Inputs
    prompt: tuple[int, ...]
    target: tuple[int, ...]
    encoded: bool = field(default=False, kw_only=True)  # the source is the output of `Encode`
    alternatives: int = field(default=0, kw_only=True)  # the likeliest tokens that are returned for every place

    @property
    def cost(self) -> int:
        return max(self.source.values.shape[1], len(self.target))

    def group(self) -> Hashable:
        return type(self), self.source.modality, self.encoded

    def read(self, jobs: Sequence["KnownTarget[R]"], context: ModelContext) -> tuple[list["TokenScores"], Encoded]:
        """The scores of the targets, and the output of the (first) encoder."""
        assert context.tokenizer is not None
        source = stack_sources([job.source for job in jobs], 0, context.device)
        models: Sequence[Seq2SeqModel] = context.model.members
        given = Encoded(source.values, source.valid) if self.encoded else None
        sources = [given or model.encode(source) for model in models]
        prompts, targets = [job.prompt for job in jobs], [job.target for job in jobs]
        scores = target_scores(models, sources, prompts, targets, context.tokenizer)
        counts, rows = [len(target) + 1 for target in targets], list[TokenScores]()
        labels = torch.tensor([token for target in targets for token in (*target, context.tokenizer.end)])
        logprobs = scores.gather(-1, labels.to(scores.device)[:, None])[:, 0].tolist()
        most = min(max(job.alternatives for job in jobs), scores.size(-1))
        best = scores.topk(most)
        table = zip(best.indices.tolist(), best.values.tolist(), strict=True) if most else ()
        ranked = [list(zip(*row, strict=True)) for row in table]
        first = 0
        for job, count in zip(jobs, counts, strict=True):
            places = slice(first, first + count)
            rows.append(TokenScores(logprobs[places], [row[: job.alternatives] for row in ranked[places]]))
            first += count
        return rows, sources[0]


@dataclass(frozen=True, eq=False)
class TokenScores:
    """Log-probabilities of a known target."""

    logprobs: list[float]  # of the tokens and of END
    alternatives: list[list[tuple[int, float]]]  # for every log-probability: the likeliest tokens with theirs


@dataclass(frozen=True, eq=False)
class Score(KnownTarget[list[float]]):
    """The log-probability of every token of a known target, and of END."""

    stage: ClassVar[int] = 2

    @torch.no_grad()
    def run(self, jobs: Sequence["Score"], context: ModelContext) -> list[list[float]]:
        rows, _ = self.read(jobs, context)
        return [row.logprobs for row in rows]


@dataclass(frozen=True, eq=False)
class TokenTrace(TokenScores):
    """What a second pass tells about a finished text."""

    cross: list[tuple[AttentionSite, Tensor]]  # of every decoder layer, (heads, tokens + 1, source positions)
    states: Tensor  # (positions, width): the output of the encoder


@dataclass(frozen=True, eq=False)
class Trace(KnownTarget[TokenTrace]):
    """`Score` that records the cross-attention, of few rows: all weights are in memory."""

    stage: ClassVar[int] = 1

    def group(self) -> Hashable:
        return *super().group(), self.source.values.shape[2:]  # type: ignore[misc]  # images of one size

    def limits(self, context: ModelContext, batch: int) -> tuple[int, int]:
        return 0, TRACE_ROWS

    @torch.no_grad()
    def run(self, jobs: Sequence["Trace"], context: ModelContext) -> list[TokenTrace]:
        first = as_module(context.model.members[0])
        sites = [site for site in attention_sites(first) if site.kind == "cross"]
        with record_attention(first, [site.path for site in sites]) as maps:
            rows, encoded = self.read(jobs, context)
        cross = [(site, maps[site.path].cpu()) for site in sites]
        traces = []
        for number, (job, row, states) in enumerate(zip(jobs, rows, encoded_rows(encoded), strict=True)):
            begin = len(job.prompt) - 1  # rows before it predict the prompt itself
            written = slice(begin, begin + len(row.logprobs))
            layers = [(site, weights[number, :, written, : states.size(1)]) for site, weights in cross]
            traces.append(TokenTrace(row.logprobs, row.alternatives, layers, states[0]))
        return traces


@dataclass(frozen=True, eq=False)
class NextLogits(Job[Tensor]):
    """(vocab,) of the token after a prompt: the language of a recording, whether somebody speaks."""

    source: Inputs  # the output of `Encode`
    prompt: tuple[int, ...]
    stage: ClassVar[int] = 3

    @torch.no_grad()
    def run(self, jobs: Sequence["NextLogits"], context: ModelContext) -> list[Tensor]:
        source = stack_sources([job.source for job in jobs], 0, context.device)
        rows = [torch.tensor(job.prompt) for job in jobs]
        tokens = pad_sequence(rows, batch_first=True).to(context.device)
        states = context.model.decode(Inputs("tokens", tokens), Encoded(source.values, source.valid))
        last = torch.tensor([len(row) - 1 for row in rows], device=context.device)
        return list(context.model.logits(states[torch.arange(len(rows), device=context.device), last]).float())


# --- known targets ---------------------------------------------------------------------------------------------------


def encoded_rows(encoded: Encoded) -> list[Tensor]:
    """(1, positions, width) of every source, without padding."""
    rows = torch.split(encoded.states, 1)
    sizes = [encoded.states.size(1)] * len(rows) if encoded.valid is None else encoded.valid.sum(1).tolist()
    return [row[:, :size] for row, size in zip(rows, sizes, strict=True)]


def target_scores(
    models: Sequence[Seq2SeqModel],
    sources: Sequence[Encoded],
    prompts: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    tokenizer: Tokenizer,
) -> Tensor:
    """(tokens, vocab) log-probabilities at all tokens of known targets and their END; models are averaged."""
    ended = [np.array([*tokens, tokenizer.end], np.int32) for tokens in targets]
    fields = prompted_targets([np.array(prompt) for prompt in prompts], ended, tokenizer.pad)
    target, labels = (fields[name].to(sources[0].states.device) for name in ("target", "labels"))
    logits = [
        model.logits(model.decode(target, encoded).flatten(0, 1)[labels.positions])
        for model, encoded in zip(models, sources, strict=True)
    ]
    return mean_logprobs(logits)


def logits(model: Seq2SeqModel | Ensemble, batch: Batch) -> Tensor:
    """For a known target: (tokens, vocab) of the valid tokens of padded rows, (rows, width, vocab) of packed rows."""
    return joint_logits([_logits(member, batch) for member in model.members])


def _logits(model: Seq2SeqModel, batch: Batch) -> Tensor:
    states, positions = model.decode(batch["target"], model.encode(batch["source"])), batch["labels"].positions
    return model.logits(states if positions is None else states.flatten(0, 1)[positions])
