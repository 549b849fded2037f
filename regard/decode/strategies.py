"""Decoding strategies as frozen values, each with only its own settings. A request carries one.

`kind` tells them apart in JSON. The score of a text is its log-probability / length^length_penalty.
"""

from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

EarlyStopping: TypeAlias = Literal["exact", "first", "heuristic", "never"]


@dataclass(frozen=True)
class Greedy:
    """The likeliest token at every step."""

    length_penalty: float = 1.0  # of every strategy: the score of a hypothesis is Σ log p / length^this
    kind: Literal["greedy"] = "greedy"


@dataclass(frozen=True)
class Sample:
    """`n` samples. A sample depends on the input, the seed and its number, and on nothing else."""

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


DecodeStrategy: TypeAlias = Greedy | Sample | Beam


class StrategySettings(Protocol):
    """The settings decode.* that choose a strategy, in their flat form."""

    @property
    def kind(self) -> Literal["greedy", "beam", "sample"]: ...
    @property
    def beam(self) -> int: ...
    @property
    def nbest(self) -> int: ...
    @property
    def length_penalty(self) -> float: ...
    @property
    def early_stopping(self) -> EarlyStopping: ...
    @property
    def temperature(self) -> float: ...
    @property
    def top_k(self) -> int: ...
    @property
    def top_p(self) -> float: ...
    @property
    def min_p(self) -> float: ...
    @property
    def seed(self) -> int: ...


def strategy_from(decode: StrategySettings) -> DecodeStrategy:
    """The strategy that the flat settings decode.* describe."""
    if decode.kind == "greedy":
        return Greedy(decode.length_penalty)
    if decode.kind == "beam":
        return Beam(decode.beam, decode.nbest, decode.length_penalty, decode.early_stopping)
    shape = decode.temperature, decode.top_k, decode.top_p, decode.min_p
    return Sample(*shape, decode.nbest, decode.seed, decode.length_penalty)
