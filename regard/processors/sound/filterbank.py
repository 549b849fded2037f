"""Sound as log filterbanks, as Kaldi computes them for speech recognition, with augmentation in training."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ...errors import UserError
from ..base import Array, Rng, to_array
from .frames import SoundFrames, griffin_lim, warp_frequencies
from .read import RawSound, Samples, stream_sound
from .resample import RATES

SCALE = 32768.0  # Kaldi reads 16-bit integers
FLOOR = float(np.finfo(np.float32).eps)  # the least energy
PREEMPHASIS = 0.97
LOWEST = 20.0  # Hz
CHUNK = 256  # frames computed at once: they fit the CPU cache
MASKED = 5  # a range of masked frames is at most a fifth of a recording
NATS = math.log(10) / 10  # of power in a decibel
CMVN = "global", "level", "utterance"  # kinds of cepstral mean and variance normalization
LEAST_STD = 1e-6  # of a bin; constant bins are only centered


@dataclass(frozen=True)
class FilterbankProcessor(SoundFrames):
    """Log filterbanks (frames, bins) of windows of 25 ms every 10 ms, as computed by Kaldi without dither.

    `mean` and `std` of every bin normalize the frames: over the training data (see `with_statistics`), or over the
    recording (`cmvn`). Training changes the speed, adds noise, warps frequencies, gives bands random gains, and masks
    ranges of frames and bins by the mean (SpecAugment).
    """

    window: int = 0  # samples; 0: 25 ms
    hop: int = 0  # samples; 0: 10 ms
    frame_masks: int = 0
    frame_width: int = 40  # and at most a fifth of the recording
    bin_masks: int = 0
    bin_width: int = 15
    mean: tuple[float, ...] = ()  # of every bin; empty: frames are not normalized
    std: tuple[float, ...] = ()
    cmvn: str = "global"  # level: every recording gets the same power before; utterance: its own mean and std normalize
    kind: ClassVar[str] = "filterbank"
    file: ClassVar[str] = "filterbank.json"

    def __post_init__(self) -> None:
        if not RATES[0] <= self.rate <= RATES[1]:
            raise UserError(f"rate is {self.rate} samples per second; expected {RATES[0]} to {RATES[1]}")
        object.__setattr__(self, "window", self.window or self.rate * 25 // 1000)
        object.__setattr__(self, "hop", self.hop or self.rate // 100)
        super().__post_init__()
        if self.cmvn not in CMVN:
            raise UserError(f"cmvn is {self.cmvn!r}; expected {' or '.join(CMVN)}")
        sizes = len(self.mean), len(self.std)
        if sizes not in ((0, 0), (self.bins, self.bins)) or not all(0 < std < math.inf for std in self.std):
            raise UserError(
                f"mean has {sizes[0]} numbers and std {sizes[1]}; expected {self.bins} of each, those of std positive, "
                "or none"
            )

    @property
    def fft_size(self) -> int:
        """The window, padded to a power of two."""
        return 1 << (self.window - 1).bit_length()

    def frames(self, samples: int) -> int:
        """Number of frames for `samples`. A sound shorter than a window is padded to one."""
        return 1 + max(samples - self.window, 0) // self.hop

    def seconds_of(self, frame: float) -> float:
        """The time of the center of a frame."""
        return (frame * self.hop + self.window / 2) / self.rate

    def encode(self, raw: RawSound, rng: Rng | None = None) -> Array:
        """A file, its bytes, (samples, rate), or samples at `rate`."""
        samples = self.samples(raw)
        if rng is None:
            return self._normalize(self._energies(samples))
        frames = self._energies(self.augment(samples, rng), self.draw_warp(rng))
        if (gains := self.draw_gains(rng)) is not None:
            frames += gains * NATS
        return self.mask(self._normalize(frames), rng)

    def mask(self, frames: Array, rng: Rng) -> Array:
        """SpecAugment. Writes into `frames`."""
        return self.mask_ranges(frames, rng, 0.0 if self._normalizes else frames.mean(0), len(frames) // MASKED)

    def stream_frames(self, raw: RawSound) -> Iterator[Array]:
        """The frames in blocks, not normalized. Memory does not grow with the length of a file."""
        waiting, any_frames = np.zeros(0, np.float32), False
        for block in stream_sound(raw, self.rate):
            waiting = np.concatenate([waiting, block])
            if len(waiting) >= self.window:
                yield self._energies(waiting)
                waiting, any_frames = waiting[self.frames(len(waiting)) * self.hop :], True
        if not any_frames:
            yield self._energies(waiting)

    def decode(self, values: Array | Tensor) -> Samples:
        """A sound with these frames, approximately: phases are estimated (Griffin-Lim).

        The level of `cmvn="level"` is lost. The mean and std of `cmvn="utterance"` are lost; those of the training data
        replace them.
        """
        frames = to_array(values).astype(np.float32)
        if self.mean:
            frames = frames * np.asarray(self.std, np.float32) + np.asarray(self.mean, np.float32)
        inverse = torch.linalg.pinv(kaldi_filters(self.rate, self.fft_size, self.bins).T)
        magnitudes = (inverse @ torch.from_numpy(frames).exp().T).clamp(min=0).sqrt() / SCALE
        angles = torch.arange(len(magnitudes)) * (2 * math.pi / self.fft_size)
        magnitudes = magnitudes / (1 - PREEMPHASIS * torch.exp(-1j * angles)).abs()[:, None]
        magnitudes = torch.cat([magnitudes, magnitudes[:, -1:]], 1)
        samples = griffin_lim(magnitudes, povey_window(self.window).float(), self.hop).numpy()
        length = self.window + (len(frames) - 1) * self.hop  # the first frame is centered at half a window
        return Samples(np.pad(samples, (self.window // 2, self.window))[:length], self.rate)

    def _energies(self, samples: Array, warp: float = 1.0) -> Array:
        if len(samples) < self.window:
            samples = np.pad(samples, (0, self.window - len(samples)))
        # Random factors do not repeat: no cache.
        make_filters = kaldi_filters if warp == 1 else kaldi_filters.__wrapped__
        filters = make_filters(self.rate, self.fft_size, self.bins, warp)
        windows = torch.from_numpy(samples * np.float64(SCALE)).unfold(0, self.window, self.hop)
        frames: Array = torch.cat(
            [self._chunk_energies(windows[i : i + CHUNK], filters) for i in range(0, len(windows), CHUNK)]
        ).numpy()
        return frames

    def _chunk_energies(self, windows: Tensor, filters: Tensor) -> Tensor:
        """Computes power in float64: in float32, the rounding error of a loud tone exceeds quiet bins beside it."""
        centered = windows - windows.mean(1, keepdim=True)
        emphasized = centered * povey_window(self.window)
        emphasized[:, 1:].addcmul_(centered[:, :-1], povey_window(self.window)[1:], value=-PREEMPHASIS)
        spectrum = torch.view_as_real(torch.fft.rfft(emphasized, self.fft_size))
        power = spectrum.square_().sum(-1).float()  # at the window's first sample, which is 0, nothing is emphasized
        with torch.autocast("cpu", enabled=False):  # a model beside it may run in bf16
            return (power @ filters).clamp(min=FLOOR).log()

    @property
    def _normalizes(self) -> bool:
        return bool(self.mean) or self.cmvn == "utterance"

    def _normalize(self, frames: Array) -> Array:
        if self.cmvn == "level":
            frames = frames - level(np.exp(frames, dtype=np.float64).mean())
        if not self._normalizes:
            return frames
        mean, std = np.asarray(self.mean, np.float32), np.asarray(self.std, np.float32)
        if self.cmvn == "utterance":
            mean, std = frames.mean(0, np.float64), frames.std(0, np.float64)
            std = np.where(std < LEAST_STD, 1.0, std)
        return ((frames - mean) / std).astype(np.float32)


def with_statistics(processor: FilterbankProcessor, sounds: Iterable[RawSound]) -> FilterbankProcessor:
    """The processor with mean and std of every bin over all frames of these sounds, read once."""
    count, first = 0, np.zeros(0)
    sums = np.zeros((2, processor.bins))  # of differences from the first frame and of their squares
    for sound in sounds:
        frame_count, sound_sums, power = 0, np.zeros((2, processor.bins)), 0.0
        for frames in processor.stream_frames(sound):
            first = first if len(first) else frames[0].astype(np.float64)
            differences = frames - first
            sound_sums += differences.sum(0), np.square(differences).sum(0)
            frame_count, power = frame_count + len(frames), power + np.exp(frames, dtype=np.float64).mean(1).sum()
        if processor.cmvn == "level":
            sound_level = float(level(power / frame_count))
            sound_sums[1] += sound_level * (sound_level * frame_count - 2 * sound_sums[0])
            sound_sums[0] -= sound_level * frame_count
        sums += sound_sums
        count += frame_count
    if not count:
        raise UserError("there are no recordings to compute mean and std of; give at least one")
    shift, squares = sums / count
    std = np.sqrt(np.maximum(squares - shift**2, 0))
    mean, std = first + shift, np.where(std < LEAST_STD, 1.0, std)
    return replace(processor, mean=tuple(mean.tolist()), std=tuple(std.tolist()))


def level(power: float) -> np.float32:
    """The level that `cmvn="level"` subtracts from the frames of a recording, from the mean of their energies."""
    return np.float32(np.log(power))


@lru_cache(maxsize=16)
def povey_window(size: int) -> Tensor:
    """Hann's window to the power of 0.85."""
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / max(size - 1, 1))
    return torch.from_numpy(hann**0.85)


@lru_cache(maxsize=16)
def kaldi_filters(rate: int, fft_size: int, bins: int, warp: float = 1.0) -> Tensor:
    """(frequencies, bins): triangles on Kaldi's mel scale from 20 Hz to rate / 2, straight lines in mel.

    With `warp`, a tone falls into the bin of `warp` times its frequency.
    """
    frequencies = np.arange(fft_size // 2 + 1) * (rate / fft_size)
    mels = 1127 * np.log1p((frequencies if warp == 1 else warp_frequencies(frequencies, warp)) / 700)[:, None]
    low, high = 1127 * np.log1p(LOWEST / 700), 1127 * np.log1p(rate / 2 / 700)
    step = (high - low) / (bins + 1)
    centers = low + step * np.arange(1, bins + 1)
    return torch.from_numpy(np.maximum(0, 1 - np.abs(mels - centers) / step).astype(np.float32))
