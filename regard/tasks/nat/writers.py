"""Writing all tokens of a translation at once: copied source tokens (fertilities), and Mask-Predict."""

from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from ...config.strategies import Argmax, Average, MaskPredict, NoisyParallel, ParallelStrategy
from ...data.datasets.collate import pad_tokens
from ...decode import Hypothesis, Suppress
from ...decode.engine.jobs import Job, ModelContext
from ...decode.engine.passes import KnownTarget, Score, TokenScores, Trace
from ...decode.parallel import decoding as parallel
from ...decode.parallel.copies import likeliest, predict_copying
from ...decode.search.sample import sample_keys
from ...families.protocols import FertilityModel, MaskPredictModel
from ...look import ViewAxis
from ...modalities.base import EncodedInput
from ...parts import Encoded
from ...parts.inputs import Inputs
from ...parts.parallel.fertility import copy_tokens
from ..generate.plans import Plan
from ..generate.streams import TextStream
from ..generate.writer import TextWriter
from ..notices import require_finite
from ..parallel.data import pad_target
from ..parallel.teacher import candidate_scores, open_teacher

TokenTable = tuple[Tensor, Tensor]  # tokens (rows, width), and which are valid


@dataclass(frozen=True, eq=False)
class DecodeAtOnce(Job[Hypothesis]):
    """The translation of one source."""

    writer: "ParallelWriter"
    source: EncodedInput
    limit: int
    strategy: ParallelStrategy
    stage: ClassVar[int] = 5

    @property
    def cost(self) -> int:
        return len(self.source.array)

    def group(self) -> Hashable:
        return type(self), self.strategy

    def limits(self, context: ModelContext, batch: int) -> tuple[int, int]:
        return 0, max(batch // self.writer.candidates(self.strategy), 1)

    @torch.no_grad()
    def run(self, jobs: Sequence["DecodeAtOnce"], context: ModelContext) -> list[Hypothesis]:
        rows = [job.source.array.tolist() for job in jobs]
        source = parallel.padded_source(rows, self.writer.pad, context.device)
        limits = torch.tensor([job.limit for job in jobs], device=context.device)
        hypotheses = self.writer.decode(source, [job.source.key for job in jobs], limits, self.strategy)
        require_finite([hypothesis.logprob for hypothesis in hypotheses])
        return hypotheses


@dataclass(eq=False)
class ParallelWriter(TextWriter):
    """Writes all tokens of a translation at once."""

    sequential = False

    @cached_property
    def hidden(self) -> Tensor:
        """Tokens that are never written."""
        return torch.tensor(sorted({*self.suppressed, self.target.end}), device=self.context.device)

    @property
    def suppressed(self) -> list[int]:
        """The tokens that no decode.* allows."""
        filters = self.context.filters
        return [token for filter in filters if isinstance(filter, Suppress) for token in filter.tokens.tolist()]

    @abstractmethod
    def decode(
        self, source: TokenTable, texts: Sequence[str], limits: Tensor, strategy: ParallelStrategy
    ) -> list[Hypothesis]:
        """The translation of every row, of at most `limits` (rows,) tokens."""

    @abstractmethod
    def candidates(self, strategy: ParallelStrategy) -> int:
        """The number of translations of a text that are written together."""

    async def _search(
        self, source: EncodedInput, plan: Plan, start: tuple[int, ...], stream: TextStream | None, variant: object
    ) -> tuple[list[Hypothesis], int]:
        limit = self.limit(source.max_tokens, plan)
        strategy = cast(ParallelStrategy, plan.strategy)
        return [await DecodeAtOnce(self, source, limit, strategy)], limit

    def limit(self, tokens: int, plan: Plan) -> int:
        limit: int = plan.decode.max_tokens or max(tokens, 1)
        context = self.context.positions
        return limit if context is None else min(limit, context - 1)  # START

    def target_axes(self, source: EncodedInput, tokens: Sequence[int], prompt: Sequence[int]) -> dict[str, ViewAxis]:
        """The axes without END, which is not written; the decoder reads no target token."""
        axis = ViewAxis.of_tokens("target", self.target.tokens(tokens))
        return {"target": axis, "prefix": axis}


# --- known targets ---------------------------------------------------------------------------------------------------

KnownInputs = Callable[[Any, Inputs, Encoded, Tensor, int], tuple[Inputs, Tensor]]


@torch.no_grad()
def read_of_length(
    jobs: Sequence[KnownTarget[Any]], context: ModelContext, known_inputs: KnownInputs
) -> tuple[list[TokenScores], Encoded]:
    """The scores of targets of known length. END has the log-probability of the length."""
    assert context.tokenizer is not None
    model, pad, targets = context.model, context.tokenizer.pad, [job.target for job in jobs]
    source = pad_tokens([job.source.values[0].numpy() for job in jobs], pad).to(context.device)
    encoded = model.encode(source)
    lengths = torch.tensor(list(map(len, targets)), device=context.device)
    inputs, ends = known_inputs(model, source, encoded, lengths, pad)
    labels = pad_target([torch.tensor(tokens, dtype=torch.long).numpy() for tokens in targets], 0).to(context.device)
    scores = model.logits(model.decode(inputs, encoded)).float().log_softmax(-1)
    chosen = scores.gather(-1, labels.values[..., None])[..., 0].tolist()
    rows = []
    for row, job, end in zip(range(len(jobs)), jobs, ends.tolist(), strict=True):
        best = scores[row, : len(job.target)].topk(min(job.alternatives, scores.size(-1)))
        table = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ranked = [list(zip(*place, strict=True)) for place in table] if job.alternatives else []
        rows.append(TokenScores([*chosen[row][: len(job.target)], end], ranked))
    return rows, encoded


def copied_inputs(
    model: FertilityModel, source: Inputs, encoded: Encoded, lengths: Tensor, pad: int
) -> tuple[Inputs, Tensor]:
    """Source tokens copied by the likeliest fertilities that add up to the length, and its log-probability."""
    fertilities, ends = predict_copying(model, encoded).of_length(lengths)
    values, valid = copy_tokens(source.values, fertilities)
    if not values.size(1):
        values, valid = source.values[:, :1], torch.zeros_like(source.values[:, :1], dtype=torch.bool)
    return Inputs("tokens", values, valid), ends


def masked_inputs(
    model: MaskPredictModel, source: Inputs, encoded: Encoded, lengths: Tensor, pad: int
) -> tuple[Inputs, Tensor]:
    """A target whose tokens are all masked, and the log-probability of its length."""
    places = torch.arange(max(int(lengths.max()), 1), device=lengths.device)
    valid = places < lengths[:, None]
    logprobs = model.length_logits(encoded).float().log_softmax(-1)
    ends = logprobs.gather(1, lengths.clamp(max=logprobs.size(1) - 1)[:, None])[:, 0]
    return Inputs("tokens", torch.full_like(valid, pad, dtype=torch.long), valid), ends


class FertilityScore(Score):
    """A known target of copied source tokens."""

    def read(self, jobs: Sequence[KnownTarget[Any]], context: ModelContext) -> tuple[list[TokenScores], Encoded]:
        return read_of_length(jobs, context, copied_inputs)


class FertilityTrace(Trace):
    """`FertilityScore` with its cross-attention."""

    read = FertilityScore.read


class MaskPredictScore(Score):
    """A known target whose tokens are all masked."""

    def read(self, jobs: Sequence[KnownTarget[Any]], context: ModelContext) -> tuple[list[TokenScores], Encoded]:
        return read_of_length(jobs, context, masked_inputs)


class MaskPredictTrace(Trace):
    """`MaskPredictScore` with its cross-attention."""

    read = MaskPredictScore.read


# --- families --------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class FertilityWriter(ParallelWriter):
    """Source tokens that are copied by their predicted fertilities."""

    validation_decode: ClassVar[Mapping[str, Any]] = {"strategy": {"kind": "argmax"}}
    score, trace = FertilityScore, FertilityTrace
    teachers: dict[str, Any] = field(default_factory=dict)  # the opened teachers, by the name of their runs

    def candidates(self, strategy: ParallelStrategy) -> int:
        return strategy.samples if isinstance(strategy, NoisyParallel) else 1

    def decode(
        self, source: TokenTable, texts: Sequence[str], limits: Tensor, strategy: ParallelStrategy
    ) -> list[Hypothesis]:
        if isinstance(strategy, NoisyParallel):
            return self._decode_samples(source, texts, limits, strategy)
        assert isinstance(strategy, Argmax | Average)
        mean = isinstance(strategy, Average)
        rows = parallel.decode_fertilities(self.context.model, source, limits, self.hidden, mean).rows()
        return [parallel.make_hypothesis(*row, strategy.length_penalty, strategy.merge_repeats) for row in rows]

    def _decode_samples(
        self, source: TokenTable, texts: Sequence[str], limits: Tensor, strategy: NoisyParallel
    ) -> list[Hypothesis]:
        """The sample that the teacher finds likeliest, with the teacher's score."""
        count, model = strategy.samples, self.context.model
        keys = sample_keys([*texts], count, strategy.seed, self.context.device)
        samples = parallel.decode_fertilities(model, source, limits, self.hidden, keys=keys).rows()
        tokens = [parallel.merge_repeats(row) if strategy.merge_repeats else row for row, _ in samples]
        scores = self._teacher_scores(texts, tokens, strategy)
        best = likeliest(torch.tensor(scores).view(-1, count)).tolist()
        chosen = [number * count + rank for number, rank in enumerate(best)]
        return [Hypothesis(tokens[i], scores[i], samples[i][1], True) for i in chosen]

    def _teacher_scores(self, texts: Sequence[str], tokens: list[list[int]], strategy: NoisyParallel) -> list[float]:
        """Σ log p / length^length_penalty of all translations of each text; equal ones are scored once."""
        count, name = len(tokens) // len(texts), strategy.teacher
        pairs = [(number // count, target) for number, target in enumerate(self.target.decode(tokens))]
        distinct = list(dict.fromkeys(pairs))
        if name not in self.teachers:
            self.teachers[name] = open_teacher(name, self.context.device)
        scores = candidate_scores(self.teachers[name], texts, distinct, strategy.length_penalty)
        score_of = dict(zip(distinct, scores, strict=True))
        return [score_of[pair] for pair in pairs]


@dataclass(eq=False)
class MaskPredictWriter(ParallelWriter):
    """Mask-Predict: fill in masked tokens iteratively, for several lengths of the translation."""

    validation_decode: ClassVar[Mapping[str, Any]] = {
        "strategy": {"kind": "mask-predict", "iterations": 4, "length_beam": 1}
    }
    score, trace = MaskPredictScore, MaskPredictTrace

    def candidates(self, strategy: ParallelStrategy) -> int:
        assert isinstance(strategy, MaskPredict)
        return strategy.length_beam

    def decode(
        self, source: TokenTable, texts: Sequence[str], limits: Tensor, strategy: ParallelStrategy
    ) -> list[Hypothesis]:
        assert isinstance(strategy, MaskPredict)
        penalty, pad = strategy.length_penalty, self.target.pad
        filled = parallel.decode_mask_predict(self.context.model, source, limits, self.hidden, pad, strategy)
        beam = len(filled.lengths) // len(texts)  # fewer if there are fewer lengths
        best = likeliest((filled.logprobs / filled.lengths**penalty).view(-1, beam)).tolist()
        rows = filled.rows()
        chosen = [rows[number * beam + int(candidate)] for number, candidate in enumerate(best)]
        return [parallel.make_hypothesis(*row, penalty, strategy.merge_repeats) for row in chosen]
