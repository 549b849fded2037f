"""Examples of several tasks and kinds of inputs as one data set, from which each kind is read by its own data set."""

import bisect
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...config.merge import one_of
from ...errors import UserError
from ..source import LazySequence, Source
from .manifest import TEXT, SourceTag
from .mixture import weighted_order


class TaggedText(str):
    """A target with the tag of its task."""

    task: str

    def __new__(cls, text: str, task: str) -> "TaggedText":
        tagged = super().__new__(cls, text)
        tagged.task = task
        return tagged


class TaggedSource(Source):
    """Several sets of (input, target), one after the other. Items have the tag of the source, the input, the target."""

    def __init__(self, sources: Sequence[tuple[SourceTag, Source]]) -> None:
        self.sources, self.ends = sources, np.cumsum([len(examples) for _, examples in sources]).tolist()
        self.name = ", ".join(examples.name for _, examples in sources)
        self.counts = {"examples": self.ends[-1]}

    def __len__(self) -> int:
        return int(self.ends[-1])

    def _find(self, index: int) -> tuple[SourceTag, Source, int]:
        number = bisect.bisect_right(self.ends, index)
        tag, examples = self.sources[number]
        return tag, examples, index - self.ends[number] + len(examples)

    def item(self, index: int) -> tuple[Any, ...]:
        tag, examples, inner = self._find(index)
        return tag, *examples.item(inner)

    def side(self, index: int, side: int) -> Any:
        tag, examples, inner = self._find(index)
        return examples.side(inner, side - 1) if side else tag

    def seconds(self, index: int) -> float:
        _, examples, inner = self._find(index)
        return examples.seconds(inner)

    def location(self, index: int) -> str:
        _, examples, inner = self._find(index)
        return examples.location(inner)

    def fingerprint(self) -> str:
        return " ".join(f"{tag.kind}/{tag.task} {examples.fingerprint()}" for tag, examples in self.sources)


class TaskMixture(Source):
    """Examples whose first side is the tag of their source. Weights say how often an epoch has each task."""

    def __init__(self, examples: Source, weights: Mapping[str, float] | None = None) -> None:
        self.examples, self.name, self.counts = examples, examples.name, examples.counts
        self.tags: list[SourceTag] = [examples.side(index, 0) for index in range(len(examples))]
        self.kinds = list(dict.fromkeys(tag.kind for tag in self.tags))
        numbers = {kind: number for number, kind in enumerate(self.kinds)}
        self.kind_of = np.array([numbers[tag.kind] for tag in self.tags], np.int8)
        self.places = np.zeros(len(self.tags), np.int64)  # of every example among those of its kind
        for number in range(len(self.kinds)):
            own = np.flatnonzero(self.kind_of == number)
            self.places[own] = np.arange(len(own))
        self.weights = self._shares(weights or {})

    def _shares(self, weights: Mapping[str, float]) -> np.ndarray | None:
        tasks = [*self.tasks]
        for task in weights:
            if task not in tasks:
                raise UserError(f"data.weights names the task {task!r}, which data.train lacks; {one_of(task, tasks)}")
        if weights and (missing := [task for task in tasks if task not in weights]):
            raise UserError(
                f"data.weights has no weight for the task {missing[0]!r}; give one for each of {', '.join(tasks)}"
            )
        given = np.array([weights[task] for task in tasks]) if weights else np.ones(0)
        return given / given.sum() if weights else None

    @property
    def tasks(self) -> dict[str, int]:
        """The number of examples of each task."""
        return Counter(tag.task for tag in self.tags)

    def __len__(self) -> int:
        return len(self.tags)

    def item(self, index: int) -> tuple[Any, ...]:
        return self.examples.item(index)

    def side(self, index: int, side: int) -> Any:
        return self.tags[index] if side == 0 else self.examples.side(index, side)

    def seconds(self, index: int) -> float:
        return self.examples.seconds(index)

    def location(self, index: int) -> str:
        return self.examples.location(index)

    def fingerprint(self) -> str:
        return self.examples.fingerprint()

    def report(self) -> list[str]:
        counts = ", ".join(f"{tag.task} ({tag.kind}) {count:,}" for tag, count in Counter(self.tags).items())
        return [f"tasks: {counts}", *self.examples.report()]

    def order(self, rng: np.random.Generator) -> np.ndarray:
        """The example indices of one epoch; with weights, each task is drawn by its weight."""
        if self.weights is None:
            return super().order(rng)
        numbers = {task: number for number, task in enumerate(self.tasks)}
        task_of = np.array([numbers[tag.task] for tag in self.tags])
        groups = [np.flatnonzero(task_of == number) for number in range(len(numbers))]
        return weighted_order(groups, self.weights, rng)

    def texts_to_learn(self) -> "MixtureTexts":
        """All targets, and all inputs that are texts: what a tokenizer learns from."""
        return MixtureTexts(self, [index for index, tag in enumerate(self.tags) if tag.kind == TEXT])

    def of_kind(self, kind: str) -> "ModalitySource":
        """The examples whose inputs are of one kind."""
        return ModalitySource(self, np.flatnonzero(self.kind_of == self.kinds.index(kind)), kind)


class MixtureTexts(LazySequence[str]):
    """All targets of a mixture, then the inputs of some examples."""

    def __init__(self, mixture: TaskMixture, sources: Sequence[int]) -> None:
        self.mixture, self.sources = mixture, sources

    def __len__(self) -> int:
        return len(self.mixture) + len(self.sources)

    def item(self, index: int) -> str:
        rest = index - len(self.mixture)
        text: str = self.mixture.side(index, 2) if rest < 0 else self.mixture.side(self.sources[rest], 1)
        return text


class ModalitySource(Source):
    """Inputs of one kind with their targets, which know their tasks."""

    def __init__(self, mixture: TaskMixture, indices: np.ndarray, kind: str) -> None:
        self.mixture, self.indices = mixture, indices
        self.name, self.counts = f"{mixture.name} ({kind})", {"examples": len(indices)}

    def __len__(self) -> int:
        return len(self.indices)

    def item(self, index: int) -> tuple[Any, ...]:
        tag, raw, target = self.mixture.item(int(self.indices[index]))
        return raw, TaggedText(target, tag.task)

    def side(self, index: int, side: int) -> Any:
        if side != 1:
            return self.item(index)[side]
        place = int(self.indices[index])
        return TaggedText(self.mixture.side(place, 2), self.mixture.tags[place].task)

    def seconds(self, index: int) -> float:
        return self.mixture.seconds(int(self.indices[index]))

    def location(self, index: int) -> str:
        return self.mixture.location(int(self.indices[index]))

    def fingerprint(self) -> str:
        return self.mixture.fingerprint()
