"""The declaration of a task, its requirements on a model, and access to tasks by name."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

from ..adapt.prune import prune_heads
from ..config.merge import one_of
from ..config.registry import FAMILIES, TASKS, load_module
from ..config.run import AnyRun, Run
from ..config.task_settings import Metric, task_settings
from ..errors import UserError
from ..families import family
from ..families.spec import ModelSpec, Output
from ..parts.inputs import TensorKind
from .base import Processors, TrainingJob
from .predictor import AnyPredictor


def family_alone(model: nn.Module, run: Run) -> nn.Module:
    """The model of the family as it is."""
    return model


@dataclass(frozen=True)
class Task:
    """A task fits the families that read its modalities and write its output."""

    name: str
    reads: frozenset[TensorKind]
    writes: Output
    alternatives: frozenset[Output] = frozenset()  # other outputs that it can use
    extend: Callable[[nn.Module, AnyRun], nn.Module] = family_alone  # what it adds to the model of a family

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics that train.metric may name."""
        return task_settings(self.name).metrics

    def fits(self, spec: ModelSpec) -> bool:
        """True if the task can use a family with this spec."""
        return self.reads <= spec.reads and bool({self.writes, *self.alternatives} & spec.writes)

    def check(self, spec: ModelSpec, name: str) -> None:
        """Refuse the family `name`, which has this spec, if it does not fit."""
        if self.fits(spec):
            return
        families = [family for family in FAMILIES if self.fits(spec_of(family))]
        raise UserError(
            f"model.family={name} cannot be used for the task {self.name}; {one_of(None, families)}: "
            f"these read {' and '.join(sorted(self.reads))} and write {OUTPUTS[self.writes]}"
        )


OUTPUTS: dict[Output, str] = {
    "target": "another sequence",
    "next": "the next token",
    "masked": "masked tokens",
    "label": "a label",
    "tags": "tags",
    "embedding": "an embedding",
    "boxes": "boxes",
    "fertility": "another sequence",
    "ctc": "another sequence",
    "mask_predict": "another sequence",
}
TEXT: frozenset[TensorKind] = frozenset({"tokens"})


def spec_of(name: str) -> ModelSpec:
    """The ModelSpec of a family: what it reads and writes."""
    return family(name).SPEC


def task_module(name: str) -> ModuleType:
    """The module of a task by name."""
    module: ModuleType = load_module(TASKS[name], "task")
    return module


def prepare(run: Run, processors: Processors, device: torch.device, folder: Path | None = None) -> TrainingJob:
    """The training job of a run. `job.run` has the sizes of its vocabulary and labels.

    `processors` are those of the resumed run or of `start`; missing ones are made from the data. `folder` is the folder
    of a resumed run.
    """
    check_fit(run)
    job: TrainingJob = task_module(run.task).prepare(run, processors, device, folder)
    return job


def restore(run: Run, folder: Path, device: torch.device) -> AnyPredictor:
    """The predictor of a run folder, without the weights."""
    predictor: AnyPredictor = task_module(run.task).restore(run, folder, device)
    return predictor


def check_fit(run: Run) -> None:
    """Refuse a family that does not read or write what the task needs, and new weights where it needs a start."""
    task: Task = task_module(run.task).TASK
    spec = spec_of(run.model.family)
    task.check(spec, run.model.family)
    if not run.start and (reason := spec.needs_start(run.model)):
        raise UserError(reason)


def size_without_data(run: Run) -> Run:
    """The run with the largest vocabulary that its tokenizer may learn."""
    check_fit(run)
    sized: Run = task_module(run.task).size_without_data(run)
    return sized


def build_without_data(run: Run) -> nn.Module:
    """The untrained model of a run, with sizes as `size_without_data` gives them."""
    run = size_without_data(run)
    task: Task = task_module(run.task).TASK
    return task.extend(prune_heads(family(run.model.family).Model(run.model), run.pruned_heads), run)
