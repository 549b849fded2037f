"""The base of sound processors: samples at one rate, batches of frames, SpecAugment, sound from magnitudes."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ...errors import UserError
from ...parts.inputs import Inputs, TensorKind
from ..base import Array, Rng, SavedSettings, pad_arrays
from .read import RawSound, Samples, read_sound
from .resample import change_speed, resample

GRIFFIN_LIM_STEPS = 32
SPEEDS = WARPS = 0.5, 2.0
WARPED = 0.9  # share of the frequencies up to rate / 2 that a warp multiplies
BANDS = 5  # of the equalizer; its gains are linear between their centers


@dataclass(frozen=True)
class SoundFrames(SavedSettings):
    """Frames (frames, bins) of one channel."""

    kind: ClassVar[str]
    file: ClassVar[str]
    rate: int = 16000  # samples per second
    bins: int = 80
    window: int = 400  # samples of a frame
    hop: int = 160  # samples from one frame to the next
    frame_masks: int = 2  # number and maximal width of the ranges that SpecAugment masks
    frame_width: int = 50
    bin_masks: int = 2
    bin_width: int = 15
    speed: tuple[float, ...] = ()  # training draws one of them; tempo and pitch change together; empty: unchanged
    noise: float = 0.0  # how often training adds noise
    snr: tuple[float, float] = (5.0, 30.0)  # signal-to-noise ratio of that noise in decibels: from, to
    vtlp: tuple[float, float] = (1.0, 1.0)  # training multiplies the frequencies by a factor: from, to
    equalizer: float = 0.0  # standard deviation of the random gains of bands in training, in decibels

    def __post_init__(self) -> None:
        if min(self.rate, self.bins, self.window, self.hop) < 1 or self.hop > self.window:
            raise UserError(
                f"frames of rate={self.rate}, bins={self.bins}, window={self.window}, hop={self.hop} are not possible; "
                "expected positive numbers, hop at most window"
            )
        wide = self.bin_masks and self.bin_width > self.bins
        if min(self.frame_masks, self.frame_width, self.bin_masks, self.bin_width) < 0 or wide:
            raise UserError(f"a mask of {self.bin_width} bins does not fit {self.bins}; expected 0 to {self.bins}")
        if not all(SPEEDS[0] <= speed <= SPEEDS[1] for speed in self.speed):
            raise UserError(
                f"speed is {self.speed}; expected numbers from {SPEEDS[0]} to {SPEEDS[1]}, such as 0.9,1,1.1"
            )
        if not 0 <= self.noise <= 1 or len(self.snr) != 2 or not self.snr[0] <= self.snr[1]:
            raise UserError(
                f"noise is {self.noise} and snr {self.snr}; expected a share of 0…1 and two numbers of decibels, the "
                "smaller one first"
            )
        if len(self.vtlp) != 2 or not WARPS[0] <= self.vtlp[0] <= self.vtlp[1] <= WARPS[1] or self.equalizer < 0:
            raise UserError(
                f"vtlp is {self.vtlp} and equalizer {self.equalizer}; expected two factors from {WARPS[0]} to "
                f"{WARPS[1]}, the smaller one first, and decibels of at least 0"
            )

    @property
    def modality(self) -> TensorKind:
        return "frames"

    @abstractmethod
    def encode(self, raw: RawSound, rng: Rng | None = None) -> Array:
        """The frames of a sound; with `rng`, augmented as in training."""

    @abstractmethod
    def mask(self, frames: Array, rng: Rng) -> Array:
        """SpecAugment. Writes into `frames`."""

    @abstractmethod
    def frames(self, samples: int) -> int:
        """Number of frames for `samples`."""

    @property
    def longest(self) -> float:
        """The length in seconds up to which no recording is truncated, at any `speed`."""
        return math.inf

    @abstractmethod
    def seconds_of(self, frame: float) -> float:
        """The time of the center of a frame."""

    @abstractmethod
    def decode(self, values: Array | Tensor) -> Samples:
        """A sound with these frames, approximately."""

    def samples(self, raw: RawSound) -> Array:
        """The samples of one channel at `rate`, float32. Arrays and tensors have this rate already."""
        samples, rate = read_sound(raw, self.rate)
        return samples if rate == self.rate else resample(samples, rate, self.rate)

    @property
    def augments_samples(self) -> bool:
        """True if training augments samples, so that frames must be computed again; masks need no new frames."""
        return bool(self.speed or self.noise or self.vtlp != (1, 1) or self.equalizer)

    @property
    def masks(self) -> bool:
        """True if training masks frames or bins."""
        return bool(self.frame_masks or self.bin_masks)

    def augment(self, samples: Array, rng: Rng) -> Array:
        """The samples at a random speed and with noise, according to `speed`, `noise` and `snr`."""
        if self.speed:
            ratio = speed_ratio(self.speed[int(rng.integers(len(self.speed)))])
            samples = change_speed(samples, ratio.denominator, ratio.numerator)
        if self.noise and rng.random() < self.noise:
            samples = add_sound_noise(samples, rng.uniform(*self.snr), rng)
        return samples

    def draw_warp(self, rng: Rng) -> float:
        """A random factor within `vtlp`; its logarithm is uniform."""
        low, high = self.vtlp
        return low if low == high else math.exp(rng.uniform(math.log(low), math.log(high)))

    def draw_gains(self, rng: Rng) -> Array | None:
        """The gains of all bins in decibels, a random curve of `equalizer`. None: no gains."""
        if not self.equalizer:
            return None
        gains = rng.normal(0, self.equalizer, BANDS)
        return np.interp(np.arange(self.bins), np.linspace(0, self.bins - 1, BANDS), gains).astype(np.float32)

    def cost(self, encoded: Array) -> int:
        return len(encoded)

    def collate(self, encoded: Sequence[Array]) -> Inputs:
        return Inputs("frames", *pad_arrays(encoded))

    def mask_ranges(self, frames: Array, rng: Rng, value: float | Array, longest: int) -> Array:
        """SpecAugment: write `value` into random ranges of at most `longest` frames, and of bins, of `frames`."""
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


def speed_ratio(speed: float) -> Fraction:
    """The speed as a fraction of small numbers, for which resampling is fast."""
    return Fraction(speed).limit_denominator(100)


def warp_frequencies(frequencies: Array, factor: float) -> Array:
    """Vocal tract length perturbation (Jaitly and Hinton, 2013): the frequencies times a factor.

    The last frequency is fixed; above WARPED the map is a straight line to it.
    """
    last = float(frequencies[-1])
    knee = WARPED * last * min(1, 1 / factor)
    above = last - (last - knee * factor) * (last - frequencies) / (last - knee)
    return np.where(frequencies <= knee, frequencies * factor, above)


def add_sound_noise(samples: Array, snr: float, rng: Rng) -> Array:
    """The samples with white or pink (1/f) noise, equally often, at `snr` decibels. Silence stays silence."""
    noise: Array = rng.standard_normal(1 << len(samples).bit_length(), np.float32)
    if rng.random() < 0.5:
        spectrum = np.fft.rfft(noise)
        noise = np.fft.irfft(spectrum / np.sqrt(np.maximum(np.arange(len(spectrum)), 1)))
    noise = noise[: len(samples)]
    power, noise_power = (float(np.square(signal, dtype=np.float64).mean()) for signal in (samples, noise))
    if not power or not noise_power:
        return samples
    return samples + (noise * math.sqrt(power / noise_power / 10 ** (snr / 10))).astype(np.float32)


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
