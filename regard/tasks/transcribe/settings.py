"""The settings of transcription."""

from typing import Any, TypeAlias

from ...config.data.sound import SoundData, TranscriptData, WhisperData
from ...config.decode_sound import TranscribeDecode, WhisperDecode
from ...config.losses import SmoothedLoss
from ...config.run import Run
from ...config.task_settings import CER, EXACT, LOSS, PERPLEXITY, WER, SpeechEval, TaskSettings

SETTINGS = TaskSettings(
    SoundData, TranscribeDecode, (LOSS, PERPLEXITY, WER, CER, EXACT), SpeechEval, objective=SmoothedLoss
)

TranscribeRun: TypeAlias = Run[TranscriptData, Any, Any, SmoothedLoss]
WhisperRun: TypeAlias = Run[WhisperData, WhisperDecode, Any, SmoothedLoss]
