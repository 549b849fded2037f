"""Decoding: search/ chooses tokens, engine/ runs requests, parallel/ decodes all tokens at once.

It works for every model that has `start` and `step`. From texts to requests and back is the work of `tasks/generate`.
"""

from ..config.strategies import Beam, DecodeStrategy, Greedy, Sample, TokenRules
from .engine.closed_batch import run_search, search_steps
from .engine.cuda_graph import StepModel
from .engine.generator import Generator, Handle
from .engine.requests import Finish, SearchRequest
from .engine.wrappers import Ensemble, JointCTC
from .search.beam import Hypothesis, SearchSettings
from .search.constrained_beam import Phrase, RequiredPhrases
from .search.draw import SamplingSettings
from .search.filters import (
    Filter,
    FirstToken,
    Forbid,
    ForcedEnd,
    Renormalize,
    RepetitionPenalty,
    Suppress,
)
from .search.texts import StopStrings

__all__ = [
    "Beam",
    "DecodeStrategy",
    "Ensemble",
    "Filter",
    "Finish",
    "FirstToken",
    "Forbid",
    "ForcedEnd",
    "SearchRequest",
    "Generator",
    "Greedy",
    "Handle",
    "Hypothesis",
    "JointCTC",
    "Phrase",
    "Renormalize",
    "RepetitionPenalty",
    "RequiredPhrases",
    "Sample",
    "SamplingSettings",
    "SearchSettings",
    "StepModel",
    "StopStrings",
    "Suppress",
    "TokenRules",
    "run_search",
    "search_steps",
]
