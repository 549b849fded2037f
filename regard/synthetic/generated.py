"""Embedded examples that are made on access."""

from typing import ClassVar

import numpy as np

from ..data.source import Source

SEEDS = {"train": 1, "valid": 2, "test": 3}


class GeneratedSource(Source):
    """An example is a pure function of the split and its number."""

    noun: ClassVar[str]  # of an example, for messages

    def __init__(self, split: str, count: int, title: str) -> None:
        self.split, self.name, self.counts = split, f"embedded {split} {title}", {"examples": count}

    def __len__(self) -> int:
        return self.counts["examples"]

    def rng(self, index: int) -> np.random.Generator:
        return np.random.default_rng([SEEDS[self.split], index])

    def location(self, index: int) -> str:
        return f"{self.name}, {self.noun} {index + 1}"
