"""Frames of sound, of which convolutions leave every fourth."""

import torch
from torch import Tensor, nn


class FrameConvolutions(nn.Module):
    """Two convolutions over time and frequency, each with stride 2, and a linear map: (batch, frames, bins) -> width.

    Invalid frames are zero before each convolution, as the border is: padding changes nothing.
    """

    def __init__(self, bins: int, channels: int, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, channels, 3, 2, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, 2, padding=1)
        self.project = nn.Linear(channels * -(-bins // 4), width)

    def forward(self, frames: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """The vectors (batch, frames / 4, width), and which of them are valid."""
        x = mask_frames(frames.to(self.first.weight.dtype)[:, None], valid)  # (batch, 1, frames, bins)
        for convolution in (self.first, self.second):
            valid = None if valid is None else valid[:, ::2]
            x = mask_frames(torch.relu(convolution(x)), valid)
        vectors: Tensor = self.project(x.transpose(1, 2).flatten(2))
        return vectors, valid


def mask_frames(x: Tensor, valid: Tensor | None) -> Tensor:
    """x (batch, channels, frames, bins) with zeros in invalid frames."""
    return x if valid is None else x * valid[:, None, :, None].to(x.dtype)
