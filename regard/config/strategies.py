"""Decoding strategies and token rules as frozen values. A request carries one strategy and its rules.

`kind` tells them apart in JSON. The score of a text is its log-probability / length^length_penalty.
"""

from dataclasses import dataclass, fields
from itertools import chain
from typing import Any, Literal, Protocol, TypeAlias

EarlyStopping: TypeAlias = Literal["exact", "first", "heuristic", "never"]


@dataclass(frozen=True)
class Greedy:
    """The likeliest token at every step."""

    length_penalty: float = 1.0  # of every strategy: the score of a hypothesis is Σ log p / length^this
    kind: Literal["greedy"] = "greedy"


@dataclass(frozen=True)
class Sample:
    """`n` samples. A sample depends only on the input, the seed and its number."""

    temperature: float = 1.0
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    min_p: float = 0.0
    n: int = 1
    seed: int = 1
    length_penalty: float = 1.0
    kind: Literal["sample"] = "sample"


@dataclass(frozen=True)
class Beam:
    """The `n` best hypotheses of a beam search."""

    size: int = 5
    n: int = 1
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = "exact"
    kind: Literal["beam"] = "beam"


@dataclass(frozen=True)
class BestPath:
    """The likeliest token or blank of CTC at every position of the encoder, without a search."""

    length_penalty: float = 1.0
    kind: Literal["ctc"] = "ctc"


@dataclass(frozen=True)
class Argmax:
    """All tokens at once, for the likeliest fertility of every source token."""

    merge_repeats: bool = False  # in all parallel strategies: drop a token equal to the one before it
    length_penalty: float = 1.0
    kind: Literal["argmax"] = "argmax"


@dataclass(frozen=True)
class Average:
    """All tokens at once, for the mean fertility of every source token, rounded."""

    merge_repeats: bool = False
    length_penalty: float = 1.0
    kind: Literal["average"] = "average"


@dataclass(frozen=True)
class NoisyParallel:
    """The best of several parallel translations, by the score of an autoregressive run (noisy parallel decoding).

    The first has the likeliest fertilities. The others are samples, which depend only on the input, the seed and their
    number.
    """

    teacher: str
    samples: int = 10
    seed: int = 1
    merge_repeats: bool = False
    length_penalty: float = 1.0
    kind: Literal["npd"] = "npd"


@dataclass(frozen=True)
class MaskPredict:
    """All tokens at once, `iterations` times: the least likely ones are masked and predicted again (1904.09324).

    The best of the `length_beam` likeliest lengths is kept; the score counts the log-probability of the length.
    """

    iterations: int = 10
    length_beam: int = 5
    merge_repeats: bool = False
    length_penalty: float = 1.0
    kind: Literal["mask-predict"] = "mask-predict"


DecodeStrategy: TypeAlias = Greedy | Sample | Beam
ParallelStrategy: TypeAlias = Argmax | Average | NoisyParallel | MaskPredict


class StrategySettings(Protocol):
    """The settings decode.* that choose a strategy, in their flat form."""

    @property
    def kind(self) -> Literal["greedy", "beam", "sample"]:
        """greedy, sample or beam."""

    @property
    def beam(self) -> int:
        """The beam size."""

    @property
    def nbest(self) -> int:
        """The number of returned hypotheses."""

    @property
    def length_penalty(self) -> float:
        """The exponent of the length that a score is divided by."""

    @property
    def early_stopping(self) -> EarlyStopping:
        """When a beam search ends."""

    @property
    def temperature(self) -> float:
        """The divisor of logits before sampling."""

    @property
    def top_k(self) -> int:
        """Sample among this many likeliest tokens; 0: all."""

    @property
    def top_p(self) -> float:
        """Sample among the likeliest tokens of this total probability."""

    @property
    def min_p(self) -> float:
        """Sample among tokens of this share of the largest probability."""

    @property
    def seed(self) -> int:
        """The seed of sampling."""


def strategy_from(decode: StrategySettings) -> DecodeStrategy:
    """The strategy that the flat settings decode.* describe."""
    if decode.kind == "greedy":
        return Greedy(decode.length_penalty)
    if decode.kind == "beam":
        return Beam(decode.beam, decode.nbest, decode.length_penalty, decode.early_stopping)
    shape = decode.temperature, decode.top_k, decode.top_p, decode.min_p
    return Sample(*shape, decode.nbest, decode.seed, decode.length_penalty)


class ParallelSettings(Protocol):
    """The settings decode.* that choose a strategy of a non-autoregressive family."""

    @property
    def kind(self) -> str:
        """The way to choose the length or the fertilities."""

    @property
    def samples(self) -> int:
        """The number of sampled fertilities per source."""

    @property
    def teacher(self) -> str:
        """The run that chooses among candidates."""

    @property
    def seed(self) -> int:
        """The seed of sampling."""

    @property
    def iterations(self) -> int:
        """The number of iterations of masking and predicting."""

    @property
    def length_beam(self) -> int:
        """The number of lengths that are tried."""

    @property
    def merge_repeats(self) -> bool:
        """Whether repeated tokens become one."""

    @property
    def length_penalty(self) -> float:
        """The exponent of the length that a score is divided by."""


def parallel_strategy_from(decode: ParallelSettings) -> ParallelStrategy:
    """The strategy that the flat settings decode.* describe."""
    shared = decode.merge_repeats, decode.length_penalty
    match decode.kind:
        case "argmax":
            return Argmax(*shared)
        case "average":
            return Average(*shared)
        case "npd":
            return NoisyParallel(decode.teacher, decode.samples, decode.seed, *shared)
        case _:
            return MaskPredict(decode.iterations, decode.length_beam, *shared)


ID_RULES = "forced_bos_token_id", "forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens", "eos_token_id"


@dataclass(frozen=True)
class TokenRules:
    """The rules of one request. They have the names and meanings of generation_config.json in transformers."""

    no_repeat_ngram_size: int = 0  # n-grams of this size occur only once; 0: off
    encoder_no_repeat_ngram_size: int = 0  # n-grams of this size in the source do not occur in the output; 0: off
    bad_words_ids: tuple[tuple[int, ...], ...] = ()  # sequences that no text contains
    forced_bos_token_id: tuple[int, ...] = ()  # the first token
    forced_eos_token_id: tuple[int, ...] = ()  # the last token at the limit is one of these
    suppress_tokens: tuple[int, ...] = ()  # tokens that no text contains
    begin_suppress_tokens: tuple[int, ...] = ()  # tokens that begin no text
    eos_token_id: tuple[int, ...] = ()  # tokens that end a text; empty: END of the tokenizer
    renormalize_logits: bool = False  # scores are probabilities after all rules

    @classmethod
    def of(cls, settings: object) -> "TokenRules":
        """The rules among the settings decode.*; those that a task lacks have no effect."""
        values: dict[str, Any] = {rule.name: getattr(settings, rule.name, rule.default) for rule in fields(cls)}
        return cls(**values)

    def largest_ids(self) -> dict[str, int]:
        """The largest token that each rule names."""
        words = {"bad_words_ids": tuple(chain(*self.bad_words_ids))}
        named = {name: getattr(self, name) for name in ID_RULES} | words
        return {name: max(ids) for name, ids in named.items() if ids}
