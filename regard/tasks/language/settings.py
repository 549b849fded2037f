"""The settings of language modeling."""

from typing import Any, TypeAlias

from pydantic import field_validator

from ...config.data.texts import TextData
from ...config.decode import DecodeBase, SearchStrategy
from ...config.losses import SmoothedLoss
from ...config.run import Run
from ...config.strategies import Sample
from ...config.task_settings import BITS_PER_BYTE, LOSS, PERPLEXITY, WORD_PERPLEXITY, TaskSettings
from ...config.types import Count, Positive, Strings


class LanguageDecode(DecodeBase):
    """Decoding of language models."""

    strategy: SearchStrategy = Sample()
    max_tokens: Positive = 256  # of the continuation, including END
    max_length: Count = 0  # of prompt and continuation; 0: any. A new max_tokens replaces it
    min_length: Count = 0  # of prompt and continuation, before END. A new min_tokens replaces it
    stop: Strings = ()  # stop strings: the output ends before the first of them, such as ["\n\n", "class "]
    add_start: bool = True  # START before the prompt: it begins a text; false: it comes from the middle of one

    @field_validator("stop")
    @classmethod
    def _check_stop(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not all(value):
            raise ValueError('decode.stop has an empty string; expected text, such as ["\\n"]')
        return value


SETTINGS = TaskSettings(
    TextData, LanguageDecode, (LOSS, PERPLEXITY, BITS_PER_BYTE, WORD_PERPLEXITY), objective=SmoothedLoss
)

LanguageRun: TypeAlias = Run[TextData, LanguageDecode, Any, SmoothedLoss]
