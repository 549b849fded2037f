"""Turning a model's next-token scores into texts. Shared by every family that can `start` and `step`."""

from .filters import Filter, ForcedEnd, Renormalise, Suppress
from .search import Decodable, Hypothesis, Settings, search

__all__ = ["Decodable", "Filter", "ForcedEnd", "Hypothesis", "Renormalise", "Settings", "Suppress", "search"]
