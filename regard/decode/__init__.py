"""Decoding: beam search, greedy search and sampling for every model that has `start` and `step`."""

from .beam import Hypothesis, SearchSettings
from .constrained_beam import Phrase, RequiredPhrases
from .cuda_graph import StepModel
from .ensemble import Ensemble
from .filters import (
    Filter,
    FirstToken,
    Forbid,
    ForcedEnd,
    MinP,
    Renormalize,
    RepetitionPenalty,
    Suppress,
    Temperature,
    TopK,
    TopP,
)
from .sample import SamplingSettings
from .search import search, steps
from .stop_strings import StopStrings

__all__ = [
    "Ensemble",
    "Filter",
    "FirstToken",
    "Forbid",
    "ForcedEnd",
    "Hypothesis",
    "MinP",
    "Phrase",
    "Renormalize",
    "RepetitionPenalty",
    "RequiredPhrases",
    "SamplingSettings",
    "SearchSettings",
    "StepModel",
    "StopStrings",
    "Suppress",
    "Temperature",
    "TopK",
    "TopP",
    "search",
    "steps",
]
