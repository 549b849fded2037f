"""The embedded text: the source of Python's own standard library, as it lies on this machine."""

import hashlib
import platform
import sysconfig
from pathlib import Path
from typing import Any

from ..errors import Mistake

PARTS = {0: "valid", 1: "test"}  # of every twenty modules one each; the other eighteen are for training
READ: dict[str, Any] = {"format": "text", "document": "file", "invalid": "skip", "holdout": 0.0}  # whatever is asked
# Tests; what was installed later; tables and texts that are not Python to read.
LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "encodings", "pydoc_data", "__pycache__"}


def files(part: str) -> list[Path]:
    """The modules of a part, sorted by name. A module is in the same part on every machine."""
    root = Path(sysconfig.get_path("stdlib"))
    modules = {path.relative_to(root).as_posix(): path for path in root.rglob("*.py")}
    kept = {name: path for name, path in modules.items() if not _left_out(name)}
    if len(kept) < 100:
        raise Mistake(
            f"the source of Python's standard library is not at {root}, so there is no embedded text; "
            "name text files or a folder (data.train)"
        )
    return [kept[name] for name in sorted(kept) if part_of(name) == part]


def name(part: str) -> str:
    return f"the {part} part of the standard library of Python {platform.python_version()}"


def part_of(module: str) -> str:
    number = int.from_bytes(hashlib.sha256(module.encode()).digest()[:8], "big")
    return PARTS.get(number % 20, "train")


def _left_out(module: str) -> bool:
    """`_sysconfigdata…` and `config-…` are notes of the machine on which Python was built."""
    folders, file = module.split("/")[:-1], module.split("/")[-1]
    made = file.startswith("_sysconfigdata") or any(folder.startswith("config-") for folder in folders)
    return made or not LEFT_OUT.isdisjoint(folders)
