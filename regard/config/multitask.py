"""The settings of the task that reads texts, images and sound."""

import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from .audio import SoundSettings, SpeechEval
from .decode import Seq2SeqDecode
from .merge import one_of
from .schema import TextEval
from .types import Positive, Strings
from .vision import SquareImages

EMBEDDED = ("dates", "scenes", "morse")  # the embedded sources: texts, images and recordings


class MultitaskData(SoundSettings, SquareImages):
    """Manifests: lines with a text, an image or a recording, its target, and perhaps the tag of its task."""

    max_tokens: Positive = 256  # of a text or a target
    weights: Strings = ()  # of the tasks in sampling, such as dates:2,scenes:1; empty: by number of examples
    sources: Strings = EMBEDDED  # of the embedded data
    shapes: Annotated[int, Field(ge=1, le=3)] = 2  # of an embedded scene, at most
    examples: Positive = 8000  # embedded training scenes; dates are 1.5 times, recordings 2.5 times as many

    @field_validator("weights")
    @classmethod
    def _check_weights(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for each in value:
            task, colon, number = each.rpartition(":")
            try:
                valid = bool(colon and task) and math.isfinite(float(number)) and float(number) > 0
            except ValueError:
                valid = False
            if not valid:
                raise ValueError(f"data.weights has {each!r}; expected a task and a number above 0, such as dates:2")
        tasks = [each.rpartition(":")[0] for each in value]
        if len({*tasks}) < len(tasks):
            raise ValueError(f"data.weights names a task twice: {', '.join(value)}; give one weight for each")
        return value

    @field_validator("sources")
    @classmethod
    def _check_sources(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for each in value:
            if each not in EMBEDDED:
                raise ValueError(f"data.sources has {each!r}; {one_of(each, [*EMBEDDED])}")
        if not value or len({*value}) < len(value):
            raise ValueError(f"data.sources is {','.join(value)!r}; expected one or more of {', '.join(EMBEDDED)}")
        return value

    @property
    def task_weights(self) -> Mapping[str, float]:
        """The weight of every task; empty: examples are drawn by their number."""
        return {task: float(number) for task, _, number in (each.rpartition(":") for each in self.weights)}


class MultitaskDecode(Seq2SeqDecode):
    """Decoding of texts, images and recordings. max_tokens=0: a limit from the length of each input."""

    task: str = ""  # the tag of the task; "": the one that the run has for inputs of this kind

    @model_validator(mode="after")
    def _check_inputs(self) -> "MultitaskDecode":
        refused: dict[str, Any] = {"split": False, "encoder_no_repeat_ngram_size": 0}
        for name, none in refused.items():
            if (value := getattr(self, name)) != none:
                raise ValueError(f"decode.{name} is {value!r}, which is for texts alone; leave it out")
        return self


class MultitaskEval(TextEval, SpeechEval):
    """Metrics of texts, and of transcripts."""
