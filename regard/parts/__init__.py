"""The parts that families are built of: layers, attention kernels, positions, caches, masks, losses.

They depend on torch only, and families import them from here. A part knows no family, no task and no file.
"""

from . import slots
from .attention import Attention
from .cache import Cache, InputCache, InputLayout, LayerCache
from .dropout import Dropout
from .feed import ConvFeedForward, FeedForward, GatedFeedForward
from .init import glorot, initialize, normal, ones, zeros
from .inputs import Detections, Encoded, Inputs
from .kernels import AdditiveKernel, Kernel, RollingSoftmaxKernel, SoftmaxKernel
from .layer import Cross, Layer, Residual, Stack
from .masks import Mask
from .mixer import SequenceMixer
from .positions import (
    AddedTerms,
    BucketPositions,
    GridPositions,
    LearnedPositions,
    Positions,
    PositionTerms,
    RelativePositions,
    RotaryPositions,
    SinusoidPositions,
)

__all__ = [
    "AddedTerms",
    "AdditiveKernel",
    "Attention",
    "BucketPositions",
    "Cache",
    "ConvFeedForward",
    "Cross",
    "Detections",
    "Dropout",
    "Encoded",
    "FeedForward",
    "GatedFeedForward",
    "GridPositions",
    "InputCache",
    "InputLayout",
    "Inputs",
    "Kernel",
    "Layer",
    "LayerCache",
    "LearnedPositions",
    "Mask",
    "PositionTerms",
    "Positions",
    "RelativePositions",
    "Residual",
    "RollingSoftmaxKernel",
    "RotaryPositions",
    "SequenceMixer",
    "SinusoidPositions",
    "SoftmaxKernel",
    "Stack",
    "glorot",
    "initialize",
    "normal",
    "ones",
    "slots",
    "zeros",
]
