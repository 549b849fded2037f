"""From the strategies of requests to the settings decode.* of a run."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict
from typing import TypeVar

from ...config.decode import NEUTRAL_SAMPLING, DecodeBase
from ...config.strategies import Beam, BestPath, DecodeStrategy, Greedy, ParallelStrategy, Sample
from ...config.token_rules import TokenRules

T = TypeVar("T")


def strategy_settings(strategy: DecodeStrategy | BestPath | ParallelStrategy | None) -> dict[str, object]:
    """A strategy as decode.*; none: the run's own settings hold."""
    match strategy:
        case None:
            return {}
        case Greedy() | BestPath():
            own: dict[str, object] = {"nbest": 1}
        case Beam(size, n):
            own = {"beam": size, "nbest": n, "early_stopping": strategy.early_stopping}
        case Sample(temperature, top_k, top_p, min_p, n, seed):
            own = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "nbest": n, "seed": seed}
        case _:
            own = {"nbest": 1, **asdict(strategy)}
    return {**NEUTRAL_SAMPLING, "kind": strategy.kind, "length_penalty": strategy.length_penalty, **own}


def rule_settings(rules: TokenRules | None, section: type[DecodeBase]) -> dict[str, object]:
    """Rules as decode.*; none: the run's own settings hold."""
    known = section.model_fields
    return {name: value for name, value in asdict(rules).items() if name in known or value} if rules else {}


def number_of_texts(strategy: DecodeStrategy | BestPath | ParallelStrategy | None, settings: DecodeBase) -> int:
    """How many texts a strategy gives; none: the one of the run's settings."""
    if strategy is None:
        return settings.nbest
    return strategy.n if isinstance(strategy, Beam | Sample) else 1


def group_indices(items: Sequence[T], key: Callable[[T], Hashable]) -> list[list[int]]:
    """The indices of items with equal keys, in the order of their first item."""
    groups: dict[Hashable, list[int]] = {}
    for index, item in enumerate(items):
        groups.setdefault(key(item), []).append(index)
    return list(groups.values())
