"""The settings of losses (`train.objective.*`). A task names one of them, and a family may have its own."""

from typing import Annotated

from pydantic import Field, model_validator

from .types import Base, Share

TEACHER = "train.objective.teacher"  # the setting that names the teacher of a training
Weight = Annotated[float, Field(ge=0)]


class SmoothedLoss(Base):
    """A cross-entropy."""

    smoothing: Share = 0.1  # label smoothing


class LabelLoss(SmoothedLoss):
    """The loss of classification."""

    rdrop: Weight = 0.0  # weight of the R-Drop loss (2106.14448): two passes per text, symmetric KL divergence


class TaughtLoss(Base):
    """A loss of translation by a run that learns from another one."""

    teacher: str = ""  # a run whose tokenizers are used
    teacher_init: bool = False  # begin with the weights of the teacher that fit, by name and shape

    @model_validator(mode="after")
    def _check_teacher(self) -> "TaughtLoss":
        for name in ("teacher_weight", "teacher_init"):
            if not self.teacher and (value := dict(self).get(name)):
                value = str(value).lower()
                raise ValueError(
                    f"train.objective.{name} is {value}, but no run teaches; give one with train.objective.teacher=RUN"
                )
        return self


class TranslationLoss(TaughtLoss, SmoothedLoss):
    """The loss of translation token by token."""


class FertilityLoss(TranslationLoss):
    """The loss of translation by copies of source tokens."""

    teacher_weight: Share = 0.0  # of the teacher's reverse KL divergence and policy gradient; 0.25 in the paper
    glancing: Share = 0.0  # target tokens shown in training, as a fraction of those that are wrong (2008.07905);
    # 0.5 is common


class MaskPredictLoss(TranslationLoss):
    """The loss of masked target tokens."""

    rdrop: Weight = 0.0  # weight of the R-Drop loss (2106.14448): two passes per pair, symmetric KL divergence
