"""Kernels that do not look at every key: time and memory that grow as the text does."""

from .blocks import BlockSparseKernel
from .lowrank import LowRankKernel
from .random_features import RandomFeatureKernel
from .window import GlobalAttention, WindowKernel

__all__ = ["WindowKernel", "BlockSparseKernel", "GlobalAttention", "LowRankKernel", "RandomFeatureKernel"]
