"""A reader of GGUF files: metadata and tensor directory. The gguf package needs half a minute for a large vocabulary.

Layout, all little-endian: magic, version, number of tensors, number of fields; fields (key, type, value); tensor
entries (name, dimensions, type, offset); then the aligned data.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..files import JsonObject

MAGIC, VERSIONS = b"GGUF", (2, 3)
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}  # by value type
STRING, ARRAY = 8, 9
ALIGNMENT = 32  # of the data, where general.alignment is absent


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as stored in a file; `dims` begin with the fastest one."""

    dims: tuple[int, ...]
    quantization: int  # a GGMLQuantizationType
    data: npt.NDArray[np.uint8]  # from its first byte to the end of the file


class GgufReader:
    """Reads one file. ValueError or struct.error: it is damaged."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self.bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.offset = 0
        if self.bytes[:4] != MAGIC:
            raise ValueError("it does not begin with GGUF")
        self.offset = 4
        if (version := self._scalar("I")) not in VERSIONS:
            raise ValueError(f"version {version}; expected 2 or 3, little-endian")
        tensors, fields = self._scalar("Q"), self._scalar("Q")
        self.metadata: JsonObject = {}
        for _ in range(fields):
            key = self._string()
            self.metadata[key] = self._value(self._scalar("I"))
        entries = [self._entry() for _ in range(tensors)]
        alignment = int(self.metadata.get("general.alignment", ALIGNMENT))
        first = -(-self.offset // alignment) * alignment
        content = np.frombuffer(self.bytes, np.uint8)
        self.tensors = {
            name: StoredTensor(dims, quantization, content[first + offset :])
            for name, dims, quantization, offset in entries
        }

    def _scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self.bytes, self.offset)
        self.offset += struct.calcsize(code)
        return value

    def _string(self) -> str:
        size = self._scalar("Q")
        text = self.bytes[self.offset : self.offset + size]
        if len(text) < size:
            raise ValueError("it is cut off")
        self.offset += size
        return text.decode("utf-8")

    def _value(self, value_type: int) -> Any:
        if value_type == STRING:
            return self._string()
        if value_type != ARRAY:
            return self._scalar(SCALARS[value_type])
        item_type, count = self._scalar("I"), self._scalar("Q")
        if item_type in (STRING, ARRAY):
            return [self._value(item_type) for _ in range(count)]
        values = np.frombuffer(self.bytes, f"<{SCALARS[item_type]}", count, self.offset)
        self.offset += values.nbytes
        return values.tolist()

    def _entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        dims = tuple(self._scalar("Q") for _ in range(self._scalar("I")))
        return name, dims, self._scalar("I"), self._scalar("Q")
