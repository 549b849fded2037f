"""Processors of targets that are not one label: several labels, and a number."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError
from ..parts.inputs import Inputs, TensorKind
from .base import Array, Rng, read_saved, to_array, write_saved
from .labels import LabelProcessor


class MultiLabelProcessor(LabelProcessor):
    """Any number of labels per example, including none."""

    kind: ClassVar[str] = "multi_labels"

    def encode(self, raw: str | Sequence[str], rng: Rng | None = None) -> Array:
        """The ids of the labels, (labels,)."""
        return super().encode((raw,) if isinstance(raw, str) else raw)

    def collate(self, encoded: Sequence[Array]) -> Inputs:
        """(batch, all labels): 1 for each label of an example, else 0."""
        table = torch.zeros(len(encoded), len(self.labels))
        for row, ids in zip(table, encoded, strict=True):
            row[torch.from_numpy(np.asarray(ids, np.int64))] = 1
        return Inputs("labels", table)

    def decode(self, values: int | Sequence[int] | Array | Tensor) -> list[str]:
        """The labels of a row of zeros and ones."""
        return [name for name, present in zip(self.labels.names, to_array(values).tolist(), strict=True) if present]


@dataclass(frozen=True)
class NumberProcessor:
    """The number of an example, unchanged; `name` is the name of the output."""

    name: str = "value"
    kind: ClassVar[str] = "regression"
    version: ClassVar[int] = 1
    file: ClassVar[str] = "number.json"

    @property
    def modality(self) -> TensorKind:
        return "labels"

    def encode(self, raw: str | float, rng: Rng | None = None) -> Array:
        try:
            value = float(raw)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise UserError(f"the target is {raw!r}, and this model predicts numbers; give a number")
        return np.array(value, np.float32)

    def cost(self, encoded: Array) -> int:
        return 1

    def collate(self, encoded: Sequence[Array]) -> Inputs:
        """(batch,)"""
        return Inputs("labels", torch.from_numpy(np.stack(encoded)))

    def decode(self, values: float | Array | Tensor) -> float:
        return float(to_array(values))

    def save(self, path: Path) -> None:
        write_saved(path, self.kind, self.version, {"name": self.name})

    @classmethod
    def load(cls, path: Path) -> Self:
        return cls(str(read_saved(path, cls.kind, cls.version).get("name", "value")))
