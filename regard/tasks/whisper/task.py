"""The predictor of Whisper models: the task `transcribe` with languages, translation into English, and timestamps."""

from functools import cached_property

import torch

from ...families.protocols import SpeechModel
from ...processors.sound.log_mel import AudioProcessor
from ...processors.text.whisper import WhisperTokenizer
from ..transcribe.settings import WhisperRun
from ..transcribe.task import TranscribePredictor
from .transcriber import WhisperTranscriber


class WhisperPredictor(TranscribePredictor):
    """The text of every recording: a path, bytes, samples, or (samples, rate), in the language that is spoken or in
    English. Memory does not grow with the length of a recording.
    """

    run: WhisperRun
    sound: AudioProcessor
    target: WhisperTokenizer
    window = 32  # recordings whose windows are in memory at once

    def __init__(
        self,
        run: WhisperRun,
        model: SpeechModel,
        sound: AudioProcessor,
        target: WhisperTokenizer,
        device: torch.device,
    ) -> None:
        super().__init__(run, model, sound, target, device)
        self.filters = ()  # the rules of decode.* name all tokens that are never written

    @property
    def context(self) -> int:
        """The most tokens of prompt and text."""
        tokens: int = self.run.model.positions.tokens
        return tokens

    @property
    def longest_segment(self) -> float:
        return self.sound.seconds

    @cached_property
    def transcriber(self) -> WhisperTranscriber:
        return WhisperTranscriber(self.run, self.context_of_model(), self.target, self.sound, self.plan)
