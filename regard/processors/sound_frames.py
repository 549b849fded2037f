"""What processors of sound share: samples at one rate, batches of frames, SpecAugment, sound from magnitudes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError
from ..parts.inputs import Inputs, Modality
from .base import Array, Rng, SavedSettings, pad_arrays
from .read_sound import RawSound, read_sound
from .resample import resample

GRIFFIN_LIM_STEPS = 32


@dataclass(frozen=True)
class SoundFrames(SavedSettings):
    """Frames (frames, bins) of one channel."""

    rate: int = 16000  # samples per second
    bins: int = 80
    window: int = 400  # samples of a frame
    hop: int = 160  # samples from one frame to the next
    frame_masks: int = 2  # ranges that SpecAugment masks, and the most frames and bins of one
    frame_width: int = 50
    bin_masks: int = 2
    bin_width: int = 15

    def __post_init__(self) -> None:
        if min(self.rate, self.bins, self.window, self.hop) < 1 or self.hop > self.window:
            raise UserError(
                f"frames of rate={self.rate}, bins={self.bins}, window={self.window}, hop={self.hop} are not possible; "
                "expected positive numbers, hop at most window"
            )
        wide = self.bin_masks and self.bin_width > self.bins
        if min(self.frame_masks, self.frame_width, self.bin_masks, self.bin_width) < 0 or wide:
            raise UserError(f"a mask of {self.bin_width} bins does not fit {self.bins}; expected 0 to {self.bins}")

    @property
    def modality(self) -> Modality:
        return "frames"

    def samples(self, raw: RawSound) -> Array:
        """The samples of one channel at `rate`, float32. Arrays and tensors have this rate already."""
        samples, rate = read_sound(raw, self.rate)
        return samples if rate == self.rate else resample(samples, rate, self.rate)

    def cost(self, encoded: Array) -> int:
        return len(encoded)

    def collate(self, encoded: Sequence[Array]) -> Inputs:
        return Inputs("frames", *pad_arrays(encoded))

    def mask_ranges(self, frames: Array, rng: Rng, value: float | Array, longest: int) -> Array:
        """SpecAugment: `value` in random ranges of at most `longest` frames, and of bins. Writes into `frames`."""
        widths = min(self.frame_width, longest), min(self.bin_width, frames.shape[1])
        for axis, count in ((0, self.frame_masks), (1, self.bin_masks)):
            for _ in range(count):
                length = int(rng.integers(widths[axis] + 1))
                first = int(rng.integers(frames.shape[axis] - length + 1))
                if axis == 0:
                    frames[first : first + length] = value
                else:
                    frames[:, first : first + length] = np.broadcast_to(value, frames.shape[1])[first : first + length]
        return frames


def griffin_lim(magnitudes: Tensor, window: Tensor, hop: int) -> Tensor:
    """Samples whose spectrum has these magnitudes (frequencies, frames). The phases are lost and estimated.

    Frame i is centered at sample i · hop, and there are (frames - 1) · hop samples.
    """
    size = 2 * (len(magnitudes) - 1)
    spectrum = magnitudes + 0j
    for _ in range(GRIFFIN_LIM_STEPS):
        samples = torch.istft(spectrum, size, hop, len(window), window)
        phases = torch.stft(samples, size, hop, len(window), window, pad_mode="constant", return_complex=True)
        spectrum = magnitudes * phases / phases.abs().clamp(min=1e-8)
    return torch.istft(spectrum, size, hop, len(window), window)
