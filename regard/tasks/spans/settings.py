"""The settings of span corruption."""

from ...config.data.texts import SpanData
from ...config.decode import Seq2SeqDecode
from ...config.losses import SmoothedLoss
from ...config.task_settings import LOSS, PERPLEXITY, TaskSettings

SETTINGS = TaskSettings(SpanData, Seq2SeqDecode, (LOSS, PERPLEXITY), objective=SmoothedLoss)
