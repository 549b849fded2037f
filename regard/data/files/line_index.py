"""Offsets of the lines of a file: five bytes per line, stored on disk for large files."""

import bisect
import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from ...errors import UserError
from ...files import atomic_write, cache_folder

FORMAT = 1  # of index files; a change invalidates old ones
HEAD = 4096  # bytes before the arrays
CACHED_BYTES = 1 << 25  # files from this size on keep their index on disk: 32 MiB are scanned in a quarter of a second
PROBES, PROBE_BYTES = 8, 1 << 14  # a changed file is detected by comparing PROBE_BYTES at PROBES places
VALID, BLANK, INVALID, HEADER = 0, 1, 2, 3  # the status of a line


@dataclass
class LineIndex:
    """The lines of one file. Offsets count from the beginning of a block, so that four bytes suffice."""

    firsts: np.ndarray  # (blocks,) the first line of each block
    bases: np.ndarray  # (blocks,) the offset of each block in the file
    offsets: np.ndarray  # (lines,) of each line in its block
    end: int  # of the last line
    statuses: np.ndarray | None  # (lines,) uint8; None: all lines are valid
    digest: bytes  # a hash of the text
    counts: dict[str, int] = field(default_factory=dict)  # of repaired lines

    def __post_init__(self) -> None:
        self._firsts, self._bases = self.firsts.tolist(), self.bases.tolist()

    def __len__(self) -> int:
        return len(self.offsets)

    def span(self, line: int) -> tuple[int, int]:
        """Where a line begins and ends in the file."""
        block, after = bisect.bisect_right(self._firsts, line) - 1, line + 1
        start = self._bases[block] + int(self.offsets[line])
        if after == len(self.offsets):
            return start, self.end
        block += block + 1 < len(self._firsts) and after == self._firsts[block + 1]
        return start, self._bases[block] + int(self.offsets[after])

    def status(self, line: int) -> int:
        return VALID if self.statuses is None else int(self.statuses[line])

    def release_statuses(self) -> None:
        """Forget which lines are blank. Reading lines needs to know the invalid ones."""
        if self.statuses is not None and not (self.statuses == INVALID).any():
            self.statuses = None


# --- on disk ---------------------------------------------------------------------------------------------------------


def index_path(path: Path, way: str) -> Path | None:
    """Where the index of a file is stored; None for small files. `way` identifies how its lines are checked."""
    if path.stat().st_size < CACHED_BYTES:
        return None
    name = hashlib.blake2b(json.dumps([FORMAT, str(path.absolute()), way]).encode(), digest_size=16).hexdigest()
    return cache_folder() / f"{name}.lines"


def file_state(path: Path) -> str:
    """A hash of the size, time and samples of a file."""
    state = hashlib.blake2b(digest_size=16)
    with open(path, "rb", buffering=0) as file:
        add_file_state(state, file)
    return state.hexdigest()


def add_file_state(state: hashlib.blake2b, file: IO[bytes], whole: bool = False) -> None:
    """Add the size, time and samples of a file to a hash; with `whole`, all of its content."""
    facts = os.fstat(file.fileno())
    state.update(f"{facts.st_size} {facts.st_mtime_ns}\0".encode())
    if whole or facts.st_size <= PROBES * PROBE_BYTES:
        while data := file.read(PROBES * PROBE_BYTES):
            state.update(data)
        return
    for probe in range(PROBES):
        file.seek(max(facts.st_size - PROBE_BYTES, 0) * probe // (PROBES - 1))
        state.update(file.read(PROBE_BYTES))


def read_index(place: Path, state: str) -> LineIndex | None:
    """The index at `place`, memory-mapped; None if it is missing, damaged or of another state of the file."""
    try:
        with open(place, "rb") as file:
            facts: dict[str, Any] = json.loads(file.read(HEAD))
        if facts["state"] != state or place.stat().st_size != facts["size"]:
            return None
        tables = {name: _map_array(place, *table) for name, table in facts["tables"].items()}
        digest = bytes.fromhex(facts["digest"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    statuses = tables.pop("statuses", None)
    return LineIndex(**tables, end=facts["end"], statuses=statuses, digest=digest, counts=facts["counts"])


def write_index(place: Path, index: LineIndex, state: str) -> None:
    """Store an index. If the folder cannot be written, the next run scans the file again."""
    arrays = {"firsts": index.firsts, "bases": index.bases, "offsets": index.offsets}
    if index.statuses is not None:
        arrays["statuses"] = index.statuses
    tables, end = {}, HEAD
    for name, array in arrays.items():
        tables[name] = [array.dtype.str, len(array), end]
        end += array.nbytes + -array.nbytes % 8
    facts = {"state": state, "size": end, "tables": tables, "end": index.end}
    facts |= {"digest": index.digest.hex(), "counts": index.counts}
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(place) as draft, open(draft, "wb") as file:
            file.write(json.dumps(facts).encode().ljust(HEAD))
            for array in arrays.values():
                array.tofile(file)
                file.write(bytes(-array.nbytes % 8))
    except (OSError, UserError):  # `atomic_write` explains some
        return


def _map_array(place: Path, dtype: str, count: int, begin: int) -> np.ndarray:
    return np.memmap(place, np.dtype(dtype), "r", begin, (count,)) if count else np.zeros(0, np.dtype(dtype))
