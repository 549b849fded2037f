"""Translation by families that write all tokens at once."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor

from ...config.decode import NEUTRAL_SAMPLING, Seq2SeqDecode
from ...config.run import Run
from ...config.strategies import (
    Argmax,
    Average,
    MaskPredict,
    NoisyParallel,
    ParallelStrategy,
    TokenRules,
    parallel_strategy_from,
)
from ...data.datasets.collate import pad_tokens
from ...data.datasets.pairs import PairDataset
from ...data.loading.sampler import sorted_batches
from ...decode import Hypothesis
from ...decode.parallel import decoding as parallel
from ...decode.parallel.copies import likeliest, predict_copying
from ...decode.search.constraints import ConstraintRequest, Constraints
from ...decode.search.sample import sample_keys
from ...errors import UserError
from ...families.protocols import FertilityModel, MaskPredictModel, ParallelModel, as_module
from ...look import ViewAxis
from ...parts import Encoded
from ...parts.inputs import Inputs
from ...parts.parallel.fertility import copy_tokens
from ...training.objective import Objective
from ..base import vocabulary
from ..generate.scorer import Scorer
from ..generate.seq2seq import SourceInputs
from ..notices import require_finite
from ..parallel.data import EvenDataset, FertilityDataset, MaskPredictDataset, pad_target
from ..parallel.objectives import FertilityObjective, FrozenTeacher, MaskPredictObjective, TaughtFertilityObjective
from ..parallel.teacher import open_teacher
from ..translate.settings import TranslateDecode
from ..translate.task import TranslateJob, TranslatePredictor


class ParallelPredictor(TranslatePredictor):
    """A translation for every text, all tokens at once."""

    @property
    def parallel_model(self) -> ParallelModel:
        """The model with its type."""
        return cast(ParallelModel, self.model)

    @cached_property
    def hidden(self) -> Tensor:
        """Tokens that are never written."""
        return torch.tensor([*self.suppressed, self.target.end], device=self.device)

    def request_strategy(self, settings: Seq2SeqDecode) -> ParallelStrategy:
        self.check_kind(settings)
        assert isinstance(settings, TranslateDecode)
        return parallel_strategy_from(settings)

    def search(
        self, items: Sequence[str], settings: Seq2SeqDecode, constraints: list[Constraints] | None = None
    ) -> list[list[Hypothesis]]:
        strategy = self.request_strategy(settings)
        self._refuse_token_settings(settings)
        filled = [i for i, item in enumerate(items) if not self.is_empty(item)]
        sources = self.sources([items[i] for i in filled])
        hypotheses: list[list[Hypothesis]] = [[] for _ in items]
        lengths = [source.inputs.values.size(1) for source in sources]
        for indices in sorted_batches(lengths, rows=max(settings.batch // self.candidates(strategy), 1)):
            batch = [sources[i] for i in indices]
            limits = [self._limit(source.max_tokens, settings, Constraints()) for source in batch]
            for i, best in zip(indices, self._search_batch(batch, limits, strategy), strict=True):
                hypotheses[filled[i]] = [best]
        return hypotheses

    @torch.no_grad()
    def _search_batch(
        self, sources: Sequence[SourceInputs], limits: Sequence[int], strategy: ParallelStrategy
    ) -> list[Hypothesis]:
        rows = [item.inputs.values[0].tolist() for item in sources]
        source = parallel.padded_source(rows, self.source.pad, self.device)
        texts = [item.key or "" for item in sources]
        hypotheses = self.write(source, texts, torch.tensor(limits, device=self.device), strategy)
        require_finite([hypothesis.logprob for hypothesis in hypotheses])
        return hypotheses

    @abstractmethod
    def write(
        self, source: tuple[Tensor, Tensor], texts: list[str], limits: Tensor, strategy: ParallelStrategy
    ) -> list[Hypothesis]:
        """The translation of every row, of at most `limits` (rows,) tokens. `source` holds tokens and their mask."""

    @abstractmethod
    def candidates(self, strategy: ParallelStrategy) -> int:
        """The number of translations of a text that are written together."""

    def constraints(self, requests: list[ConstraintRequest], settings: Seq2SeqDecode) -> None:
        for request in requests:
            self._refuse(request._asdict(), ConstraintRequest()._asdict())

    def _refuse_token_settings(self, settings: Seq2SeqDecode) -> None:
        """Refuse settings that need the tokens before a token."""
        rules = {field.name: field.default for field in fields(TokenRules)}
        defaults = {"min_tokens": 0, "repetition_penalty": 1.0, **rules}
        self._refuse({name: getattr(settings, name, default) for name, default in defaults.items()}, defaults)

    def _refuse(self, settings: Mapping[str, object], defaults: Mapping[str, object]) -> None:
        for name, value in settings.items():
            if value != defaults[name]:
                raise UserError(
                    f"decode.{name} is {value!r}, but model.family={self.run.model.family} writes all tokens at once; "
                    "leave it out, or use a family that writes token by token"
                )

    def _stream_one(self, text: str, settings: Seq2SeqDecode, constraints: Constraints) -> Iterator[str]:
        (hypotheses,) = self.generate([text], settings, None)
        yield from filter(None, self.target_texts(hypotheses))

    def view_axes(self, source: list[int], target: list[int]) -> dict[str, ViewAxis]:
        """The axes without END, which is not written; the decoder reads no target token."""
        axes = super().view_axes(source, target)
        target_axis = ViewAxis.of_tokens("target", axes["target"].labels[:-1])
        return axes | {"target": target_axis, "prefix": target_axis}

    @staticmethod
    def ensemble(predictors: Mapping[str, TranslatePredictor]) -> TranslatePredictor:
        raise UserError(
            f"{' and '.join(predictors)} write all tokens at once and cannot form an ensemble; use one of them"
        )


class LengthPredictor(ParallelPredictor):
    """A translation for every text, of a length that is predicted first.

    In scores of known targets, END has the log-probability of the predicted length.
    """

    def _target_logprobs(self, sources: list[list[int]], targets: list[list[int]]) -> list[list[float]]:
        self.refuse_long(sources + targets)
        rows = [torch.tensor([*tokens, self.source.end]).numpy() for tokens in sources]
        source = pad_tokens(rows, self.source.pad).to(self.device)
        encoded = self.parallel_model.encode(source)
        lengths = torch.tensor(list(map(len, targets)), device=self.device)
        inputs, ends = self.known_inputs(source, encoded, lengths)
        labels = pad_target([torch.tensor(tokens, dtype=torch.long).numpy() for tokens in targets], 0).to(self.device)
        logits = self.parallel_model.logits(self.parallel_model.decode(inputs, encoded)).float()
        chosen = logits.log_softmax(-1).gather(-1, labels.values[..., None])[..., 0].tolist()
        return [[*row[: len(y)], end] for row, y, end in zip(chosen, targets, ends.tolist(), strict=True)]

    @abstractmethod
    def known_inputs(self, source: Inputs, encoded: Encoded, lengths: Tensor) -> tuple[Inputs, Tensor]:
        """The decoder inputs for targets of these lengths, and the log-probability (rows,) of each length."""


class FertilityTranslator(LengthPredictor):
    """Translation from source tokens that are copied by their predicted fertilities."""

    validation_decode: Mapping[str, Any] = {"kind": "argmax", "nbest": 1, **NEUTRAL_SAMPLING}

    @property
    def fertility_model(self) -> FertilityModel:
        """The model with its type."""
        return cast(FertilityModel, self.model)

    def candidates(self, strategy: ParallelStrategy) -> int:
        return strategy.samples if isinstance(strategy, NoisyParallel) else 1

    def write(
        self, source: tuple[Tensor, Tensor], texts: list[str], limits: Tensor, strategy: ParallelStrategy
    ) -> list[Hypothesis]:
        if isinstance(strategy, NoisyParallel):
            return self._write_samples(source, texts, limits, strategy)
        assert isinstance(strategy, Argmax | Average)
        mean = isinstance(strategy, Average)
        rows = parallel.write_copies(self.fertility_model, source, limits, self.hidden, mean).rows()
        return [parallel.hypothesis(*row, strategy.length_penalty, strategy.merge_repeats) for row in rows]

    def _write_samples(
        self, source: tuple[Tensor, Tensor], texts: list[str], limits: Tensor, strategy: NoisyParallel
    ) -> list[Hypothesis]:
        """The sample that the teacher finds likeliest, with the teacher's score."""
        count = strategy.samples
        keys = sample_keys(texts, count, strategy.seed, self.device)
        samples = parallel.write_copies(self.fertility_model, source, limits, self.hidden, keys=keys).rows()
        tokens = [parallel.merge_repeats(row) if strategy.merge_repeats else row for row, _ in samples]
        scores = self._teacher_scores(texts, tokens, strategy)
        best = likeliest(torch.tensor(scores).view(-1, count)).tolist()
        chosen = [number * count + rank for number, rank in enumerate(best)]
        return [Hypothesis(tokens[i], scores[i], samples[i][1], True) for i in chosen]

    def _teacher_scores(self, texts: list[str], tokens: list[list[int]], strategy: NoisyParallel) -> list[float]:
        """Σ log p / length^length_penalty of all translations of each text; equal ones are scored once."""
        several = len(tokens) // len(texts)
        pairs = [(number // several, target) for number, target in enumerate(self.target.decode(tokens))]
        distinct = list(dict.fromkeys(pairs))
        scores = self.teacher(strategy.teacher).candidate_scores(texts, distinct, strategy.length_penalty)
        score_of = dict(zip(distinct, scores, strict=True))
        return [score_of[pair] for pair in pairs]

    def teacher(self, name: str) -> Scorer:
        """The run that scores samples; it stays in memory."""
        if name not in self.teachers:
            self.teachers[name] = open_teacher(name, self.device)
        return self.teachers[name]

    @cached_property
    def teachers(self) -> dict[str, Scorer]:
        """The opened teachers, by the name of their runs."""
        return {}

    def known_inputs(self, source: Inputs, encoded: Encoded, lengths: Tensor) -> tuple[Inputs, Tensor]:
        """Source tokens copied by the likeliest fertilities that add up to the length."""
        fertilities, ends = predict_copying(self.fertility_model, encoded).of_length(lengths)
        values, valid = copy_tokens(source.values, fertilities)
        if not values.size(1):
            values, valid = source.values[:, :1], torch.zeros_like(source.values[:, :1], dtype=torch.bool)
        return Inputs("tokens", values, valid), ends


class MaskPredictTranslator(LengthPredictor):
    """Mask-Predict: fill in masked tokens iteratively, for several lengths of the translation."""

    validation_decode: Mapping[str, Any] = {
        "kind": "mask-predict", "iterations": 4, "length_beam": 1, "nbest": 1, **NEUTRAL_SAMPLING
    }  # fmt: skip

    @property
    def mask_predict_model(self) -> MaskPredictModel:
        """The model with its type."""
        return cast(MaskPredictModel, self.model)

    def candidates(self, strategy: ParallelStrategy) -> int:
        assert isinstance(strategy, MaskPredict)
        return strategy.length_beam

    def write(
        self, source: tuple[Tensor, Tensor], texts: list[str], limits: Tensor, strategy: ParallelStrategy
    ) -> list[Hypothesis]:
        assert isinstance(strategy, MaskPredict)
        penalty = strategy.length_penalty
        filled = parallel.fill_in(self.mask_predict_model, source, limits, self.hidden, self.target.pad, strategy)
        beam = len(filled.lengths) // len(texts)  # fewer if there are fewer lengths
        best = likeliest((filled.logprobs / filled.lengths**penalty).view(-1, beam)).tolist()
        rows = filled.rows()
        chosen = [rows[number * beam + int(candidate)] for number, candidate in enumerate(best)]
        return [parallel.hypothesis(*row, penalty, strategy.merge_repeats) for row in chosen]

    def known_inputs(self, source: Inputs, encoded: Encoded, lengths: Tensor) -> tuple[Inputs, Tensor]:
        """A target whose tokens are all masked."""
        places = torch.arange(max(int(lengths.max()), 1), device=lengths.device)
        valid = places < lengths[:, None]
        logprobs = self.mask_predict_model.length_logits(encoded).float().log_softmax(-1)
        ends = logprobs.gather(1, lengths.clamp(max=logprobs.size(1) - 1)[:, None])[:, 0]
        return Inputs("tokens", torch.full_like(valid, self.target.pad, dtype=torch.long), valid), ends


class FertilityJob(TranslateJob):
    """Pairs with the fertilities of their source tokens."""

    used_settings = ("links", "teacher_weight", "glancing")

    def make_objective(self) -> Objective:
        student, run = self.predictor, self.run
        weight, smoothing, glancing = run.data.teacher_weight, run.train.smoothing, run.data.glancing
        if not weight:
            return FertilityObjective(student.module, smoothing, glancing)
        teacher = open_teacher(run.data.teacher, student.device, "data.teacher")
        for field, mine, theirs in (
            ("source", student.source, teacher.source),
            ("target", student.target, teacher.target),
        ):
            if vocabulary(mine) != vocabulary(theirs):
                raise UserError(
                    f"{run.data.teacher} has another {field} vocabulary than this run and cannot fine-tune it; train "
                    "the run that it starts from with data.teacher, too"
                )
        contexts = [context for context in (student.context, teacher.context) if context is not None]
        longest = min(contexts) if contexts else None
        target = student.target
        hidden = torch.tensor([target.pad, target.start, target.end], device=student.device)
        frozen = FrozenTeacher(as_module(teacher.model), target.start, target.end, hidden, longest)
        return TaughtFertilityObjective(student.module, smoothing, frozen, weight, glancing)

    def make_dataset(self) -> PairDataset:
        predictor, run = self.predictor, self.run
        refuse_packed(run.data.packed, run.model.family)
        arguments = self.splits["train"], predictor.source, predictor.target, run.data, run.train
        if run.model.fertilities:
            return FertilityDataset(*arguments, predictor.context, run.model.max_fertility)
        return EvenDataset(*arguments, longest_target(run, predictor.context))


class MaskPredictJob(TranslateJob):
    """Pairs with masked target tokens."""

    used_settings = ("rdrop",)

    def make_objective(self) -> Objective:
        return MaskPredictObjective(self.predictor.module, self.run.train.smoothing, self.run.data.rdrop)

    def make_dataset(self) -> PairDataset:
        predictor, run = self.predictor, self.run
        refuse_packed(run.data.packed, run.model.family)
        context = longest_target(run, predictor.context)
        return MaskPredictDataset(
            self.splits["train"], predictor.source, predictor.target, run.data, run.train, context
        )


def longest_target(run: Run, context: int | None) -> int:
    """The most tokens of a target, with END, of a model that predicts lengths."""
    longest: int = run.model.max_length + 1
    return longest if context is None else min(longest, context)


def refuse_packed(packed: bool, name: str) -> None:
    """Refuse packed rows, which these families do not read."""
    if packed:
        raise UserError(f"data.packed is true, but model.family={name} trains on padded rows; set it to false")
