"""Frames of sound, of which convolutions leave every fourth or every second."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class FrameConvolutions(nn.Module):
    """Two convolutions over time and frequency, each with stride 2, and a linear map: (batch, frames, bins) -> width.

    Invalid frames are zero before each convolution, as the border is: padding changes nothing.
    """

    def __init__(self, bins: int, channels: int, width: int, maps: Iterable[nn.Module] = ()) -> None:
        """`maps` change the map (batch, channels, frames / 4, bins / 4) in turn, given which frames are valid."""
        super().__init__()
        self.first = nn.Conv2d(1, channels, 3, 2, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, 2, padding=1)
        self.maps = nn.ModuleList(maps)
        self.project = nn.Linear(channels * -(-bins // 4), width)

    def forward(self, frames: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """The vectors (batch, frames / 4, width), and which of them are valid."""
        x = mask_frames(frames.to(self.first.weight.dtype)[:, None], valid)  # (batch, 1, frames, bins)
        for convolution in (self.first, self.second):
            valid = None if valid is None else valid[:, ::2]
            x = mask_frames(torch.relu(convolution(x)), valid)
        for change in self.maps:
            x = change(x, valid)
        vectors: Tensor = self.project(x.transpose(1, 2).flatten(2))
        return vectors, valid


def mask_frames(x: Tensor, valid: Tensor | None) -> Tensor:
    """x (batch, channels, frames, bins) with zeros in invalid frames."""
    return x if valid is None else x * valid[:, None, :, None].to(x.dtype)


class TimeConvolutions(nn.Module):
    """Whisper: two convolutions over time, the second with stride 2: (batch, frames, bins) -> width.

    Invalid frames are zero before each convolution, as the border is: padding changes nothing.
    """

    def __init__(self, bins: int, width: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(bins, width, 3, padding=1)
        self.second = nn.Conv1d(width, width, 3, 2, padding=1)

    def forward(self, frames: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """The vectors (batch, frames / 2, width), and which of them are valid."""
        x = frames.to(self.first.weight.dtype).transpose(1, 2)  # (batch, bins, frames)
        for convolution in (self.first, self.second):
            x = x if valid is None else x * valid[:, None].to(x.dtype)
            x = F.gelu(convolution(x))
        return x.transpose(1, 2), None if valid is None else valid[:, ::2]
