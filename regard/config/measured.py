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


class Measurements(Base):
    """Facts about the data and the model of a run; None is unknown."""

    model_config = ConfigDict(extra="ignore")  # of later versions
    longest_seconds: float | None = None  # of a recording of the training
    alignment: AlignmentHeads | None = None  # chosen on validation data
    tokens_in_sound: float | None = None  # the share of the tokens of validation recordings that CTC alone, without the
    # sound, finds where there is sound


def read_measured(folder: Path) -> Measurements:
    """What the training of the run in `folder` has measured."""
    entry = read_run(folder).get(KEY, {})
    try:
        return Measurements.model_validate(entry)
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, (KEY, *problem["loc"])))
        raise UserError(f"{folder / FILE}: {place} is {problem['input']!r:.60}; restore it, or remove {KEY}") from error
