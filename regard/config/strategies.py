"""Decoding strategies and token rules as frozen values: slots and groups of decode.*, and fields of requests.

`kind` tells strategies apart. The score of a text is its log-probability / length^length_penalty.
"""

from dataclasses import dataclass, field, fields, replace
from itertools import chain
from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import AfterValidator, ConfigDict, Field

from .types import Count, Ids, Positive, Share

EarlyStopping: TypeAlias = Literal["exact", "first", "heuristic", "never"]
Penalty: TypeAlias = Annotated[float, Field(ge=-10, le=10)]
"""The exponent of the length that a score is divided by. It is bounded: length^this must stay finite."""
STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True)
class Greedy:
    """The likeliest token at every step."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    n: ClassVar[int] = 1  # texts for an input
    kind: Literal["greedy"] = field(default="greedy", kw_only=True)
    length_penalty: Penalty = 1.0


@dataclass(frozen=True)
class Sample:
    """`n` samples. A sample depends only on the input, the seed and its number."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    kind: Literal["sample"] = field(default="sample", kw_only=True)
    temperature: Annotated[float, Field(gt=0)] = 1.0  # below 1 favors likely tokens, above 1 gives more variety
    top_k: Count = 0  # among the k most likely tokens; 0: all
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0  # among the most likely tokens with this total probability
    min_p: Share = 0.0  # minimum probability, as a fraction of that of the most likely token
    n: Positive = 1  # number of samples for each input
    seed: Count = 1  # equal seeds and inputs give equal samples
    length_penalty: Penalty = 1.0


@dataclass(frozen=True)
class Beam:
    """The `n` best hypotheses of a beam search."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    kind: Literal["beam"] = field(default="beam", kw_only=True)
    size: Positive = 5  # hypotheses of a search (short: decode.beam)
    n: Positive = 1  # texts for each input, at most the size (short: decode.nbest)
    length_penalty: Penalty = 1.0
    early_stopping: EarlyStopping = "exact"  # exact: when no better output is possible; first: at `size` finished ones;
    # heuristic, never: as in Hugging Face

    def __post_init__(self) -> None:
        if self.n > self.size:
            raise ValueError(
                f"decode.strategy.n is {self.n}, above decode.strategy.size={self.size}; raise the size of the beam"
            )


@dataclass(frozen=True)
class WhisperBeam(Beam):
    """As in Whisper (2212.04356): `exact` would search for texts that go on behind the speech."""

    early_stopping: EarlyStopping = "first"  # first: at `size` finished ones; exact: when no better output is possible;
    # heuristic, never: as in Hugging Face


@dataclass(frozen=True)
class BestPath:
    """The likeliest token or blank of CTC at every position of the encoder, without a search."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    n: ClassVar[int] = 1
    kind: Literal["ctc"] = field(default="ctc", kw_only=True)
    length_penalty: Penalty = 1.0


@dataclass(frozen=True)
class Argmax:
    """All tokens at once, for the likeliest fertility of every source token."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    n: ClassVar[int] = 1
    kind: Literal["argmax"] = field(default="argmax", kw_only=True)
    merge_repeats: bool = False  # drop a token equal to the one before it
    length_penalty: Penalty = 1.0


@dataclass(frozen=True)
class Average:
    """All tokens at once, for the mean fertility of every source token, rounded."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    n: ClassVar[int] = 1
    kind: Literal["average"] = field(default="average", kw_only=True)
    merge_repeats: bool = False  # drop a token equal to the one before it
    length_penalty: Penalty = 1.0


def _require_teacher(value: str) -> str:
    if not value:
        raise ValueError(
            "decode.strategy=npd needs a run that scores its samples; give one with decode.strategy.teacher=RUN"
        )
    return value


