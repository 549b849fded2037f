"""The embedded text: the source of Python's standard library, as installed on this machine."""

import hashlib
import os
import platform
import sysconfig
from pathlib import Path

from ..config.data.texts import TextData
from ..data.sources.documents import Documents
from ..errors import UserError

SPLITS = {0: "valid", 1: "test"}  # one of twenty modules each; the other eighteen are for training
READ_SETTINGS = {"format": "text", "document": "file", "invalid": "skip", "holdout": 0.0}  # whatever the config says
# Tests; packages installed later; tables and texts that are not Python source; facts of the machine that built it.
LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "encodings", "pydoc_data", "__pycache__"}
BUILD_FACTS = "_sysconfigdata"


def stdlib_documents(data: TextData, split: str) -> Documents:
    """The train, valid or test split of the standard library, one document per module."""
    name = f"the {split} part of the standard library of Python {platform.python_version()}"
    return Documents(stdlib_files(split), data.model_copy(update=READ_SETTINGS), name)


def stdlib_files(split: str) -> list[Path]:
    """The modules of a split, sorted by name. A module is in the same split on every machine."""
    root = Path(sysconfig.get_path("stdlib"))
    modules: dict[str, Path] = {}
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in LEFT_OUT and not name.startswith("config-")]
        paths = [Path(folder, name) for name in names if name.endswith(".py") and not name.startswith(BUILD_FACTS)]
        modules |= {path.relative_to(root).as_posix(): path for path in paths}
    if len(modules) < 100:
        raise UserError(
            f"the source of Python's standard library is not at {root}, so there is no embedded text; "
            "name text files or a folder (data.train)"
        )
    return [modules[name] for name in sorted(modules) if split_of_module(name) == split]


def split_of_module(module: str) -> str:
    """The split that a module belongs to."""
    number = int.from_bytes(hashlib.sha256(module.encode()).digest()[:8], "big")
    return SPLITS.get(number % 20, "train")
