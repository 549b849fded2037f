"""`python -m benchmarks translate`: training and decoding beside Marian, torch.nn.Transformer and CTranslate2."""

import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from regard.device import resolve_device

from ..report import Report
from . import decoding, training
from .workload import SIZES, make_workload

__all__ = ["PARTS", "SIZES", "main"]
PARTS = ("training", "decoding", "packed")  # packed: training, ours in packed rows beside Marian alone


def main(device: str, size: str, rounds: int, parts: tuple[str, ...]) -> Report:
    where = resolve_device(device)
    workload, sections = make_workload(size, where), []
    notes: list[str] = []
    if "training" in parts or "packed" in parts:
        print("timing training …", file=sys.stderr)
        sections.append(training.time(workload, where, rounds, notes, every="training" in parts))
    if "decoding" in parts:
        print("timing decoding …", file=sys.stderr)
        sections += decoding.time(workload, where, rounds, notes)
    return Report(
        "translate", environment(where) | {"size": size, "rounds": rounds}, sections, list(dict.fromkeys(notes))
    )


def environment(device: torch.device) -> dict[str, Any]:
    """The machine and the versions."""
    gpu = device.type == "cuda"
    found: dict[str, Any] = {"device": torch.cuda.get_device_name(device) if gpu else platform.machine()}
    found |= {"threads": torch.get_num_threads(), "torch": torch.__version__}
    for package in ("transformers", "ctranslate2"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found
