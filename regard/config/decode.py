"""The settings of decoding."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from .merge import Settings
from .types import Base, Count, Ids, Positive, Share, Strings

NEUTRAL_SAMPLING = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}  # values without effect


class DecodeBase(Base):
    """Settings of decoding for all tasks that write text."""

    kind: Literal["greedy", "beam", "sample"] = "beam"
    beam: Positive = 5
    length_penalty: Annotated[float, Field(ge=-10, le=10)] = 1.0  # bounded: length^this must stay finite
    nbest: Positive = 1  # when sampling, the number of samples
    max_tokens: Count = 0
    min_tokens: Count = 0  # before END
    early_stopping: Literal["exact", "first", "heuristic", "never"] = "exact"
    temperature: float = 1.0  # temperature, top_k, top_p, min_p and seed apply to sampling
    top_k: Count = 0  # 0: all
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    min_p: Share = 0.0  # fraction of the probability of the most likely token
    seed: Count = 1
    batch: Positive = 64  # texts per batch
    repetition_penalty: Annotated[float, Field(gt=0)] = 1.0  # above 1: tokens of prompt and output become less likely
    no_repeat_ngram_size: Count = 0  # so many tokens in a row occur only once in prompt and output; 0: off
    bad_words_ids: tuple[Ids, ...] = ()  # token sequences that no output contains
    forced_bos_token_id: Ids = ()  # the first token of an output; empty: any
    forced_eos_token_id: Ids = ()  # the last token at max_tokens is one of these; empty: any
    suppress_tokens: Ids = ()  # tokens that no output contains
    begin_suppress_tokens: Ids = ()  # tokens that begin no output
    eos_token_id: Ids = ()  # tokens that end an output; empty: END of the tokenizer
    renormalize_logits: bool = False  # normalize the scores after these settings

    def replaced_by(self, values: Settings) -> Mapping[str, float]:
        """Neutral values for settings that conflict with the new `values`."""
        return {}

    @field_validator("temperature")
    @classmethod
    def _check_temperature(cls, value: float) -> float:
        if value <= 0:
            raise ValueError(f"decode.temperature is {value:g}; expected more than 0 (decode.kind=greedy needs none)")
        return value

    @model_validator(mode="after")
    def _check_nbest(self) -> "DecodeBase":
        if self.kind == "greedy" and self.nbest > 1:
            raise ValueError(f"decode.nbest is {self.nbest} but greedy finds one; use decode.kind=beam or sample")
        if self.kind == "beam" and self.nbest > self.beam:
            raise ValueError(f"decode.nbest is {self.nbest}, above decode.beam={self.beam}; raise the beam")
        if 0 < self.max_tokens < self.min_tokens:
            raise ValueError(
                f"decode.min_tokens is {self.min_tokens}, above decode.max_tokens={self.max_tokens}; lower it"
            )
        return self

    @field_validator("forced_bos_token_id")
    @classmethod
    def _check_forced_start(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if len(value) > 1:
            raise ValueError(f"it has {len(value)} tokens; expected one, with which every output begins")
        return value

    @field_validator("bad_words_ids")
    @classmethod
    def _check_bad_words(cls, value: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
        if not all(value):
            raise ValueError("it has an empty sequence; expected lists of token numbers, such as [[7, 12], [9]]")
        return value


class Seq2SeqDecode(DecodeBase):
    """Decoding of encoder-decoder tasks. max_tokens=0: a limit from the length of each source."""

    prefix: str = ""  # start of every output
    include: Strings = ()  # phrases that every output must contain
    exclude: Strings = ()  # phrases that no output may contain
    split: bool = False  # translate sentence by sentence
    encoder_no_repeat_ngram_size: Count = 0  # so many tokens in a row are not those of the source; 0: off

    def replaced_by(self, values: Settings) -> Mapping[str, float]:
        """A kind other than sampling resets the settings of sampling."""
        changed = self.kind == "sample" != values.get("kind", "sample")
        return {name: neutral for name, neutral in NEUTRAL_SAMPLING.items() if changed}

    @field_validator("include", "exclude")
    @classmethod
    def _check_phrases(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not all(phrase.strip() for phrase in value):
            raise ValueError("it has an empty phrase; expected words, with a comma between phrases")
        return value

    @model_validator(mode="after")
    def _check_kind(self) -> "Seq2SeqDecode":
        for name, none in NEUTRAL_SAMPLING.items():
            value = getattr(self, name)
            if self.kind != "sample" and value != none:
                raise ValueError(
                    f"decode.{name} is {value:g} but decode.kind={self.kind} does not sample; set it to sample"
                )
        if self.split and self.nbest > 1:
            raise ValueError(f"decode.nbest is {self.nbest} but decode.split joins one translation per sentence; use 1")
        if self.include and self.kind != "beam":
            raise ValueError(f"decode.include needs beam search but decode.kind is {self.kind}; use decode.kind=beam")
        if self.include and self.split:
            raise ValueError("decode.include and decode.split cannot be combined; use one of the two")
        return self


class EncoderDecode(Base):
    """Predictions and embeddings of encoder tasks."""

    top: Count = 0  # number of most likely answers, with probabilities; 0: the best one only
    pooling: Literal["mean", "first", "max"] = "mean"  # of embeddings: over all tokens, or the first token
    normalize: bool = True  # embeddings have length 1
    batch: Positive = 64  # texts per batch
