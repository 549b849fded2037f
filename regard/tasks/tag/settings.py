"""The settings of tagging."""

from typing import Any, TypeAlias

from ...config.data.texts import TagData
from ...config.decode import EncoderDecode
from ...config.losses import SmoothedLoss
from ...config.run import Run
from ...config.task_settings import ACCURACY, F1, LOSS, SPANS, TaskSettings

SETTINGS = TaskSettings(TagData, EncoderDecode, (LOSS, ACCURACY, F1, SPANS), head="tag", objective=SmoothedLoss)

TagRun: TypeAlias = Run[TagData, EncoderDecode, Any, SmoothedLoss]
