"""The settings of a tokenizer that is trained on the data."""

from typing import Annotated, Literal

from pydantic import Field

from ..types import Base as Base
from ..types import Strings as Strings


class TokenizerConfig(Base):
    """Settings of a tokenizer that is trained on the data."""

    kind: Literal["bpe", "unigram", "wordpiece", "word", "space", "char", "byte"] = "bpe"
    vocab: Annotated[int, Field(ge=5)] = 8000  # four control symbols and at least one token
    joint: bool = True  # one tokenizer for source and target
    normalize: Literal["none", "nfc", "nfkc", "lower", "nfkc+lower"] = "none"
    symbols: Strings = ()  # never split
