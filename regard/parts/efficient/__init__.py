"""Efficient kernels: their time and memory grow linearly with the text."""

from .blocks import BlockSparseKernel
from .lowrank import LowRankKernel
from .random_features import RandomFeatureKernel
from .window import GlobalAttention, WindowKernel

__all__ = ["WindowKernel", "BlockSparseKernel", "GlobalAttention", "LowRankKernel", "RandomFeatureKernel"]
