"""Windows of the log-mel frames of a long recording. Memory does not grow with its length.

The frames equal those of the whole recording: only its borders are reflected, and its loudest frame sets the floor. So
a recording is read twice, first for the loudest frame.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from ..base import Array
from .log_mel import FLOOR, RANGE, AudioProcessor, log_mel, scale_decades
from .read import RawSound, stream_sound


class FrameWindows:
    """Windows at ascending positions."""

    def __init__(self, raw: RawSound, sound: AudioProcessor) -> None:
        self.sound, self.size = sound, sound.seconds * sound.rate // sound.hop
        self.samples, self.total, loudest = 0, 0, -np.inf  # samples and frames of the recording
        for decades in frame_blocks(self._counted(raw), sound):
            self.total += len(decades)
            loudest = max(loudest, float(decades.max()))
        self.silent = loudest < np.log10(FLOOR) + 1e-3  # all frames are equal
        self._floor = loudest - RANGE
        self._blocks, self._first = frame_blocks(stream_sound(raw, sound.rate), sound), 0
        self._frames = np.zeros((0, sound.bins), np.float32)  # from frame `_first` on

    def _counted(self, raw: RawSound) -> Iterator[Array]:
        for block in stream_sound(raw, self.sound.rate):
            self.samples += len(block)
            yield block

    def __call__(self, first: int) -> Array:
        """The frames of the window from frame `first` on; the last windows of a recording have fewer."""
        while self._first + len(self._frames) < min(first + self.size, self.total):
            block = scale_decades(next(self._blocks), self._floor)
            keep = self._frames[max(first - self._first, 0) :]
            self._first += len(self._frames) - len(keep)
            self._frames = np.concatenate([keep, block])
        begin = first - self._first
        return self._frames[begin : begin + self.size]


class FilledWindow:
    """The windows of a recording that fits into one. It is padded with silence before its frames are computed."""

    def __init__(self, samples: Array, sound: AudioProcessor) -> None:
        self._frames = sound.encode(samples)
        self.samples, self.silent = len(samples), not (len(samples) and samples.min() < samples.max())
        self.size, self.total = len(self._frames), max(len(samples) // sound.hop, 1)

    def __call__(self, first: int) -> Array:
        return self._frames[first : self.total] if first else self._frames


def frame_blocks(blocks: Iterable[Array], sound: AudioProcessor) -> Iterator[Tensor]:
    """The frames of a whole recording as logarithms of power, block by block."""
    half, hop = sound.window // 2, sound.hop
    waiting, total, begun = np.zeros(0, np.float32), 0, False  # `waiting`: from half a window before the next frame
    frames = 0
    for block in blocks:
        waiting, total = np.concatenate([waiting, block]), total + len(block)
        if not begun and total > half:
            waiting, begun = np.concatenate([waiting[half:0:-1], waiting]), True
        count = min((len(waiting) - sound.window) // hop + 1, total // hop - frames) if begun else 0
        if count > 0:
            yield log_mel(torch.from_numpy(waiting[: (count - 1) * hop + sound.window]), sound)
            waiting, frames = waiting[count * hop :], frames + count
    rest = total // hop - frames
    if rest > 0:
        last = np.concatenate([waiting, waiting[-2 : -half - 2 : -1]])
        yield log_mel(torch.from_numpy(last[: (rest - 1) * hop + sound.window]), sound)
