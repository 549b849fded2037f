"""The declaration of a task: what it needs of a model."""

from dataclasses import dataclass

from ..config.merge import one_of
from ..config.registry import FAMILIES
from ..config.task_settings import Metric, task_settings
from ..errors import UserError
from ..families import family
from ..families.spec import ModelSpec, Output
from ..parts.inputs import TensorKind


@dataclass(frozen=True)
class Task:
    """A task fits the families that read its modalities and write its output."""

    name: str
    reads: frozenset[TensorKind]
    writes: Output
    request: type  # what its predictor takes and returns
    result: type
    alternatives: frozenset[Output] = frozenset()  # other outputs that it can use

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
        others = [other for other in FAMILIES if self.fits(spec_of(other))]
        raise UserError(
            f"model.family={name} cannot be used for the task {self.name}; {one_of(None, others)}: "
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
    """What the family reads and writes."""
    return family(name).SPEC
