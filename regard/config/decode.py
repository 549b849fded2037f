"""The settings of decoding. A family that decodes in another way has sections of its own (`ModelSpec.settings`)."""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, field_validator, model_validator

from .strategies import (
    AnyStrategy,
    Argmax,
    Average,
    Beam,
    DecodeStrategy,
    MaskPredict,
    NoisyParallel,
    OutputRules,
    TokenRules,
)
from .types import Base, Count, Positive, Strings

SearchStrategy: TypeAlias = Annotated[DecodeStrategy, Field(discriminator="kind")]


class WritingDecode(Base):
    """Settings of every task that writes text."""

    strategy: Annotated[AnyStrategy, Field(discriminator="kind")] = Beam()  # how the output is searched for
    max_tokens: Count = 0  # of the output, after the prefix; 0: a limit from the length of the input
    batch: Positive = 64  # texts per batch


class DecodeBase(WritingDecode):
    """Settings of models that write token by token."""

    min_tokens: Count = 0  # of the output, before END
    repetition_penalty: Annotated[float, Field(gt=0)] = 1.0  # above 1: tokens of prompt and output become less likely;
    # beam search applies it to log-probabilities, other strategies to logits
    rules: OutputRules = OutputRules()

    @model_validator(mode="after")
    def _check_limits(self) -> "DecodeBase":
        if 0 < self.max_tokens < self.min_tokens:
            raise ValueError(
                f"decode.min_tokens is {self.min_tokens}, above decode.max_tokens={self.max_tokens}; lower it"
            )
        return self


class TargetDecode(DecodeBase):
    """Decoding of encoder-decoder tasks. max_tokens=0: a limit from the length of each source."""

    prefix: str = ""  # start of every output
    include: Strings = ()  # phrases that every output must contain: "a phrase,another"
    exclude: Strings = ()  # phrases that no output may contain

    @field_validator("include", "exclude")
    @classmethod
    def _check_phrases(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not all(phrase.strip() for phrase in value):
            raise ValueError("it has an empty phrase; expected words, with a comma between phrases")
        return value

    @model_validator(mode="after")
    def _check_include(self) -> "TargetDecode":
        if self.include and self.strategy.kind != "beam":
            kind = self.strategy.kind
            raise ValueError(f"decode.include needs beam search but decode.strategy is {kind}; use beam")
        return self


class Seq2SeqDecode(TargetDecode):
    """Decoding of tasks that write a text for a text."""

    strategy: SearchStrategy = Beam()
    rules: TokenRules = TokenRules()
    split_sentences: bool = False  # translate sentence by sentence

    @model_validator(mode="after")
    def _check_sentences(self) -> "Seq2SeqDecode":
        if self.split_sentences and self.strategy.n > 1:
            raise ValueError(
                f"decode.strategy.n is {self.strategy.n} but decode.split_sentences joins one translation per "
                "sentence; use 1"
            )
        if self.include and self.split_sentences:
            raise ValueError("decode.include and decode.split_sentences cannot be combined; use one of the two")
        return self


class ParallelDecode(WritingDecode):
    """Decoding of families that write all tokens at once: settings of tokens before a token do not exist."""

    strategy: Annotated[Argmax | Average | NoisyParallel | MaskPredict, Field(discriminator="kind")] = Argmax()
    split_sentences: bool = False  # translate sentence by sentence


class FertilityDecode(ParallelDecode):
    """Decoding of source tokens that are copied by their fertilities."""

    strategy: Annotated[Argmax | Average | NoisyParallel, Field(discriminator="kind")] = Argmax()


class CtcDecode(ParallelDecode):
    """Decoding of tokens and blanks."""

    strategy: Argmax = Argmax()


class MaskPredictDecode(ParallelDecode):
    """Decoding of masked targets."""

    strategy: MaskPredict = MaskPredict()


class EncoderDecode(Base):
    """Predictions and embeddings of encoder tasks."""

    top: Count = 0  # number of most likely answers, with probabilities; 0: the best one only
    pooling: Literal["mean", "first", "max"] = "mean"  # of embeddings: over all tokens, or the first token
    normalize: bool = True  # embeddings have length 1
    batch: Positive = 64  # texts per batch
