"""What models are for. A task turns data into losses for the loop, and texts into predictions for people.

A task's module has `prepare`, for training, and `restore`, for use.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

from ..config import Run

TASKS = {"translate": "regard.tasks.translate"}


def prepare(run: Run, folder: Path | None, device: Any) -> tuple[Any, dict[str, Any], Run]:
    """The lesson to train, the tokenizers by file name, the run with its vocabulary; `folder` is a run to resume."""
    prepared: tuple[Any, dict[str, Any], Run] = import_module(TASKS[run.task]).prepare(run, folder, device)
    return prepared


def restore(run: Run, folder: Path, device: Any) -> Any:
    """What people use, but for the weights."""
    return import_module(TASKS[run.task]).restore(run, folder, device)
