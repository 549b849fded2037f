"""`regard bench translate`: training and decoding beside Hugging Face Marian, torch.nn.Transformer and CTranslate2."""

import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from regard.device import resolve_device
from regard.training import optim as optim

from ..report import Report
from . import decoding, training
from .plan import SIZES, planned

__all__ = ["PARTS", "SIZES", "main"]
PARTS = ("training", "decoding", "packed")  # packed: of training, ours in packed rows beside Marian alone


def main(device: str, size: str, rounds: int, parts: tuple[str, ...]) -> Report:
    where = resolve_device(device)
    plan, sections = planned(size, where), []
    notes: list[str] = []
    if "training" in parts or "packed" in parts:
        print("timing training …", file=sys.stderr)
        sections.append(training.time(plan, where, rounds, notes, every="training" in parts))
    if "decoding" in parts:
        print("timing decoding …", file=sys.stderr)
        sections += decoding.time(plan, where, rounds, notes)
    return Report("translate", about(where) | {"size": size, "rounds": rounds}, sections, list(dict.fromkeys(notes)))


def about(device: torch.device) -> dict[str, Any]:
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
