"""The settings of text to text."""

from ...config.data.texts import MixData
from ...config.decode import Seq2SeqDecode
from ...config.losses import SmoothedLoss
from ...config.task_settings import BLEU, CHRF, EXACT, LOSS, PERPLEXITY, TaskSettings, TextEval

SETTINGS = TaskSettings(MixData, Seq2SeqDecode, (LOSS, PERPLEXITY, BLEU, CHRF, EXACT), TextEval, objective=SmoothedLoss)
