"""The settings of metrics that several tasks compute."""

from typing import Literal

from .types import Base


class TextEval(Base):
    """Metrics of tasks that write text. `auto` chooses by the script of the references."""

    tokenize: Literal[
        "auto", "13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "none", "spm", "flores101", "flores200"
    ] = "auto"  # of BLEU, by sacrebleu
    asian_support: Literal["auto", "on", "off"] = "auto"  # TER splits Chinese and Japanese into characters


class SpeechEval(Base):
    """Metrics of transcription."""

    normalize: Literal["none", "basic", "english"] = "none"  # of transcripts before they are compared
