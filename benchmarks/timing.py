"""Fair timing: the ways take turns, and what is reported is the ratio of medians and how far single rounds stray."""

import statistics
import time
from collections.abc import Callable, Mapping

import torch

Way = Callable[[int], float]  # does the work of a round, which has a number; says how much that was


def rounds(ways: Mapping[str, Way], count: int, device: torch.device, warm: bool = False) -> dict[str, list[float]]:
    """Work per second of every way in every round: A B A B …, after each has done the first round unwatched; `warm`:
    it has done so already."""
    for go in () if warm else ways.values():
        go(0)
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(count):
        for name, go in ways.items():
            settle(device)
            began = time.perf_counter()
            work = go(number)
            settle(device)
            rates[name].append(work / (time.perf_counter() - began))
    return rates


def settle(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def ratio(ours: list[float], theirs: list[float]) -> tuple[float, float, float]:
    """How many times faster ours is: by the medians, and the smallest and largest of the single rounds."""
    single = [a / b for a, b in zip(ours, theirs, strict=True)]
    return statistics.median(ours) / statistics.median(theirs), min(single), max(single)
