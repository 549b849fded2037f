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
from .generator import Generator, Handle
from .joint_ctc import JointCTC
from .requests import Finish, Generate
from .sample import SamplingSettings
from .search import search, steps
from .stop_strings import StopStrings
from .strategies import Beam, DecodeStrategy, Greedy, Sample, strategy_from
from .token_rules import TokenRules

__all__ = [
    "Beam",
    "DecodeStrategy",
    "Ensemble",
    "Filter",
    "Finish",
    "FirstToken",
    "Forbid",
    "ForcedEnd",
    "Generate",
    "Generator",
    "Greedy",
    "Handle",
    "Hypothesis",
    "JointCTC",
    "MinP",
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
    "Temperature",
    "TokenRules",
    "TopK",
    "TopP",
    "search",
    "steps",
    "strategy_from",
]
