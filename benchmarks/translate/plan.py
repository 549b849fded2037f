"""How much is done, by device and size."""

from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Literal

import torch

from regard.families import transformer

SIZES = ("base", *(size for size in transformer.SIZES if size != "base"))


@dataclass(frozen=True)
class Plan:
    size: str
    vocab: int = 32000
    corpus: int = 20_000  # sentence pairs that are cut into updates
    sentences: int = 16  # in an update, on average
    updates: int = 25  # timed, of each program
    precision: Literal["fp32", "bf16"] = "fp32"  # of training
    rows: int = 16  # sentences decoded at once
    tokens: int = 40  # of every output
    family: ModuleType = transformer


def planned(size: str, device: torch.device) -> Plan:
    plan = Plan(size)
    if device.type == "cuda":
        plan = replace(plan, corpus=50_000, sentences=256, precision="bf16", rows=64)
    if size == "tiny":
        plan = replace(plan, vocab=500, corpus=400, sentences=4, updates=4, rows=3, tokens=7)
    return plan


def model(plan: Plan, **others: Any) -> Any:
    """The config of our model: as the paper has it, and in Marian's form."""
    shape = plan.family.SIZES[plan.size] | {"size": plan.size, "vocab": plan.vocab} | others
    return plan.family.Config(**shape, positions={"kind": "sinusoid", "layout": "halves"})
