"""What a training has measured for predictions: the entry `measured` of run.json. Older runs have none."""

from pathlib import Path

from pydantic import ConfigDict, ValidationError

from ..errors import UserError
from .run_folder import FILE, read_run
from .types import Base, Positive

KEY = "measured"


class AlignmentHeads(Base):
    """The cross-attention that aligns best: a layer, and one of its heads or, without `head`, their mean."""

    layer: Positive
    head: Positive | None = None


class WordTimes(Base):
    """How CTC alone, which does not know where there is sound, finds the words of validation recordings."""

    tokens_in_sound: float  # the share of the tokens that it finds where there is sound
    sound: float  # the share of the recordings that is sound: what tokens at random places would reach

    @property
    def reliable(self) -> bool:
        """Whether it finds the tokens at least half-way between random places and sound alone."""
        return self.tokens_in_sound - self.sound >= (1 - self.sound) / 2 or self.sound > MOSTLY


MOSTLY = 0.95  # recordings with more sound say nothing about the times


class Measurements(Base):
    """Facts about the data and the model of a run; None is unknown."""

    model_config = ConfigDict(extra="ignore")  # of later versions
    longest_seconds: float | None = None  # of a recording of the training
    alignment: AlignmentHeads | None = None  # chosen on validation data
    word_times: WordTimes | None = None  # the check of the times of words in validation recordings


def read_measured(folder: Path) -> Measurements:
    """What the training of the run in `folder` has measured."""
    entry = read_run(folder).get(KEY, {})
    try:
        return Measurements.model_validate(entry)
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, (KEY, *problem["loc"])))
        raise UserError(f"{folder / FILE}: {place} is {problem['input']!r:.60}; restore it, or remove {KEY}") from error
