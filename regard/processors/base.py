"""The interface of processors: raw values to arrays and back. A run keeps its processors beside its weights."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, Self, TypeAlias

import numpy as np

from ..config.registry import Registry
from ..parts.inputs import Inputs, Modality

Array: TypeAlias = np.ndarray
Rng: TypeAlias = np.random.Generator


class Processor(Protocol):
    """The processor of one field, such as `source`. Everything that a run needs beside its weights is a processor."""

    @property
    def modality(self) -> Modality: ...

    def encode(self, raw: Any, rng: Rng | None = None) -> Array:
        """`rng` is None outside training; with it, the field may be augmented (noise, SpecAugment, BPE dropout)."""

    def cost(self, encoded: Array) -> int:
        """What the budget of a step counts (tokens, frames, patches), of the example encoded without `rng`."""

    def collate(self, encoded: Sequence[Array]) -> Inputs: ...

    def decode(self, values: Any) -> Any:
        """Back to the raw form, for people."""

    def save(self, path: Path) -> None:
        """Write one file; `load` reads it."""

    @classmethod
    def load(cls, path: Path) -> Self: ...


PROCESSORS: Registry[type[Any]] = Registry("processor", {})
