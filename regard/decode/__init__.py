"""Turning a model's next-token scores into texts. Shared by every family that can `start` and `step`."""

from .beams import Hypothesis, Settings
from .constraints import Must, Phrase
from .ensemble import Ensemble
from .filters import Filter, Forbid, ForcedEnd, Opening, Renormalise, Suppress, Temperature, TopK, TopP
from .record import Decodable
from .sample import Draw
from .search import search

__all__ = [
    "Decodable", "Draw", "Ensemble", "Filter", "Forbid", "ForcedEnd", "Hypothesis", "Must", "Opening", "Phrase",
    "Renormalise", "Settings", "Suppress", "Temperature", "TopK", "TopP", "search",
]  # fmt: skip
