"""Kernels that do not look at every key: time and memory that grow as the text does."""

from .blocks import Blocks
from .lowrank import LowRank
from .random_features import RandomFeatures
from .window import Band, GlobalAttention

__all__ = ["Band", "Blocks", "GlobalAttention", "LowRank", "RandomFeatures"]
