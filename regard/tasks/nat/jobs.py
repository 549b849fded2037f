"""The training of families that write all tokens at once."""

from typing import Any, TypeAlias

import torch

from ...config.data.texts import AlignedPairData, PairData
from ...config.decode import WritingDecode
from ...config.losses import TEACHER, FertilityLoss, MaskPredictLoss
from ...config.run import Run
from ...data.datasets.pairs import PairDataset
from ...errors import UserError
from ...families.protocols import as_module
from ...training.objective import Objective
from ..base import vocabulary
from ..parallel.data import CtcTranslationDataset, EvenDataset, FertilityDataset, MaskPredictDataset
from ..parallel.objectives import (
    CtcTranslationObjective,
    FertilityObjective,
    FrozenTeacher,
    MaskPredictObjective,
    TaughtFertilityObjective,
)
from ..parallel.teacher import open_teacher
from ..translate.task import TranslateJob

FertilityRun: TypeAlias = Run[AlignedPairData, WritingDecode, Any, FertilityLoss]
MaskPredictRun: TypeAlias = Run[PairData, WritingDecode, Any, MaskPredictLoss]


class FertilityJob(TranslateJob):
    """Pairs with the fertilities of their source tokens."""

    run: FertilityRun

    def make_objective(self) -> Objective:
        student, run = self.predictor, self.run
        settings = run.train.objective
        if not settings.teacher_weight:
            return FertilityObjective(student.module, settings)
        teacher = open_teacher(settings.teacher, student.device, TEACHER)
        for field, mine, theirs in (
            ("source", student.source, teacher.source),
            ("target", student.target, teacher.target),
        ):
            if vocabulary(mine) != vocabulary(theirs):
                raise UserError(
                    f"{settings.teacher} has another {field} vocabulary than this run and cannot fine-tune it; train "
                    f"the run that it starts from with {TEACHER}, too"
                )
        contexts = [context for context in (student.context, teacher.context) if context is not None]
        longest = min(contexts) if contexts else None
        target = student.target
        hidden = torch.tensor([target.pad, target.start, target.end], device=student.device)
        frozen = FrozenTeacher(as_module(teacher.model), target.start, target.end, hidden, longest)
        return TaughtFertilityObjective(student.module, settings, frozen)

    def make_dataset(self) -> PairDataset:
        predictor, run = self.predictor, self.run
        refuse_packed(run.data.packed, run.model.family)
        arguments = self.splits["train"], predictor.source, predictor.target, run.data, run.train
        if run.model.fertilities:
            return FertilityDataset(*arguments, predictor.context, run.model.max_fertility)
        if file := run.data.alignments:
            raise UserError(f"data.alignments is {file}, but model.fertilities=false copies evenly; leave out one")
        return EvenDataset(*arguments, longest_target(run, predictor.context))


class MaskPredictJob(TranslateJob):
    """Pairs with masked target tokens."""

    run: MaskPredictRun

    def make_objective(self) -> Objective:
        return MaskPredictObjective(self.predictor.module, self.run.train.objective)

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


class CtcTranslationJob(TranslateJob):
    """Pairs with copies of their source tokens."""

    def make_objective(self) -> Objective:
        return CtcTranslationObjective(self.predictor.module, self.predictor.target.pad)

    def make_dataset(self) -> PairDataset:
        predictor, run = self.predictor, self.run
        refuse_packed(run.data.packed, run.model.family)
        arguments = self.splits["train"], predictor.source, predictor.target, run.data, run.train
        return CtcTranslationDataset(*arguments, predictor.context, run.model.upsample)
