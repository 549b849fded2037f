"""The settings of tasks that read sound."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ..types import Count, Positive
from .base import Data, DataFiles, TableData

Fraction = Annotated[float, Field(ge=0, le=1)]
Speed = Annotated[float, Field(ge=0.5, le=2)]
Decibels = Annotated[float, Field(ge=-20, le=100)]


class Recordings(Data):
    """Recordings as frames, and how they are changed in training."""

    max_seconds: Annotated[float, Field(gt=0)] = 30.0  # of a recording; longer ones are left out and counted
    rate: Annotated[int, Field(ge=1000, le=192_000)] = 16000  # samples per second; all recordings are resampled to it
    hop: Annotated[float, Field(gt=0, le=25)] = 10.0  # milliseconds from one frame to the next; usual is 10
    bins: Annotated[int, Field(ge=4, le=256)] = 80  # of the filterbank; usual are 80 for speech
    speed: tuple[Speed, ...] = ()  # training draws one of these speeds, such as 0.9,1,1.1: tempo, pitch and formants
    # change together; empty: unchanged
    noise: Fraction = 0.0  # how often training adds white or pink noise
    snr: tuple[Decibels, Decibels] = (5.0, 30.0)  # signal-to-noise ratio of that noise in decibels: from, to
    vtlp: tuple[Speed, Speed] = (1.0, 1.0)  # vocal tract length perturbation: training multiplies the frequencies by a
    # factor, from, to, drawn uniformly by its logarithm; formants move as if by a longer or shorter vocal tract, the
    # tempo is kept
    equalizer: Annotated[float, Field(ge=0, le=40)] = 0.0  # training adds a smooth curve of gains over the bins, as of
    # another microphone: the deviation of five bands in decibels; data.cmvn=utterance removes it again
    frame_masks: Count = 0  # SpecAugment (1904.08779): random ranges of frames that are masked
    frame_width: Count = 40  # the most frames of one, and at most a fifth of the recording
    bin_masks: Count = 0  # random ranges of bins that are masked
    bin_width: Count = 15  # the most bins of one

    @model_validator(mode="after")
    def _check_ranges(self) -> Self:
        if self.snr[0] > self.snr[1]:
            raise ValueError(f"data.snr is {self.snr}; expected the smaller number first")
        if self.vtlp[0] > self.vtlp[1]:
            raise ValueError(f"data.vtlp is {self.vtlp}; expected the smaller number first")
        if self.bin_masks and self.bin_width > self.bins:
            raise ValueError(f"data.bin_width is {self.bin_width}, above data.bins={self.bins}; lower it")
        return self


class Filterbanks(Recordings):
    """Recordings as filterbanks, which are normalized."""

    cmvn: Literal["global", "level", "utterance"] = "global"  # what normalizes frames: global: mean and deviation of
    # the training data; level: the same, after all recordings have one level; utterance: those of each recording


class RecordingTable(Recordings, TableData):
    """Recordings in tables."""


class Curriculum(Recordings):
    """Recordings with texts to write."""

    curriculum: bool = False  # the first epoch goes from short recordings to long ones (1512.02595)


class SoundSettings(Filterbanks, Curriculum):
    """Recordings with texts to write, beside other inputs."""


class TranscriptData(Curriculum, RecordingTable):
    """Recordings with their transcripts."""

    train: DataFiles = ()  # a table of path and text (TSV, CSV, JSONL …); a folder of recordings with a .txt beside
    # each; the layout of LibriSpeech; a .tar or .zip of these. Empty: Morse code
    max_tokens: Positive = 1000  # of a transcript; longer ones are left out
    examples: Positive = 20000  # embedded training recordings


class SoundData(TranscriptData, Filterbanks):
    """Recordings as filterbanks, with their transcripts."""


class WhisperData(TranscriptData):
    """Recordings as Whisper reads them: their language, and marks in their transcripts."""

    language: str = "en"  # of the recordings, by code or name
    task: Literal["transcribe", "translate"] = "transcribe"  # what the transcripts are; translate: English translations
    timestamps: bool = False  # keep timestamps in transcripts, such as <|1.20|>; false: drop them
    keep_prompts: bool = True  # keep what transcripts have between <|startofprev|> and <|startoftranscript|>

    @model_validator(mode="after")
    def _check_times(self) -> Self:
        if self.timestamps and any(speed != 1 for speed in self.speed):
            speeds = ",".join(f"{speed:g}" for speed in self.speed)
            raise ValueError(f"data.speed is {speeds}, which makes the times of data.timestamps wrong; leave one out")
        return self
