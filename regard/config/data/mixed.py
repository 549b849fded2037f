"""The settings of data of several modalities: manifests, and pairs of items with texts."""

import math
from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator, Field, field_validator

from ..merge import one_of
from ..types import Positive, Share, Strings, as_strings
from .base import DataFiles
from .images import NamedImages, SquareImages
from .sound import Filterbanks, RecordingTable, SoundSettings

EMBEDDED = ("dates", "scenes", "morse")  # the embedded sources: texts, images and recordings


class MultitaskData(SoundSettings, SquareImages):
    """Manifests: lines with a text, an image or a recording, its target, and perhaps the tag of its task."""

    train: DataFiles = ()  # manifests (.jsonl): each line has a text, an image or a recording, its target, and perhaps
    # its task. Empty: dates, scenes and Morse code
    max_tokens: Positive = 256  # of a text or a target
    weights: Strings = ()  # how often each task is drawn, such as dates:2,scenes:1; empty: by number of examples
    sources: Strings = EMBEDDED  # which embedded data are mixed
    shapes: Annotated[int, Field(ge=1, le=3)] = 2  # shapes of an embedded scene, at most
    examples: Positive = 8000  # embedded training scenes; dates are 1.5 times, recordings 2.5 times as many

    @field_validator("weights")
    @classmethod
    def _check_weights(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for entry in value:
            task, colon, number = entry.rpartition(":")
            try:
                valid = bool(colon and task) and math.isfinite(float(number)) and float(number) > 0
            except ValueError:
                valid = False
            if not valid:
                raise ValueError(f"data.weights has {entry!r}; expected a task and a number above 0, such as dates:2")
        tasks = [entry.rpartition(":")[0] for entry in value]
        if len({*tasks}) < len(tasks):
            raise ValueError(f"data.weights names a task twice: {', '.join(value)}; give one weight for each")
        return value

    @field_validator("sources")
    @classmethod
    def _check_sources(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for source in value:
            if source not in EMBEDDED:
                raise ValueError(f"data.sources has {source!r}; {one_of(source, [*EMBEDDED])}")
        if not value or len({*value}) < len(value):
            raise ValueError(f"data.sources is {','.join(value)!r}; expected one or more of {', '.join(EMBEDDED)}")
        return value

    @property
    def task_weights(self) -> Mapping[str, float]:
        """The weight of every task; empty: examples are drawn by their number."""
        return {task: float(number) for task, _, number in (entry.rpartition(":") for entry in self.weights)}


class ContrastiveData(NamedImages, RecordingTable, Filterbanks):
    """Pairs. The settings of images apply to images, those of recordings to recordings."""

    train: DataFiles = ()  # images: a table of path and text (or label), a folder with one folder per class, or two IDX
    # files; sound: a table of path and text, a folder with a .txt file beside each recording; texts: two files of
    # lines, or a table of source and target. Empty: embedded scenes
    max_tokens: Positive = 256  # longer texts are cut
    crop: Annotated[float, Field(gt=0, le=1)] = 0.9  # training crops a random part of an image, at least this share; 1:
    # no crop
    flip: bool = False  # mirror half of the images; a text such as "left of" would no longer fit
    max_shapes: Annotated[int, Field(ge=1, le=3)] = 3  # shapes of an embedded scene, at most
    colors: Annotated[int, Field(ge=2, le=12)] = 6  # of the embedded scenes: the first so many of 12
    shape_types: Annotated[int, Field(ge=2, le=8)] = 4  # of the embedded scenes: the first so many of 8
    unnamed: Share = 0.0  # share of embedded training shapes whose color has no name; their text names the shape alone:
    # "a circle"
    unseen: Strings = ()  # combinations such as "red circle" that only the embedded test data have
    unseen_valid: Strings = ()  # combinations that only the embedded validation data have; empty: those of training
    locales: Annotated[tuple[str, str], BeforeValidator(as_strings)] = ("en", "de")  # of the embedded pairs of texts:
    # dates in two languages
    examples: Positive = 20000  # embedded training pairs
