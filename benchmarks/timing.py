"""Fair timing: the programs take turns. Reported are the ratio of medians and the range of single rounds."""

import statistics
import time
from collections.abc import Callable, Mapping

import torch

RunRound = Callable[[int], float]  # does the work of round number i and returns its amount


def rounds(
    programs: Mapping[str, RunRound], count: int, device: torch.device, warm: bool = False
) -> dict[str, list[float]]:
    """Work per second of every program in every round, in the order A B A B ….

    Each first runs one round as a warm-up, unless `warm` says that it has done so already.
    """
    for run_round in () if warm else programs.values():
        run_round(0)
    rates: dict[str, list[float]] = {name: [] for name in programs}
    for number in range(count):
        for name, run_round in programs.items():
            synchronize(device)
            began = time.perf_counter()
            work = run_round(number)
            synchronize(device)
            rates[name].append(work / (time.perf_counter() - began))
    return rates


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def ratio(ours: list[float], theirs: list[float]) -> tuple[float, float, float]:
    """How many times faster ours is: by the medians, and the minimum and maximum of the single rounds."""
    single = [a / b for a, b in zip(ours, theirs, strict=True)]
    return statistics.median(ours) / statistics.median(theirs), min(single), max(single)
