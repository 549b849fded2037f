"""The settings of language modeling."""

from typing import Any, Literal, TypeAlias

from pydantic import field_validator

from ...config.data.texts import TextData
from ...config.decode import DecodeBase
from ...config.losses import SmoothedLoss
from ...config.merge import Settings
from ...config.run import Run
from ...config.task_settings import BITS_PER_BYTE, LOSS, PERPLEXITY, WORD_PERPLEXITY, TaskSettings
from ...config.types import Count, Positive, Strings


class LanguageDecode(DecodeBase):
    """Decoding of language models. Other kinds than sample ignore the settings of sampling."""

    kind: Literal["greedy", "beam", "sample"] = "sample"
    max_tokens: Positive = 256  # of the continuation, including END
    max_length: Count = 0  # of prompt and continuation; 0: any. A new max_tokens replaces it
    min_length: Count = 0  # of prompt and continuation, before END. A new min_tokens replaces it
    stop: Strings = ()  # stop strings: the output ends before the first of them
    add_start: bool = True  # START before the prompt: it begins a text; false: it comes from the middle of one

    def replaced_by(self, given: Settings) -> dict[str, float]:
        """A new limit of the continuation replaces a limit that includes the prompt."""
        pairs = (("max_tokens", "max_length"), ("min_tokens", "min_length"))
        return {old: 0 for new, old in pairs if new in given and getattr(self, old)}

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
