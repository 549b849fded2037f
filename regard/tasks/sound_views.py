"""The axes of attention over sound."""

import numpy as np

from ..look import FrameSegment, ViewAxis
from ..processors.base import Array
from ..processors.sound.frames import SoundFrames


def frame_axis(sound: SoundFrames, stride: int, positions: int, frames: Array | None = None) -> ViewAxis:
    """Encoder positions, each `stride` frames after the last, with their times and the frames that they come from."""
    first, second = (sound.seconds_of(place * stride) for place in (0, 1))
    spectrogram = np.zeros((0, 0), np.float32) if frames is None else np.asarray(frames, np.float32)
    return ViewAxis("second", (FrameSegment(positions, second - first, first, spectrogram),))
