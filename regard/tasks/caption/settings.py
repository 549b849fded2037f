"""The settings of captions."""

from typing import Any, TypeAlias

from pydantic import model_validator

from ...config.data.images import CaptionData
from ...config.decode import Seq2SeqDecode
from ...config.losses import SmoothedLoss
from ...config.run import Run
from ...config.task_settings import BLEU, CHRF, CIDER, EXACT, LOSS, PERPLEXITY, TaskSettings, TextEval
from ...config.types import Positive


class CaptionDecode(Seq2SeqDecode):
    """Decoding of captions. max_tokens=0: at most 100 tokens."""

    batch: Positive = 32  # images per batch

    @model_validator(mode="after")
    def _check_images(self) -> "CaptionDecode":
        if self.split:
            raise ValueError("decode.split is true, but an image has no sentences; set it to false")
        if self.encoder_no_repeat_ngram_size:
            raise ValueError(
                f"decode.encoder_no_repeat_ngram_size is {self.encoder_no_repeat_ngram_size}, but an image has no "
                "tokens; set it to 0"
            )
        return self


SETTINGS = TaskSettings(
    CaptionData, CaptionDecode, (LOSS, PERPLEXITY, BLEU, CHRF, CIDER, EXACT), TextEval, objective=SmoothedLoss
)

CaptionRun: TypeAlias = Run[CaptionData, CaptionDecode, Any, SmoothedLoss]
