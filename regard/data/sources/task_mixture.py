"""Examples of several tasks and modalities as one source, and the examples of each modality in it."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from ...config.merge import one_of
from ...errors import UserError
from ..source import Concat, LazySequence, Source, Subset, View
from .manifest import TEXT, SourceTag
from .media import RawValue
from .mixture import weighted_order


class TaggedText(str):
    """A target with the tag of its task."""

    task: str

    def __new__(cls, text: str, task: str) -> "TaggedText":
        tagged = super().__new__(cls, text)
        tagged.task = task
        return tagged


class TaggedSource(Concat):
    """Several sources of (input, target), one after the other. Items are (SourceTag, input, target)."""

    def __init__(self, sources: Sequence[tuple[SourceTag, Source]]) -> None:
        super().__init__([examples for _, examples in sources], ", ".join(examples.name for _, examples in sources))
        self.tags = [tag for tag, _ in sources]

    def item(self, index: int) -> tuple[SourceTag, RawValue, str]:
        return self.tags[self.part_of(index)], *super().item(index)

    def field(self, index: int, field: int) -> SourceTag | RawValue:
        return super().field(index, field - 1) if field else self.tags[self.part_of(index)]

    def text(self, index: int, field: int) -> str:
        return super().text(index, field - 1)

    def fingerprint(self) -> str:
        sources = zip(self.tags, self.parts, strict=True)
        return " ".join(f"{tag.modality}/{tag.task} {examples.fingerprint()}" for tag, examples in sources)


class TaskMixture(View):
    """Examples whose first field is a SourceTag. Weights set how often an epoch draws each task."""

    def __init__(self, examples: Source, weights: Mapping[str, float] | None = None) -> None:
        self.examples, self.name, self.counts = examples, examples.name, examples.counts
        self.tags: list[SourceTag] = [examples.field(index, 0) for index in range(len(examples))]
        self.modalities = list(dict.fromkeys(tag.modality for tag in self.tags))
        numbers = {modality: number for number, modality in enumerate(self.modalities)}
        self.modality_numbers = np.array([numbers[tag.modality] for tag in self.tags], np.int8)
        self.places = np.zeros(len(self.tags), np.int64)  # index of every example within its modality
        for number in range(len(self.modalities)):
            members = np.flatnonzero(self.modality_numbers == number)
            self.places[members] = np.arange(len(members))
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
        shares = np.array([weights[task] for task in tasks]) if weights else np.ones(0)
        return shares / shares.sum() if weights else None

    @property
    def tasks(self) -> dict[str, int]:
        """The number of examples of each task."""
        return Counter(tag.task for tag in self.tags)

    def __len__(self) -> int:
        return len(self.tags)

    def locate(self, index: int) -> tuple[Source, int]:
        return self.examples, index

    def field(self, index: int, field: int) -> SourceTag | RawValue:
        return self.tags[index] if field == 0 else super().field(index, field)

    def fingerprint(self) -> str:
        return self.examples.fingerprint()

    def report(self) -> list[str]:
        counts = ", ".join(f"{tag.task} ({tag.modality}) {count:,}" for tag, count in Counter(self.tags).items())
        return [f"tasks: {counts}", *self.examples.report()]

    def notes(self, indices: Sequence[int] | np.ndarray) -> list[str]:
        return self.examples.notes(indices)

    def order(self, rng: np.random.Generator) -> np.ndarray:
        """The example indices of one epoch; with weights, each task is drawn by its weight."""
        if self.weights is None:
            return super().order(rng)
        numbers = {task: number for number, task in enumerate(self.tasks)}
        task_of = np.array([numbers[tag.task] for tag in self.tags])
        groups = [np.flatnonzero(task_of == number) for number in range(len(numbers))]
        return weighted_order(groups, self.weights, rng)

    def texts_to_learn(self) -> "MixtureTexts":
        """The texts to train a tokenizer on: all targets, and all inputs that are texts."""
        return MixtureTexts(self, [index for index, tag in enumerate(self.tags) if tag.modality == TEXT])

    def of_modality(self, modality: str) -> "ModalitySource":
        """The examples of one modality."""
        return ModalitySource(self, np.flatnonzero(self.modality_numbers == self.modalities.index(modality)), modality)


class MixtureTexts(LazySequence[str]):
    """All targets of a mixture, then the inputs of some examples."""

    def __init__(self, mixture: TaskMixture, sources: Sequence[int]) -> None:
        self.mixture, self.sources = mixture, sources

    def __len__(self) -> int:
        return len(self.mixture) + len(self.sources)

    def item(self, index: int) -> str:
        rest = index - len(self.mixture)
        return self.mixture.text(index, 2) if rest < 0 else self.mixture.text(self.sources[rest], 1)


class ModalitySource(Subset):
    """Inputs of one modality with their targets, which have the tags of their tasks."""

    def __init__(self, mixture: TaskMixture, indices: np.ndarray, modality: str) -> None:
        super().__init__(mixture, indices, f"{mixture.name} ({modality})")
        self.tags, self.counts = mixture.tags, {"examples": len(indices)}

    def item(self, index: int) -> tuple[RawValue, TaggedText]:
        tag, raw, target = super().item(index)
        return raw, TaggedText(target, tag.task)

    def field(self, index: int, field: int) -> RawValue:
        return self.text(index, 1) if field else super().field(index, 1)

    def text(self, index: int, field: int) -> str:
        text = super().text(index, field + 1)
        return TaggedText(text, self.tags[int(self.indices[index])].task) if field else text

    def fingerprint(self) -> str:
        return self.examples.fingerprint()
