"""The bricks. Families import them from here; nothing below imports upwards."""

from . import slots
from .attention import Attention
from .cache.base import Cache, InputBook, Inputs, Memory
from .dropout import Dropout
from .feed import Convolution, Feed, Gated
from .init import glorot, initialise, normal, ones, zeros
from .kernels import Additive, Kernel, Recent, Softmax
from .layer import Cross, Layer, Residual, Stack
from .masks import Mask
from .positions import Added, Bucketed, Grid, Learned, Positions, Relative, Rotary, Sinusoid, Where

__all__ = [
    "Added", "Additive", "Attention", "Bucketed", "Cache", "Convolution", "Cross", "Dropout", "Feed", "Gated", "Grid",
    "InputBook", "Inputs", "Kernel", "Layer", "Learned", "Mask", "Memory", "Positions", "Recent", "Relative",
    "Residual", "Rotary", "Sinusoid", "Softmax", "Stack", "Where", "glorot", "initialise", "normal", "ones", "slots",
    "zeros",
]  # fmt: skip
