"""Sound as log-mel frames, as Whisper reads it. soundfile and scipy (the extra `audio`) are imported where used."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError
from ..parts.inputs import Inputs, Modality
from .base import Array, Rng, SavedSettings, pad_arrays, to_array
from .read_sound import RawSound as RawSound
from .read_sound import Sound as Sound
from .read_sound import read_sound as read_sound
from .resample import resample as resample

FLOOR, RANGE = 1e-10, 8.0  # the least power; the powers of ten below the loudest that are kept
GRIFFIN_LIM_STEPS = 32


@dataclass(frozen=True)
class AudioProcessor(SavedSettings):
    """Log-mel frames (frames, bins) of one channel.

    In training, SpecAugment replaces random ranges of frames and of bins by the mean of the sound.
    """

    rate: int = 16000  # samples per second
    bins: int = 80
    window: int = 400  # samples of a Fourier transform
    hop: int = 160  # samples from one frame to the next
    frame_masks: int = 2  # ranges that SpecAugment masks, and the most frames and bins of one
    frame_width: int = 50
    bin_masks: int = 2
    bin_width: int = 15
    kind: ClassVar[str] = "audio"
    file: ClassVar[str] = "audio.json"

    def __post_init__(self) -> None:
        if min(self.rate, self.bins, self.window, self.hop) < 1 or self.hop > self.window:
            raise UserError(
                f"frames of rate={self.rate}, bins={self.bins}, window={self.window}, hop={self.hop} are not possible; "
                "expected positive numbers, hop at most window"
            )
        if min(self.frame_masks, self.frame_width, self.bin_masks, self.bin_width) < 0 or self.bin_width > self.bins:
            raise UserError(f"a mask of {self.bin_width} bins does not fit {self.bins}; expected 0 to {self.bins}")

    @property
    def modality(self) -> Modality:
        return "frames"

    def encode(self, raw: RawSound, rng: Rng | None = None) -> Array:
        """A file, its bytes, a Sound, or samples at `rate` in -1…1."""
        samples = self.samples(raw)
        frames = self._log_mel(torch.from_numpy(samples))
        return frames if rng is None else self._mask(frames, rng)

    def samples(self, raw: RawSound) -> Array:
        """The samples of one channel at `rate`, float32."""
        samples, rate = read_sound(raw, self.rate)
        return samples if rate == self.rate else resample(samples, rate, self.rate)

    def cost(self, encoded: Array) -> int:
        return len(encoded)

    def collate(self, encoded: Sequence[Array]) -> Inputs:
        return Inputs("frames", *pad_arrays(encoded))

    def decode(self, values: Array | Tensor) -> Sound:
        """A sound with these frames. The phases are lost and estimated (Griffin-Lim)."""
        frames = torch.from_numpy(to_array(values).astype(np.float32))
        inverse = torch.linalg.pinv(mel_filters(self.rate, self.window, self.bins))
        magnitudes = (inverse @ (10 ** (frames.T * 4 - 4))).clamp(min=0).sqrt()  # (frequencies, frames)
        magnitudes = torch.cat([magnitudes, magnitudes[:, -1:]], 1)  # the last frame was dropped
        spectrum = magnitudes + 0j
        for _ in range(GRIFFIN_LIM_STEPS):
            phases = self._spectrum(self._inverse(spectrum))
            spectrum = magnitudes * phases / phases.abs().clamp(min=1e-8)
        return Sound(self._inverse(spectrum).numpy(), self.rate)

    def _spectrum(self, samples: Tensor) -> Tensor:
        """(frequencies, frames)"""
        return torch.stft(samples, self.window, self.hop, window=torch.hann_window(self.window), return_complex=True)

    def _inverse(self, spectrum: Tensor) -> Tensor:
        return torch.istft(spectrum, self.window, self.hop, window=torch.hann_window(self.window))

    def _log_mel(self, samples: Tensor) -> Array:
        least = max(self.window // 2 + 1, self.hop)  # the border is reflected, and there is at least one frame
        samples = torch.nn.functional.pad(samples, (0, max(least - len(samples), 0)))
        energies = self._spectrum(samples)[:, :-1].abs().square().contiguous()
        power = mel_filters(self.rate, self.window, self.bins) @ energies  # (bins, frames)
        decades = power.clamp(min=FLOOR).log10()
        frames: Array = ((decades.clamp(min=float(decades.max()) - RANGE) + 4) / 4).T.contiguous().numpy()
        return frames

    def _mask(self, frames: Array, rng: Rng) -> Array:
        mean = frames.mean()
        for axis, count, width in ((0, self.frame_masks, self.frame_width), (1, self.bin_masks, self.bin_width)):
            for _ in range(count):
                length = int(rng.integers(min(width, frames.shape[axis]) + 1))
                first = int(rng.integers(frames.shape[axis] - length + 1))
                np.moveaxis(frames, axis, 0)[first : first + length] = mean
        return frames


@cache
def mel_filters(rate: int, window: int, bins: int) -> Tensor:
    """(bins, frequencies): triangles of equal area on the mel scale of Slaney's Auditory Toolbox, up to rate / 2."""
    frequencies = np.linspace(0, rate / 2, window // 2 + 1)
    corners = _from_mel(np.linspace(0, _to_mel(rate / 2), bins + 2))
    rising = (frequencies - corners[:-2, None]) / np.diff(corners)[:-1, None]
    falling = (corners[2:, None] - frequencies) / np.diff(corners)[1:, None]
    triangles = np.maximum(0, np.minimum(rising, falling)) * (2 / (corners[2:] - corners[:-2]))[:, None]
    return torch.from_numpy(triangles.astype(np.float32))


# Linear below 1 kHz (15 mels), logarithmic above: 27 mels multiply the frequency by 6.4.


def _to_mel(frequency: float) -> float:
    linear = frequency * 3 / 200
    return linear if frequency < 1000 else 15 + np.log(frequency / 1000) * 27 / np.log(6.4)


def _from_mel(mels: Array) -> Array:
    return np.where(mels < 15, mels * 200 / 3, 1000 * np.exp((mels - 15) * np.log(6.4) / 27))
