"""The tasks. A task turns data into losses for training, and inputs into predictions.

The module of a task has `prepare` for training, `restore` for use, and `with_max_vocab` for a model without data. Its
REQUIRED_METHODS name the methods that a family's model must have.
"""

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ..config.merge import one_of
from ..config.registry import Registry
from ..config.run import Run
from ..errors import UserError
from ..families import FAMILIES, family
from .base import Processors

NAMES = ("language", "translate", "classify", "tag", "masked", "text2text", "spans")
BUILTIN: dict[str, str | ModuleType] = {name: f"regard.tasks.{name}" for name in NAMES}
TASKS = Registry("task", BUILTIN)  # a module, or its import name


def task_module(name: str) -> ModuleType:
    found = TASKS[name]
    return import_module(found) if isinstance(found, str) else found


def prepare(run: Run, kept: Processors, device: torch.device, folder: Path | None = None) -> Any:
    """The training job of a run. `job.run` has the sizes of its vocabulary and labels.

    `kept` are the processors of the resumed run or of `start`; those that are missing are made from the data. `folder`
    is the folder of a resumed run.
    """
    _require_methods(run)
    return task_module(run.task).prepare(run, kept, device, folder)


def restore(run: Run, folder: Path, device: torch.device) -> Any:
    """The predictor of a run folder, without the weights."""
    return task_module(run.task).restore(run, folder, device)


def _require_methods(run: Run) -> None:
    methods: tuple[str, ...] = getattr(task_module(run.task), "REQUIRED_METHODS", ())

    def supports(name: str) -> bool:
        heads = getattr(family(name), "HEADS", {"": family(name).Model})
        return any(all(hasattr(head, method) for method in methods) for head in heads.values())

    if not supports(run.model.family):
        others = [name for name in FAMILIES if supports(name)]
        raise UserError(
            f"model.family={run.model.family} cannot be used for the task {run.task}; {one_of(None, others)}"
        )


def with_max_vocab(run: Run) -> Run:
    """The run with the largest vocabulary that its tokenizer may learn."""
    _require_methods(run)
    sized: Run = task_module(run.task).with_max_vocab(run)
    return sized
