"""Sound as log-mel frames, as Whisper reads it. soundfile and scipy (the extra `audio`) are imported where used."""

import math
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ...errors import UserError
from ..base import Array, Rng, to_array
from .frames import SoundFrames, griffin_lim, warp_frequencies
from .read import RawSound as RawSound
from .read import Samples as Samples
from .read import read_sound as read_sound
from .resample import resample as resample

FLOOR, RANGE = 1e-10, 8.0  # the least power; the powers of ten below the loudest that are kept


@dataclass(frozen=True)
class AudioProcessor(SoundFrames):
    """Log-mel frames (frames, bins) of one channel.

    In training, SpecAugment replaces random ranges of frames and of bins by the mean of the sound.
    """

    seconds: int = 0  # pad with silence or truncate to this length (Whisper: 30); 0: neither

    kind: ClassVar[str] = "audio"
    file: ClassVar[str] = "audio.json"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.seconds < 0:
            raise UserError(f"sound of {self.seconds} seconds is not possible; expected 0 (any length) or more")

    def encode(self, raw: RawSound, rng: Rng | None = None) -> Array:
        """A file, its bytes, `Samples`, or samples at `rate` in -1…1."""
        array = self.samples(raw)
        samples = torch.from_numpy(array if rng is None else self.augment(array, rng))
        if self.seconds:  # first, because the loudest frame sets the floor of all frames
            samples = pad_or_truncate(samples, self.seconds * self.rate)
        if rng is None:
            return self._log_mel(samples)
        return self.mask(self._log_mel(samples, self.draw_warp(rng), self.draw_gains(rng)), rng)

    def mask(self, frames: Array, rng: Rng) -> Array:
        return self.mask_ranges(frames, rng, frames.mean(), len(frames))

    def frames(self, samples: int) -> int:
        """Number of frames for `samples`, including added silence."""
        whole = self.seconds * self.rate or max(samples, self.window // 2 + 1, self.hop)
        return whole // self.hop

    @property
    def longest(self) -> float:
        return self.seconds * min((1.0, *self.speed)) if self.seconds else math.inf

    def seconds_of(self, frame: float) -> float:
        return frame * self.hop / self.rate

    def decode(self, values: Array | Tensor) -> Samples:
        """A sound with these frames. The phases are lost and estimated (Griffin-Lim)."""
        frames = torch.from_numpy(to_array(values).astype(np.float32))
        inverse = torch.linalg.pinv(mel_filters(self.rate, self.window, self.bins))
        magnitudes = (inverse @ (10 ** (frames.T * 4 - 4))).clamp(min=0).sqrt()  # (frequencies, frames)
        magnitudes = torch.cat([magnitudes, magnitudes[:, -1:]], 1)  # the last frame was dropped
        return Samples(griffin_lim(magnitudes, torch.hann_window(self.window), self.hop).numpy(), self.rate)

    def _log_mel(self, samples: Tensor, warp: float = 1.0, gains: Array | None = None) -> Array:
        half, least = self.window // 2, max(self.window // 2 + 1, self.hop)  # there is at least one frame
        samples = pad_or_truncate(samples, max(least, len(samples)))
        reflected = torch.cat([samples[1 : half + 1].flip(0), samples, samples[-half - 1 : -1].flip(0)])
        decades = log_mel(reflected, self, warp)[: len(samples) // self.hop]
        if gains is not None:
            decades += torch.from_numpy(gains / 10)
        return scale_decades(decades, float(decades.max()) - RANGE)


def log_mel(samples: Tensor, sound: AudioProcessor, warp: float = 1.0) -> Tensor:
    """(frames, bins): the logarithms of the power of all whole windows of the samples."""
    hann = torch.hann_window(sound.window)
    spectrum = torch.stft(samples, sound.window, sound.hop, window=hann, center=False, return_complex=True).T
    energies = torch.addcmul(spectrum.real.square(), spectrum.imag, spectrum.imag)  # (frames, frequencies), contiguous
    make_filters = mel_filters if warp == 1 else mel_filters.__wrapped__  # random factors do not repeat: no cache
    with torch.autocast("cpu", enabled=False):  # a model beside it may run in bf16
        return (energies @ make_filters(sound.rate, sound.window, sound.bins, warp).T).clamp_(min=FLOOR).log10_()


def scale_decades(decades: Tensor, floor: float) -> Array:
    """Frames as the model reads them. Writes into `decades`."""
    frames: Array = decades.clamp_(min=floor).add_(4).div_(4).numpy()
    return frames


def pad_or_truncate(samples: Tensor, count: int) -> Tensor:
    """The first `count` samples, padded with silence."""
    missing = count - len(samples)
    return torch.nn.functional.pad(samples, (0, missing)) if missing else samples


@cache
def mel_filters(rate: int, window: int, bins: int, warp: float = 1.0) -> Tensor:
    """(bins, frequencies): triangles of equal area on the mel scale of Slaney's Auditory Toolbox, up to rate / 2.

    With `warp`, a tone falls into the bin of `warp` times its frequency.
    """
    frequencies = np.linspace(0, rate / 2, window // 2 + 1)
    frequencies = frequencies if warp == 1 else warp_frequencies(frequencies, warp)
    corners = _from_mel(np.linspace(0, _to_mel(rate / 2), bins + 2))
    rising = (frequencies - corners[:-2, None]) / np.diff(corners)[:-1, None]
    falling = (corners[2:, None] - frequencies) / np.diff(corners)[1:, None]
    triangles = np.maximum(0, np.minimum(rising, falling)) * (2 / (corners[2:] - corners[:-2]))[:, None]
    return torch.from_numpy(np.ascontiguousarray(triangles.T, np.float32)).T  # transposed again where it is used


# Linear below 1 kHz (15 mels), logarithmic above: 27 mels multiply the frequency by 6.4.


def _to_mel(frequency: float) -> float:
    linear = frequency * 3 / 200
    return linear if frequency < 1000 else 15 + np.log(frequency / 1000) * 27 / np.log(6.4)


def _from_mel(mels: Array) -> Array:
    return np.where(mels < 15, mels * 200 / 3, 1000 * np.exp((mels - 15) * np.log(6.4) / 27))
