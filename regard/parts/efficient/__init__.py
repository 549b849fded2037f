"""Efficient kernels, whose time and memory grow linearly with the text: windows, blocks, random features, low rank.

Dense attention is in `parts/kernels.py`.
"""

from .blocks import BlockSparseKernel
from .lowrank import LowRankKernel
from .random_features import RandomFeatureKernel
from .window import GlobalAttention, WindowKernel

__all__ = ["WindowKernel", "BlockSparseKernel", "GlobalAttention", "LowRankKernel", "RandomFeatureKernel"]
