"""The settings of span corruption."""

from typing import Any, TypeAlias

from ...config.data.texts import SpanData
from ...config.decode import Seq2SeqDecode
from ...config.losses import SmoothedLoss
from ...config.run import Run
from ...config.task_settings import LOSS, PERPLEXITY, TaskSettings

SETTINGS = TaskSettings(SpanData, Seq2SeqDecode, (LOSS, PERPLEXITY), objective=SmoothedLoss)

SpanRun: TypeAlias = Run[SpanData, Seq2SeqDecode, Any, SmoothedLoss]
