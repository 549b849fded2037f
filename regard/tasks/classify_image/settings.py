"""The settings of the classification of images."""

from typing import Any, TypeAlias

from ...config.data.images import ImageData
from ...config.losses import SmoothedLoss
from ...config.run import Run
from ...config.task_settings import ACCURACY, F1, LOSS, TaskSettings
from ...config.types import Base, Count, Positive


class ImageDecode(Base):
    """Predictions and embeddings of images."""

    top: Count = 0  # number of most likely labels, with probabilities; 0: the best one only
    normalize: bool = True  # embeddings have length 1
    batch: Positive = 32  # images per batch


SETTINGS = TaskSettings(
    ImageData, ImageDecode, (LOSS, ACCURACY, F1), head="class", objective=SmoothedLoss, tokenizer=Base
)

ImageRun: TypeAlias = Run[ImageData, ImageDecode, Any, SmoothedLoss]
