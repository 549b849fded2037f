"""The settings of one model of texts, images and sound."""

from typing import Any, TypeAlias

from ...config.data.mixed import MultitaskData
from ...config.decode import SearchStrategy, TargetDecode
from ...config.losses import SmoothedLoss
from ...config.run import Run
from ...config.strategies import Beam
from ...config.task_settings import EXACT, LOSS, PERPLEXITY, SpeechEval, TaskSettings, TextEval


class MultitaskDecode(TargetDecode):
    """Decoding of texts, images and recordings. max_tokens=0: a limit from the length of each input."""

    strategy: SearchStrategy = Beam()
    task: str = ""  # the tag of the task; "": the only task of the run for this modality


class MultitaskEval(TextEval, SpeechEval):
    """Metrics of texts, and of transcripts."""


SETTINGS = TaskSettings(
    MultitaskData, MultitaskDecode, (LOSS, PERPLEXITY, EXACT), MultitaskEval, objective=SmoothedLoss
)

MultitaskRun: TypeAlias = Run[MultitaskData, MultitaskDecode, Any, SmoothedLoss]
