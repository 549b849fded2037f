"""The settings of masked language modeling."""

from ...config.data.texts import MaskData
from ...config.decode import EncoderDecode
from ...config.losses import SmoothedLoss
from ...config.task_settings import ACCURACY, LOSS, PERPLEXITY, TaskSettings

SETTINGS = TaskSettings(MaskData, EncoderDecode, (LOSS, PERPLEXITY, ACCURACY), head="words", objective=SmoothedLoss)
