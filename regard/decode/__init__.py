"""Turning a model's next-token scores into texts. Shared by every family that can `start` and `step`."""

from .beams import Hypothesis, Settings
from .constraints import Must, Phrase
from .ensemble import Ensemble
from .filters import (
    Filter,
    Forbid,
    ForcedEnd,
    MinP,
    Opening,
    Renormalise,
    RepetitionPenalty,
    Suppress,
    Temperature,
    TopK,
    TopP,
)  # fmt: skip
from .sample import Draw
from .search import Decodable, search, steps
from .stops import Stops

__all__ = [
    "Decodable", "Draw", "Ensemble", "Filter", "Forbid", "ForcedEnd", "Hypothesis", "MinP", "Must", "Opening",
    "Phrase", "Renormalise", "RepetitionPenalty", "Settings", "Stops", "Suppress", "Temperature", "TopK", "TopP",
    "search", "steps",
]  # fmt: skip
