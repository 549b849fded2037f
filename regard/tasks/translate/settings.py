"""The settings of translation."""

from ...config.data.texts import PairData
from ...config.decode import Seq2SeqDecode
from ...config.losses import TranslationLoss
from ...config.task_settings import BLEU, CHRF, EXACT, LOSS, PERPLEXITY, TaskSettings, TextEval

SETTINGS = TaskSettings(
    PairData, Seq2SeqDecode, (LOSS, PERPLEXITY, BLEU, CHRF, EXACT), TextEval, objective=TranslationLoss
)
