"""The tasks by name: prepare a training, restore a predictor, check that a family fits."""

from pathlib import Path
from typing import Any

import torch

from ..config.registry import TASKS, load_module
from ..config.run import Run
from ..errors import UserError
from .base import Processors, TrainingJob
from .predictor import AnyPredictor
from .task import Task, spec_of


def task_module(name: str) -> Any:
    """The module of a task by name."""
    return load_module(TASKS[name], "task")


def prepare(run: Run, kept: Processors, device: torch.device, folder: Path | None = None) -> TrainingJob:
    """The training job of a run. `job.run` has the sizes of its vocabulary and labels.

    `kept` are the processors of the resumed run or of `start`; those that are missing are made from the data. `folder`
    is the folder of a resumed run.
    """
    check_family(run)
    if not run.start and (reason := spec_of(run.model.family).needs_start(run.model)):
        raise UserError(reason)
    job: TrainingJob = task_module(run.task).prepare(run, kept, device, folder)
    return job


def restore(run: Run, folder: Path, device: torch.device) -> AnyPredictor:
    """The predictor of a run folder, without the weights."""
    predictor: AnyPredictor = task_module(run.task).restore(run, folder, device)
    return predictor


def check_family(run: Run) -> None:
    """Refuse a family that does not read or write what the task needs."""
    task: Task = task_module(run.task).TASK
    task.check(spec_of(run.model.family), run.model.family)


def size_without_data(run: Run) -> Run:
    """The run with the largest vocabulary that its tokenizer may learn."""
    check_family(run)
    sized: Run = task_module(run.task).size_without_data(run)
    return sized
