"""Sound as log-mel frames, as Whisper reads it. soundfile and scipy (the extra `audio`) are imported where used."""

import io
import wave
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError
from ..parts.inputs import Inputs, Modality
from .base import Array, Rng, SavedSettings, pad_arrays, to_array

FLOOR, RANGE = 1e-10, 8.0  # the least power; the powers of ten below the loudest that are kept
GRIFFIN_LIM_STEPS = 32
RATES = 1000, 768_000  # samples per second that can be resampled


class Sound(NamedTuple):
    """Samples (samples,) or (samples, channels) in -1…1, and their number per second."""

    samples: Array
    rate: int


RawSound: TypeAlias = str | Path | bytes | Array | Sound


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
        sound = Sound(raw, self.rate) if isinstance(raw, np.ndarray) else raw
        samples, rate = sound if isinstance(sound, Sound) else read_sound(sound)
        samples = np.asarray(samples, np.float32)
        samples = samples.mean(1) if samples.ndim == 2 else samples
        if samples.ndim != 1 or not len(samples) or not np.isfinite(samples).all():
            raise UserError(f"a sound of shape {samples.shape} has no finite samples; expected (samples,) in -1…1")
        return np.ascontiguousarray(samples if rate == self.rate else resample(samples, rate, self.rate))

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


def read_sound(raw: str | Path | bytes) -> Sound:
    """The sound of a file or of its bytes: WAV by the standard library, the rest by soundfile."""
    name = "the bytes" if isinstance(raw, bytes) else str(raw)
    try:
        data = raw if isinstance(raw, bytes) else Path(raw).read_bytes()
    except OSError as error:
        raise UserError(f"{name} cannot be read ({error.strerror}); give the path of a sound file") from error
    try:
        return _read_wav(data)
    except (wave.Error, EOFError, RuntimeError):  # another format, WAV with floats, or damaged
        pass
    try:
        import soundfile
    except ImportError as error:
        raise UserError(f"{name} is no plain WAV; for other formats: pip install 'regard[audio]'") from error
    try:
        samples, rate = soundfile.read(io.BytesIO(data), dtype="float32")
    except (RuntimeError, MemoryError) as error:  # a damaged header may tell of any length
        raise UserError(f"{name} cannot be read as sound ({error}); give WAV, FLAC, OGG or MP3") from error
    return Sound(samples, rate)


def _read_wav(data: bytes) -> Sound:
    with wave.open(io.BytesIO(data)) as file:
        width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
        if width > 4:
            raise wave.Error("more than 32 bits")
        content = np.frombuffer(file.readframes(file.getnframes()), np.uint8)
    content = content[: len(content) // (width * channels) * width * channels].reshape(-1, width)
    if width == 1:  # unsigned
        samples = (content[:, 0].astype(np.float32) - 128) / 128
    else:  # the bytes become the upper ones of 32 bits
        whole = np.zeros((len(content), 4), np.uint8)
        whole[:, 4 - width :] = content
        samples = whole.view("<i4")[:, 0].astype(np.float32) / 2**31
    return Sound(samples.reshape(-1, channels), rate)


def resample(samples: Array, rate: int, wanted: int) -> Array:
    """The samples at another rate, filtered against aliasing."""
    if not RATES[0] <= rate <= RATES[1]:
        raise UserError(
            f"a sound has {rate} samples per second; expected {RATES[0]} to {RATES[1]}, the file is damaged"
        )
    try:
        from scipy.signal import resample_poly
    except ImportError as error:
        raise UserError(
            f"sound of {rate} samples per second must be resampled to {wanted}; pip install 'regard[audio]'"
        ) from error
    divisor = int(np.gcd(rate, wanted))
    return np.asarray(resample_poly(samples, wanted // divisor, rate // divisor), np.float32)
