"""2-D attention of the Speech-Transformer (ICASSP 2018): a map of time and frequency attends along both axes."""

import torch
from torch import Tensor, nn

from ..kernels import SoftmaxKernel
from ..masks import Mask
from .frames import mask_frames


class Attention2D(nn.Module):
    """A map (batch, channels, frames, bins) plus its 2-D attention.

    Convolutions make queries, keys and values. Every channel attends once over time, where the vector of a frame holds
    its bins, and once over frequency, where the vector of a bin holds its frames. A convolution joins both results. The
    paper normalizes by batches; a layer norm of the channels at each place lets padding and batch-mates change nothing.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.query, self.key, self.value = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(3))
        self.out = nn.Conv2d(2 * channels, channels, 3, padding=1)
        self.kernel = SoftmaxKernel(scale=1.0)

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """Invalid frames of `x` are zero, and so are those of the result."""
        normed = mask_frames(self.norm(x.movedim(1, -1)).movedim(-1, 1), valid)
        q, k, v = (mask_frames(convolve(normed), valid) for convolve in (self.query, self.key, self.value))
        over_time = self.kernel(q * x.size(3) ** -0.5, k, v, Mask(key_valid=valid))
        frames = x.new_tensor(x.size(2)) if valid is None else valid.sum(1).clamp(min=1)[:, None, None, None]
        turned = (x.transpose(2, 3) for x in (q * frames.rsqrt().to(q.dtype), k, v))
        over_frequency = self.kernel(*turned, Mask()).transpose(2, 3)
        return x + mask_frames(self.out(mask_frames(torch.cat([over_time, over_frequency], 1), valid)), valid)
