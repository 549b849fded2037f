"""The workload of the translation benchmark, by device and size."""

from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Literal

import torch

from regard.families import transformer

SIZES = ("base", *(size for size in transformer.SIZES if size != "base"))


@dataclass(frozen=True)
class TranslateWorkload:
    """How much is trained and decoded."""

    size: str
    vocab: int = 32000
    corpus: int = 20_000  # sentence pairs that are batched
    sentences: int = 16  # in a step, on average
    steps: int = 25  # timed, of each program
    precision: Literal["fp32", "bf16"] = "fp32"  # of training
    rows: int = 16  # sentences decoded at once
    tokens: int = 40  # of every output
    family: ModuleType = transformer


def make_workload(size: str, device: torch.device) -> TranslateWorkload:
    workload = TranslateWorkload(size)
    if device.type == "cuda":
        workload = replace(workload, corpus=50_000, sentences=256, precision="bf16", rows=64)
    if size == "tiny":
        workload = replace(workload, vocab=500, corpus=400, sentences=4, steps=4, rows=3, tokens=7)
    return workload


def model_config(workload: TranslateWorkload, **others: Any) -> Any:
    """The config of our model: that of the paper, with Marian's position layout."""
    shape = workload.family.SIZES[workload.size] | {"size": workload.size, "vocab": workload.vocab} | others
    return workload.family.Config(**shape, positions={"kind": "sinusoid", "layout": "halves"})
