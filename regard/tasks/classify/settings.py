"""The settings of classification."""

from typing import Any, TypeAlias

from ...config.data.texts import LabelData
from ...config.decode import EncoderDecode
from ...config.losses import LabelLoss
from ...config.run import Run
from ...config.task_settings import ACCURACY, F1, LOSS, OTHER_TARGETS, TaskSettings
from ...config.types import Base, Share


class ClassifyEval(Base):
    """Evaluation of classification."""

    baseline: bool = True  # a bag of words, which scikit-learn fits to data.train, scored beside the model


class ClassifyDecode(EncoderDecode):
    """Predictions of classification."""

    threshold: Share = 0.5  # of several labels: the probability from which a text has a label


SETTINGS = TaskSettings(
    LabelData, ClassifyDecode, (LOSS, ACCURACY, F1, *OTHER_TARGETS), ClassifyEval, "class", objective=LabelLoss
)

ClassifyRun: TypeAlias = Run[LabelData, ClassifyDecode, Any, LabelLoss]
