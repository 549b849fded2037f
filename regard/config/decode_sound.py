"""The settings of transcription: those of every family, and those of speech and Whisper."""

from typing import Annotated, Literal

from pydantic import Field

from .data.sound import Fraction
from .decode import DecodeBase, SearchStrategy, TargetDecode
from .strategies import Beam, BestPath, DecodeStrategy, Greedy, WhisperBeam
from .types import Base, Count, Positive

Temperature = Annotated[float, Field(ge=0, le=10)]


class RecordingDecode(TargetDecode):
    """Decoding of recordings. max_tokens=0: a limit from the length of each recording."""

    batch: Positive = 16  # recordings per batch
    max_segment_seconds: Annotated[float, Field(ge=0)] = 0.0  # longer recordings are cut at pauses; 0: the
    # longest recording of the training, which also limits this setting when the training begins


class TranscribeDecode(RecordingDecode):
    """Decoding of families that write token by token alone."""

    strategy: SearchStrategy = Beam()


class SpeechDecode(RecordingDecode):
    """Decoding of families whose encoder may predict the tokens too, by CTC."""

    strategy: Annotated[DecodeStrategy | BestPath, Field(discriminator="kind")] = Beam()
    ctc: Fraction = 0.3  # weight of the CTC scores in beam search; 0: the decoder alone, 1: CTC alone


class Windows(Base):
    """How Whisper decodes the windows of a recording."""

    timestamps: bool | Literal["long"] = True  # write segments with their times; long: of recordings alone that are
    # longer than a window
    sequential: bool = True  # the next window begins where the last complete segment ended; false: the recording is cut
    # at its pauses, and the windows of one recording are decoded together: faster, with worse segments where there are
    # no pauses
    condition_on_previous: bool = True  # a window reads the text before it, which keeps names and punctuation
    # consistent; false stops a mistake from spreading to later windows. Without `sequential` it has no effect
    temperatures: Annotated[tuple[Temperature, ...], Field(min_length=1)] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    # a window is decoded at the first; if its text is not good, at the next, by sampling; [0]: once, and no sampling
    compression_ratio_threshold: Annotated[float, Field(ge=0)] = 2.4  # text that zlib makes smaller than this repeats
    # itself and is not good; 0: off
    logprob_threshold: Annotated[float, Field(le=0)] = -1.0  # text whose mean log-probability is lower is not good; 0:
    # off
    no_speech_threshold: Fraction = 0.6  # where the probability of no speech is higher and the text is below
    # `logprob_threshold`, the window has no text; 1: off
    seed: Count = 1  # of samples at temperatures above 0


class WhisperDecode(DecodeBase):
    """Decoding of Whisper. max_tokens=0: as many as the model reads."""

    strategy: Annotated[Greedy | WhisperBeam, Field(discriminator="kind")] = WhisperBeam()  # how temperature 0 decodes
    batch: Positive = 16  # windows that are decoded together: of different recordings, or of one with
    # `windows.sequential=false`
    language: str = ""  # of the recordings, by code or name; "": detected
    task: Literal["transcribe", "translate"] = "transcribe"  # translate: into English
    prompt: str = ""  # text before the recording: names and spelling to expect; text of earlier windows pushes it out
    windows: Windows = Windows()
