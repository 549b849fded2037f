"""The settings of joint embeddings."""

from collections import Counter
from typing import Any, TypeAlias

from pydantic import field_validator

from ...config.data.mixed import ContrastiveData
from ...config.run import Run
from ...config.task_settings import ACCURACY, LOSS, RETRIEVAL, TaskSettings
from ...config.types import Base, Count, Positive, Strings

SLOT = "{}"  # the place of the label in a template


class ContrastiveDecode(Base):
    """Embeddings, and the choice among labels."""

    labels: Strings = ()  # texts to choose from (predict --labels)
    template: str = SLOT  # the text of a label, such as "a photo of {}"
    top: Count = 0  # number of most likely labels, with probabilities; 0: the best one only
    batch: Positive = 32  # items per batch

    @field_validator("labels")
    @classmethod
    def _check_labels(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        labels = tuple(" ".join(label.split()) for label in value)
        if value and not all(labels):
            raise ValueError("it has an empty label; expected texts with a comma between them")
        if repeated := [label for label, count in Counter(labels).items() if count > 1]:
            raise ValueError(f"the label {repeated[0]!r} is given twice; give each once")
        if len(labels) == 1:
            raise ValueError(f"{labels[0]!r} is the only label; give at least two to choose from")
        return labels

    @field_validator("template")
    @classmethod
    def _check_template(cls, value: str) -> str:
        if value.count(SLOT) != 1:
            raise ValueError(f"it is {value!r}; expected a text with {SLOT} where the label stands")
        return value


SETTINGS = TaskSettings(ContrastiveData, ContrastiveDecode, (LOSS, *RETRIEVAL, ACCURACY), head="none")

ContrastiveRun: TypeAlias = Run[ContrastiveData, ContrastiveDecode, Any]
