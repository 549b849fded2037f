"""The embedded text: the source of Python's own standard library, as it lies on this machine."""

import hashlib
import os
import platform
import sysconfig
from pathlib import Path
from typing import Any

from ..errors import UserError

PARTS = {0: "valid", 1: "test"}  # of every twenty modules one each; the other eighteen are for training
READ: dict[str, Any] = {"format": "text", "document": "file", "invalid": "skip", "holdout": 0.0}  # whatever is asked
# Tests; what was installed later; tables and texts that are not Python to read; notes of the machine that built it.
LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "encodings", "pydoc_data", "__pycache__"}
NOTES = "_sysconfigdata"


def files(part: str) -> list[Path]:
    """The modules of a part, sorted by name. A module is in the same part on every machine."""
    root = Path(sysconfig.get_path("stdlib"))
    kept: dict[str, Path] = {}
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in LEFT_OUT and not name.startswith("config-")]
        modules = [Path(folder, name) for name in names if name.endswith(".py") and not name.startswith(NOTES)]
        kept |= {path.relative_to(root).as_posix(): path for path in modules}
    if len(kept) < 100:
        raise UserError(
            f"the source of Python's standard library is not at {root}, so there is no embedded text; "
            "name text files or a folder (data.train)"
        )
    return [kept[name] for name in sorted(kept) if part_of(name) == part]


def name(part: str) -> str:
    return f"the {part} part of the standard library of Python {platform.python_version()}"


def part_of(module: str) -> str:
    number = int.from_bytes(hashlib.sha256(module.encode()).digest()[:8], "big")
    return PARTS.get(number % 20, "train")
