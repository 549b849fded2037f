"""The settings of text to text."""

from typing import Any, TypeAlias

from ...config.data.texts import MixData, PairTokenizerConfig
from ...config.decode import Seq2SeqDecode
from ...config.losses import SmoothedLoss
from ...config.run import Run
from ...config.task_settings import BLEU, CHRF, EXACT, LOSS, PERPLEXITY, TaskSettings, TextEval

SETTINGS = TaskSettings(
    MixData,
    Seq2SeqDecode,
    (LOSS, PERPLEXITY, BLEU, CHRF, EXACT),
    TextEval,
    objective=SmoothedLoss,
    tokenizer=PairTokenizerConfig,
)

Text2TextRun: TypeAlias = Run[MixData, Seq2SeqDecode, Any, SmoothedLoss]
