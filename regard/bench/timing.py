"""Fair timing: the ways take turns, and what is reported is the ratio of medians and how far single rounds stray."""

import statistics
import time
from collections.abc import Callable, Mapping


def rounds(ways: Mapping[str, Callable[[], object]], count: int, warmups: int = 1) -> dict[str, list[float]]:
    """Seconds of every way in every round: A B A B …, after each has run `warmups` times."""
    for go in [go for go in ways.values() for _ in range(warmups)]:
        go()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(count):
        for name, go in ways.items():
            began = time.perf_counter()
            go()
            seconds[name].append(time.perf_counter() - began)
    return seconds


def ratio(ours: list[float], theirs: list[float]) -> tuple[float, float, float]:
    """How many times faster ours is: by the medians, and the smallest and largest of the single rounds."""
    single = [b / a for a, b in zip(ours, theirs, strict=True)]
    return statistics.median(theirs) / statistics.median(ours), min(single), max(single)
