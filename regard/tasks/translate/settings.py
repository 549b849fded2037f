"""The settings of translation."""

from typing import Any, TypeAlias

from ...config.data.base import PackedData
from ...config.data.texts import PairData, PairTokenizerConfig
from ...config.decode import Seq2SeqDecode, WritingDecode
from ...config.losses import TaughtLoss, TranslationLoss
from ...config.run import Run
from ...config.task_settings import BLEU, CHRF, EXACT, LOSS, PERPLEXITY, TaskSettings, TextEval

SETTINGS = TaskSettings(
    PairData,
    Seq2SeqDecode,
    (LOSS, PERPLEXITY, BLEU, CHRF, EXACT),
    TextEval,
    objective=TranslationLoss,
    tokenizer=PairTokenizerConfig,
)

TranslateRun: TypeAlias = Run[PairData, WritingDecode, Any, TaughtLoss]
PairRun: TypeAlias = Run[PackedData, WritingDecode, Any, Any]
"""A run of any task that writes texts from texts."""
