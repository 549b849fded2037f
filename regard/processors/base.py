"""The interface of processors: raw values to arrays and back. A run folder contains them beside its weights."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from .. import files
from ..config.registry import Registry
from ..errors import UserError
from ..files import JsonMapping, JsonObject
from ..parts.inputs import Inputs, TensorKind

Array: TypeAlias = np.ndarray
Rng: TypeAlias = np.random.Generator

IGNORED = -1  # the label of positions that are not scored


class FileBytes(bytes):
    """The content of a file, with its name for messages."""

    place: str

    def __new__(cls, content: bytes, place: str = "the bytes") -> "FileBytes":
        named = super().__new__(cls, content)
        named.place = place
        return named


class Processor(Protocol):
    """The processor of one field, such as `source`. A run consists of its weights and its processors."""

    kind: ClassVar[str]  # its name in PROCESSORS, in run.json and in its file
    version: ClassVar[int]  # of its file
    file: ClassVar[str]  # its default file name in a run folder

    @property
    def modality(self) -> TensorKind:
        """The kind of its tensors."""

    def encode(self, raw: Any, rng: Rng | None = None) -> Array:
        """`rng` is None outside training; with it, the field may be augmented (noise, SpecAugment, random crops)."""

    def cost(self, encoded: Array) -> int:
        """The size of an example in tokens, frames or patches, for the budget of a step; encoded without `rng`."""

    def collate(self, encoded: Sequence[Array]) -> Inputs:
        """Encoded values as one batch."""

    def decode(self, values: Array | Tensor) -> Any:
        """The raw value of encoded or predicted values, for display."""

    def save(self, path: Path) -> None:
        """Write one file; `load` reads it."""

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote."""


BUILTIN: dict[str, str | type[Processor]] = {
    "text": "regard.processors.text.processor:TextProcessor",
    "labels": "regard.processors.labels:LabelProcessor",
    "tags": "regard.processors.labels:TagProcessor",
    "multi_labels": "regard.processors.targets:MultiLabelProcessor",
    "regression": "regard.processors.targets:NumberProcessor",
    "image": "regard.processors.image.processor:ImageProcessor",
    "audio": "regard.processors.sound.log_mel:AudioProcessor",
    "filterbank": "regard.processors.sound.filterbank:FilterbankProcessor",
    "boxes": "regard.processors.boxes:BoxProcessor",
}
PROCESSORS = Registry("processor", BUILTIN)  # by kind: a class, or its import name


# --- tensors ---------------------------------------------------------------------------------------------------------


def to_array(values: Tensor | ArrayLike) -> Array:
    """The values of a tensor, on any device, or of a sequence."""
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def pad_arrays(rows: Sequence[Array], padding: float = 0) -> tuple[Tensor, Tensor | None]:
    """Arrays of unequal lengths as one table (batch, longest, …), and the valid mask; None if all are valid."""
    lengths = [len(row) for row in rows]
    longest = max(lengths)
    if min(lengths) == longest:
        return torch.from_numpy(np.stack(rows)), None
    table = np.full((len(rows), longest, *rows[0].shape[1:]), padding, rows[0].dtype)
    for row, values in zip(table, rows, strict=True):
        row[: len(values)] = values
    return torch.from_numpy(table), torch.arange(longest) < torch.tensor(lengths)[:, None]


# --- files -----------------------------------------------------------------------------------------------------------


def write_saved(path: Path, kind: str, version: int, values: JsonMapping) -> None:
    """Write a JSON file with the kind and version of its processor."""
    files.write_json(path, {"kind": kind, "version": version, **values})


def read_processor_file(path: Path) -> JsonObject:
    """The JSON object in the file of a processor."""
    try:
        return files.read_json(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); it belongs to the run, restore it") from error


def read_saved(path: Path, kind: str, version: int) -> JsonObject:
    """The values that `write_saved` wrote. A file without kind and version is of version 1."""
    whole = read_processor_file(path)
    saved_kind, saved_version = whole.pop("kind", kind), whole.pop("version", 1)
    if saved_kind != kind:
        raise UserError(
            f"{path} holds a processor of kind {saved_kind!r}, expected {kind!r}; restore the file of this run"
        )
    if not isinstance(saved_version, int) or saved_version > version:
        raise UserError(
            f"{path} has version {saved_version!r} of the processor {kind!r} and this version of regard reads up to "
            f"{version}; use the version that wrote it"
        )
    return whole


@dataclass(frozen=True)
class SavedSettings:
    """A processor that consists of settings; its file is the settings as JSON."""

    kind: ClassVar[str]
    version: ClassVar[int] = 1

    def save(self, path: Path) -> None:
        """Write one file."""
        write_saved(path, self.kind, self.version, asdict(self))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote."""
        values = read_saved(path, cls.kind, cls.version)
        names = [field.name for field in fields(cls)]
        if unknown := [name for name in values if name not in names]:
            raise UserError(f"{path} has the unknown setting {unknown[0]!r}; expected {', '.join(names)}")
        try:
            return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})
        except TypeError as error:
            raise UserError(f"{path} has a value of the wrong type ({error}); restore it") from error
