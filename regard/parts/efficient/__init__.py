"""Kernels that do not look at every key: time and memory that grow as the text does."""

from .blocks import Blocks as Blocks
from .features import RandomFeatures as RandomFeatures
from .lowrank import LowRank as LowRank
from .window import Band as Band
from .window import GlobalAttention as GlobalAttention
