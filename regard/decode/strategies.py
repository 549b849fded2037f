"""Decoding strategies as frozen values, each with only its own settings. A request carries one."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

EarlyStopping: TypeAlias = Literal["exact", "first", "heuristic"]


@dataclass(frozen=True)
class Greedy:
    """The likeliest token at every step."""


@dataclass(frozen=True)
class Sample:
    """`n` samples. A sample depends on the input, the seed and its number, and on nothing else."""

    temperature: float = 1.0
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    min_p: float = 0.0
    n: int = 1
    seed: int = 1


@dataclass(frozen=True)
class Beam:
    """The `n` best hypotheses of a beam search."""

    size: int = 5
    n: int = 1
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = "exact"


DecodeStrategy: TypeAlias = Greedy | Sample | Beam
