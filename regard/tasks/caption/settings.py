"""The settings of captions."""

from typing import Any, TypeAlias

from ...config.data.images import CaptionData
from ...config.decode import SearchStrategy, TargetDecode
from ...config.losses import SmoothedLoss
from ...config.run import Run
from ...config.strategies import Beam
from ...config.task_settings import BLEU, CHRF, CIDER, EXACT, LOSS, PERPLEXITY, TaskSettings, TextEval
from ...config.types import Positive


class CaptionDecode(TargetDecode):
    """Decoding of captions. max_tokens=0: at most 100 tokens."""

    strategy: SearchStrategy = Beam()
    batch: Positive = 32  # images per batch


SETTINGS = TaskSettings(
    CaptionData, CaptionDecode, (LOSS, PERPLEXITY, BLEU, CHRF, CIDER, EXACT), TextEval, objective=SmoothedLoss
)

CaptionRun: TypeAlias = Run[CaptionData, CaptionDecode, Any, SmoothedLoss]
