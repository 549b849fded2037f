"""The settings of masked language modeling."""

from typing import Any, TypeAlias

from ...config.data.texts import MaskData
from ...config.decode import EncoderDecode
from ...config.losses import SmoothedLoss
from ...config.run import Run
from ...config.task_settings import ACCURACY, LOSS, PERPLEXITY, TaskSettings

SETTINGS = TaskSettings(MaskData, EncoderDecode, (LOSS, PERPLEXITY, ACCURACY), head="words", objective=SmoothedLoss)

MaskedRun: TypeAlias = Run[MaskData, EncoderDecode, Any, SmoothedLoss]
