"""The settings of transcription."""

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, model_validator

from ...config.data.sound import Fraction, SoundData
from ...config.decode import Seq2SeqDecode
from ...config.losses import SmoothedLoss
from ...config.run import Run
from ...config.task_settings import CER, EXACT, LOSS, PERPLEXITY, WER, SpeechEval, TaskSettings
from ...config.types import Positive

Temperature = Annotated[float, Field(ge=0, le=10)]


Temperatures = Annotated[tuple[Temperature, ...], Field(min_length=1)]


class TranscribeDecode(Seq2SeqDecode):
    """Decoding of recordings. max_tokens=0: a limit from the length of each recording."""

    kind: Literal["greedy", "beam", "sample", "ctc"] = "beam"  # type: ignore[assignment]  # ctc: the likeliest path
    ctc: Fraction = 0.3  # weight of the CTC scores in beam search; 0: the decoder alone, 1: CTC alone
    segment: Annotated[float, Field(ge=0)] = 0.0  # longer recordings are cut at pauses, in seconds; 0: data.max_seconds
    batch: Positive = 16  # recordings per batch
    # Whisper alone
    language: str = ""  # of the recordings, by code or name; "": detected
    task: Literal["transcribe", "translate"] = "transcribe"  # translate: into English
    timestamps: bool = True  # write segments with their times
    sequential: bool = True  # the next window begins where the last segment ends; false: at pauses, in batches
    prompt: str = ""  # text before the recording: names and spelling to expect
    condition_on_previous: bool = True  # a window reads the text of the ones before it
    temperatures: Temperatures = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)  # tried in turn, until the text is good enough
    compression_ratio_threshold: Annotated[float, Field(ge=0)] = 2.4  # text above it repeats itself; 0: any is good
    logprob_threshold: Annotated[float, Field(le=0)] = -1.0  # mean log-probability of good tokens; 0: any is good
    no_speech_threshold: Fraction = 0.6  # above it, a window that is unlikely too has no text; 1: off

    @model_validator(mode="after")
    def _check_recordings(self) -> "TranscribeDecode":
        if self.kind == "ctc" and self.nbest > 1:
            raise ValueError(f"decode.nbest is {self.nbest} but ctc finds one; use decode.kind=beam or sample")
        if self.split:
            raise ValueError("decode.split is true, but a recording has no sentences; decode.segment cuts long ones")
        if self.encoder_no_repeat_ngram_size:
            raise ValueError(
                f"decode.encoder_no_repeat_ngram_size is {self.encoder_no_repeat_ngram_size}, but a recording has no "
                "tokens; set it to 0"
            )
        return self


SETTINGS = TaskSettings(
    SoundData, TranscribeDecode, (LOSS, PERPLEXITY, WER, CER, EXACT), SpeechEval, objective=SmoothedLoss
)

TranscribeRun: TypeAlias = Run[SoundData, Any, Any, SmoothedLoss]
