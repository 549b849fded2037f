"""The tags of tasks: tokens that the decoder reads after START and that select the task."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...config.merge import one_of
from ...data.datasets.collate import Ids
from ...data.sources.manifest import SourceTag
from ...data.sources.task_mixture import TaggedText, TaskMixture
from ...errors import UserError
from ...processors.labels import LabelSet
from ...processors.text.tokenizers import Tokenizer

BETWEEN = "/"  # a label of the saved set is a modality and a task: image/caption


class TaskTags:
    """The tasks of a run and the modalities that each reads. Their tokens follow those of the tokenizer."""

    def __init__(self, labels: LabelSet, first: int) -> None:
        """`first` is the token of the first task: the size of the tokenizer."""
        self.labels, self.first = labels, first
        self.pairs = [SourceTag(*label.split(BETWEEN, 1)) for label in labels]
        self.tasks = list(dict.fromkeys(tag.task for tag in self.pairs))

    @classmethod
    def of(cls, mixture: TaskMixture, first: int) -> "TaskTags":
        counts: dict[str, int] = {}
        for tag in mixture.tags:
            label = f"{tag.modality}{BETWEEN}{tag.task}"
            counts[label] = counts.get(label, 0) + 1
        return cls(LabelSet(counts), first)

    @property
    def ids(self) -> list[int]:
        """The tokens of all tasks."""
        return [self.first + number for number in range(len(self.tasks))]

    def token(self, task: str) -> int:
        return self.first + self.tasks.index(task)

    def choose(self, modality: str, task: str) -> str:
        """The task for an input of a modality: `task`, or the only task of the run for this modality."""
        if task:
            if task not in self.tasks:
                raise UserError(f"decode.task is {task!r}, which this run did not learn; {one_of(task, self.tasks)}")
            return task
        tasks = [tag.task for tag in self.pairs if tag.modality == modality]
        if len(tasks) != 1:
            raise UserError(
                f"this run has {len(tasks)} tasks for inputs of kind {modality}; choose one: decode.task={tasks[0]}"
            )
        return tasks[0]

    def require_known(self, mixture: TaskMixture, key: str) -> None:
        """Refuse examples of a task or a modality that the training data lack."""
        known_tags = set(self.pairs)
        for index, tag in enumerate(mixture.tags):
            if tag not in known_tags:
                names = [f"{pair.task} ({pair.modality})" for pair in self.pairs]
                raise UserError(
                    f"{key}: {mixture.location(index)} has the task {tag.task} ({tag.modality}), which data.train "
                    f"never has; expected {', '.join(names)}"
                )

    def require_modalities(self, mixture: TaskMixture, key: str) -> None:
        """Refuse data that lack a modality of the training data."""
        for tag in self.pairs:
            if tag.modality not in mixture.modalities:
                raise UserError(
                    f"{key}: {mixture.name} has no line with {tag.modality!r}, and data.train has; add some, so that "
                    "every kind of inputs is validated"
                )


@dataclass(frozen=True)
class TaggedTargets:
    """Targets after START and the token of their task."""

    tokenizer: Tokenizer
    tokens: Mapping[str, int]  # by task

    def __call__(self, texts: Sequence[str]) -> list[tuple[Ids, Ids]]:
        rows = self.tokenizer.encode(list(texts))
        tasks = [text.task if isinstance(text, TaggedText) else "" for text in texts]
        return [
            (
                np.array([self.tokenizer.start, self.tokens[task]], np.int32),
                np.array([*ids, self.tokenizer.end], np.int32),
            )
            for task, ids in zip(tasks, rows, strict=True)
        ]
