"""The settings of one model of texts, images and sound."""

from typing import Any, TypeAlias

from pydantic import model_validator

from ...config.data.mixed import MultitaskData
from ...config.decode import Seq2SeqDecode
from ...config.losses import SmoothedLoss
from ...config.run import Run
from ...config.task_settings import EXACT, LOSS, PERPLEXITY, SpeechEval, TaskSettings, TextEval


class MultitaskDecode(Seq2SeqDecode):
    """Decoding of texts, images and recordings. max_tokens=0: a limit from the length of each input."""

    task: str = ""  # the tag of the task; "": the only task of the run for this modality

    @model_validator(mode="after")
    def _check_inputs(self) -> "MultitaskDecode":
        refused: dict[str, Any] = {"split": False, "encoder_no_repeat_ngram_size": 0}
        for name, none in refused.items():
            if (value := getattr(self, name)) != none:
                raise ValueError(f"decode.{name} is {value!r}, which is for texts alone; leave it out")
        return self


class MultitaskEval(TextEval, SpeechEval):
    """Metrics of texts, and of transcripts."""


SETTINGS = TaskSettings(
    MultitaskData, MultitaskDecode, (LOSS, PERPLEXITY, EXACT), MultitaskEval, objective=SmoothedLoss
)

MultitaskRun: TypeAlias = Run[MultitaskData, Any, Any, SmoothedLoss]