@dataclass(frozen=True)
class NoisyParallel:
    """The best of several parallel translations, by the score of an autoregressive run (noisy parallel decoding).

    The first has the likeliest fertilities. The others are samples, which depend only on the input, the seed and their
    number.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    n: ClassVar[int] = 1
    kind: Literal["npd"] = field(default="npd", kw_only=True)
    teacher: Annotated[str, AfterValidator(_require_teacher), Field(validate_default=True)] = ""  # a run that writes
    # token by token and chooses among the samples
    samples: Positive = 10  # translations by random fertilities, among which the teacher chooses
    seed: Count = 1  # equal seeds and inputs give equal samples
    merge_repeats: bool = False  # drop a token equal to the one before it
    length_penalty: Penalty = 1.0


@dataclass(frozen=True)
class MaskPredict:
    """All tokens at once, `iterations` times: the least likely ones are masked and predicted again (1904.09324).

    The best of the `length_beam` likeliest lengths is kept; the score counts the log-probability of the length.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    n: ClassVar[int] = 1
    kind: Literal["mask-predict"] = field(default="mask-predict", kw_only=True)
    iterations: Positive = 10  # how often the least likely tokens are predicted again
    length_beam: Positive = 5  # lengths that are tried
    merge_repeats: bool = False  # drop a token equal to the one before it
    length_penalty: Penalty = 1.0


DecodeStrategy: TypeAlias = Greedy | Sample | Beam
ParallelStrategy: TypeAlias = Argmax | Average | NoisyParallel | MaskPredict
AnyStrategy: TypeAlias = DecodeStrategy | BestPath | ParallelStrategy


def with_one_text(strategy: AnyStrategy) -> AnyStrategy:
    """The strategy for the best text alone."""
    return replace(strategy, n=1) if isinstance(strategy, Sample | Beam) else strategy


def beam_for_one_text(strategy: AnyStrategy) -> Beam:
    """A beam search for the best text: that of the strategy if it is one."""
    return replace(strategy, n=1) if isinstance(strategy, Beam) else Beam()


def _require_one(value: tuple[int, ...]) -> tuple[int, ...]:
    if len(value) > 1:
        raise ValueError(f"it has {len(value)} tokens; expected one, with which every output begins")
    return value


def _refuse_empty(value: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    if not all(value):
        raise ValueError("it has an empty sequence; expected lists of token numbers, such as [[7, 12], [9]]")
    return value


ID_RULES = "forced_bos_token_id", "forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens", "eos_token_id"


@dataclass(frozen=True)
class OutputRules:
    """Rules of tokens by their ids. They have the names and meanings of generation_config.json in transformers."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    no_repeat_ngram_size: Count = 0  # so many tokens in a row occur only once in prompt and output; 0: any number of
    # times
    bad_words_ids: Annotated[tuple[Ids, ...], AfterValidator(_refuse_empty)] = ()  # token sequences that no output
    # contains, by number: [[7, 12], [9]]
    forced_bos_token_id: Annotated[Ids, AfterValidator(_require_one)] = ()  # number of the token that begins every
    # output, if only START stands before it
    forced_eos_token_id: Ids = ()  # numbers of tokens, one of which ends an output at the limit
    suppress_tokens: Ids = ()  # numbers of tokens that no output contains
    begin_suppress_tokens: Ids = ()  # numbers of tokens that begin no output
    eos_token_id: Ids = ()  # numbers of tokens that end an output; empty: END of the tokenizer
    renormalize_logits: bool = False  # scores are log-probabilities again after these rules

    def largest_ids(self) -> dict[str, int]:
        """The largest token that each rule names."""
        words = {"bad_words_ids": tuple(chain(*self.bad_words_ids))}
        named = {name: getattr(self, name) for name in ID_RULES} | words
        return {name: max(ids) for name, ids in named.items() if ids}


@dataclass(frozen=True)
class TokenRules(OutputRules):
    """The rules of outputs whose source is text, too."""

    encoder_no_repeat_ngram_size: Count = 0  # so many tokens in a row are not those of the source; 0: they may be

    @classmethod
    def of(cls, rules: OutputRules) -> "TokenRules":
        """The rules of an output, whatever its source."""
        return cls(**{rule.name: getattr(rules, rule.name) for rule in fields(rules)})
