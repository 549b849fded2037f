"""Turning a model's next-token scores into texts. Shared by every family that can `start` and `step`."""

from .beam import Hypothesis, Settings
from .constrained_beam import Must, Phrase
from .cuda_graph import Decodable
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
)
from .sample import Draw
from .search import search, steps
from .stop_strings import Stops

__all__ = [
    "Decodable", "Draw", "Ensemble", "Filter", "Forbid", "ForcedEnd", "Hypothesis", "MinP", "Must", "Opening",
    "Phrase", "Renormalise", "RepetitionPenalty", "Settings", "Stops", "Suppress", "Temperature", "TopK", "TopP",
    "search", "steps",
]  # fmt: skip
