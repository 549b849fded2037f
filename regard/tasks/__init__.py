"""What models are for. A task turns data into losses for the loop, and texts into predictions for people.

A task's module has `prepare`, for training, `restore`, for use, and `sized`, for a model without any data.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

from ..config import Run

TASKS = {name: f"regard.tasks.{name}" for name in ("translate", "classify", "tag", "masked", "text2text", "spans")}


def prepare(run: Run, folder: Path | None, device: Any) -> tuple[Any, dict[str, Any], Run]:
    """The lesson to train, the tokenizers by file name, the run with its vocabulary; `folder` is a run to resume."""
    prepared: tuple[Any, dict[str, Any], Run] = import_module(TASKS[run.task]).prepare(run, folder, device)
    return prepared


def restore(run: Run, folder: Path, device: Any) -> Any:
    """What people use, but for the weights."""
    return import_module(TASKS[run.task]).restore(run, folder, device)


def sized(run: Run) -> Run:
    """The run as it would be if its tokenizer learnt as much as it may."""
    found: Run = import_module(TASKS[run.task]).sized(run)
    return found
