"""What the lessons of all tasks share: opening the data, telling what they are, building the model."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..config.run import Run, family_of
from ..config.schema import Sides
from ..data.examples import Examples
from ..data.masking import line_examples
from ..data.sampler import Step, StepSampler
from ..errors import UserError
from ..synthetic.language_id import make_phrases


class Objective:
    """A lesson whose updates come from a batcher."""

    static_shapes = False  # has every piece the same shape, but for few?
    parts: dict[str, Examples]
    batcher: StepSampler

    def describe_data(self) -> list[str]:
        """What the data are, and what of them was left out so far."""
        told = []
        for name, examples in self.parts.items():
            told.append(f"{name}: {len(examples):,} examples, {examples.name}")
            told += [f"{name}: {sentence}" for sentence in examples.report()]
        return told + self.batcher.report()

    def steps(self, epoch: int, index: int) -> Iterator[Step]:
        return self.batcher.steps(epoch, index)


def open_splits(run: Run, part: Callable[[Run, str], Examples]) -> dict[str, Examples]:
    """The parts that a training reads: train, and valid where there is one."""
    parts = {"train": part(run, "train")}
    parts["train"].require_nonempty("data.train")
    if run.data.valid or not run.data.train:
        parts["valid"] = part(run, "valid")
        parts["valid"].require_nonempty("data.valid")
    return parts


def open_split(
    run: Run,
    name: str,
    sides: Sides | None,
    read: Callable[[Sides], Examples],
    made: Callable[[], Examples],
    such_as: str,
) -> Examples:
    """A part of the data: the files named for it, or those in `sides`; else the embedded data, if it learns these."""
    sides = getattr(run.data, name) if sides is None else sides
    if sides:
        return read(sides)
    if run.data.train:
        raise UserError(f"this run has no {name} data; name some, such as --data {such_as} (data.{name})")
    return made()


def open_lines(run: Run, name: str, sides: Sides | None = None) -> Examples:
    """A part of the data of tasks that read lines of text; the embedded ones are phrases."""
    data = run.data
    made = lambda: make_phrases(data.locales, data.examples, seed=1)[name]  # noqa: E731
    return open_split(run, name, sides, lambda some: line_examples(some, data), made, "test.txt")


def with_model_settings(run: Run, **settings: Any) -> Run:
    """The run with other settings of its model; one that its family has not is refused."""
    for key in settings:
        if key not in type(run.model).model_fields:
            raise UserError(
                f"model.family={run.model.family} has no model.{key}, which task {run.task} needs; "
                "choose another family (`regard list`)"
            )
    return run.model_copy(update={"model": run.model.model_copy(update=settings)})


def with_head(run: Run, head: str) -> Run:
    """The run with a model for this task, where its family has several."""
    return with_model_settings(run, head=head) if "head" in type(run.model).model_fields else run


def build_model(run: Run) -> Any:
    """The model of a run, from its seed."""
    torch.manual_seed(run.train.seed)
    return family_of(run.model.family).Model(run.model)
