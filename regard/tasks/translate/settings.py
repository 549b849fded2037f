"""The settings of translation."""

from typing import Any, Literal, TypeAlias

from pydantic import model_validator

from ...config.data.base import PackedData
from ...config.data.texts import PairData, PairTokenizer
from ...config.decode import Seq2SeqDecode
from ...config.losses import TaughtLoss, TranslationLoss
from ...config.run import Run
from ...config.task_settings import BLEU, CHRF, EXACT, LOSS, PERPLEXITY, TaskSettings, TextEval
from ...config.types import Positive


class TranslateDecode(Seq2SeqDecode):
    """Decoding of translations. The last four kinds are for families that write all tokens at once."""

    kind: Literal["greedy", "beam", "sample", "argmax", "average", "npd", "mask-predict"] = "beam"  # type: ignore[assignment]
    samples: Positive = 10  # npd: fertilities that are tried
    teacher: str = ""  # npd: the run that chooses among the samples
    iterations: Positive = 10  # mask-predict: how often tokens are predicted
    length_beam: Positive = 5  # mask-predict: lengths that are tried
    merge_repeats: bool = False  # all tokens at once: a token that follows itself is left out

    @model_validator(mode="after")
    def _check_parallel(self) -> "TranslateDecode":
        if self.kind in PARALLEL_KINDS and self.nbest > 1:
            raise ValueError(f"decode.nbest is {self.nbest} but {self.kind} finds one; use 1")
        if self.kind == "npd" and not self.teacher:
            raise ValueError("decode.kind=npd needs a run that scores its samples; give one with decode.teacher=RUN")
        return self


PARALLEL_KINDS = ("argmax", "average", "npd", "mask-predict")  # of families that write all tokens at once


SETTINGS = TaskSettings(
    PairData,
    TranslateDecode,
    (LOSS, PERPLEXITY, BLEU, CHRF, EXACT),
    TextEval,
    objective=TranslationLoss,
    tokenizer=PairTokenizer,
)

TranslateRun: TypeAlias = Run[PairData, Any, Any, TaughtLoss]
PairRun: TypeAlias = Run[PackedData, Any, Any, Any]
"""A run of any task that writes texts from texts."""
