"""Reads sound: paths, bytes, arrays and tensors become samples of one channel, at once or block by block.

soundfile (the extra `audio`) is imported where it is used. Without it, the standard library reads plain WAV files.
"""

import io
import math
import os
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch

from ...errors import UserError
from ..base import Array, to_array
from .file_checks import STREAMED, check_complete, describe_file, states_length
from .resample import BLOCK, check_rate, resample_blocks

CHANNELS = 32  # maximal channels of an array
PEAK = 1000.0  # larger samples are not sound in -1…1
UNKNOWN = 1 << 48  # samples; headers of streams with unknown length state more
REST = 0.05  # share of an MP3 file that may follow its sound
LOST = 0.25  # seconds that an MP3 file may be shorter than its header states: encoders count differently


class Samples(NamedTuple):
    """Samples (samples,) or (samples, channels) in -1…1, and their number per second.

    uint8, int16 and int32 are scaled to -1…1.
    """

    samples: Array
    rate: int


class SoundInfo(NamedTuple):
    """The header of a recording."""

    rate: int  # samples per second
    samples: int  # of one channel
    channels: int

    @property
    def seconds(self) -> float:
        return self.samples / self.rate


RawSound: TypeAlias = str | os.PathLike[str] | bytes | Array | torch.Tensor | Samples | tuple[Any, int]


def is_sound(value: object) -> bool:
    """True for one sound, False for several. (samples, rate) is one."""
    if isinstance(value, np.ndarray | torch.Tensor):
        return value.ndim in (1, 2)
    if isinstance(value, tuple):
        return isinstance(value, Samples) or (len(value) == 2 and _is_number(value[1]) and not _is_number(value[0]))
    return isinstance(value, str | bytes | os.PathLike)


def sound_name(raw: object) -> str:
    """The name of a sound in messages."""
    if isinstance(raw, str | os.PathLike):
        return str(os.fspath(raw))
    return str(getattr(raw, "place", "the bytes")) if isinstance(raw, bytes) else "a sound"


def read_sound(raw: RawSound, rate: int = 16000) -> Samples:
    """The samples of one channel, float32 in -1…1, and their rate; `rate` is that of arrays and tensors.

    Several channels are averaged.
    """
    with _open_sound(raw, rate) as reader:
        blocks = list(_mono_blocks(reader, sound_name(raw)))
    return Samples(blocks[0] if len(blocks) == 1 else np.concatenate(blocks), reader.rate)


def stream_sound(raw: RawSound, rate: int) -> Iterator[Array]:
    """Blocks of samples of one channel at `rate`, float32. Memory does not grow with the length of a file."""
    with _open_sound(raw, rate) as reader:
        blocks = _mono_blocks(reader, sound_name(raw))
        yield from blocks if reader.rate == rate else resample_blocks(blocks, reader.rate, rate)


def is_silent(raw: RawSound) -> bool:
    """True for digital silence: all samples are equal. Reading ends at the first sound."""
    level = None
    with _open_sound(raw, 16000) as reader:
        for block in _mono_blocks(reader, sound_name(raw)):
            level = block[0] if level is None and len(block) else level
            if (block != level).any():
                return False
    return True


def sound_info(raw: RawSound, rate: int = 16000) -> SoundInfo:
    """Rate, length and channels. Decodes the samples of a file only if its header does not state their number."""
    with _open_sound(raw, rate) as reader:
        samples = reader.samples
        if samples >= UNKNOWN:
            samples = sum(map(len, _mono_blocks(reader, sound_name(raw))))
        return SoundInfo(reader.rate, samples, reader.channels)


def sound_problem(raw: RawSound, decode: bool = False) -> str:
    """Why a sound cannot be read, as a sentence; "" if it can. Unless `decode`, only the header of a file is read."""
    try:
        with _open_sound(raw, 16000) as reader:
            if decode or not isinstance(raw, str | os.PathLike | bytes):
                for _ in _mono_blocks(reader, sound_name(raw)):
                    pass
    except UserError as error:
        return str(error)
    return ""


# --- readers ---------------------------------------------------------------------------------------------------------


class _Reader(Protocol):
    rate: int
    samples: int
    channels: int
    lost: int  # samples that may be missing at the end

    def read(self, count: int) -> Array:
        """The next samples (samples, channels), float32; none at the end."""


class _ArrayReader:
    lost = 0

    def __init__(self, samples: Any, rate: int, name: str) -> None:
        self.content, self.rate = _to_table(samples, name), rate
        self.samples, self.channels = self.content.shape
        self.position = 0

    def read(self, count: int) -> Array:
        block = self.content[self.position : self.position + count]
        self.position += len(block)
        if block.dtype == np.uint8:
            return (block.astype(np.float32) - 128) / 128
        scale = 1 / -float(np.iinfo(block.dtype).min) if block.dtype.kind == "i" else 1
        return block.astype(np.float32) * np.float32(scale)


class _WavReader:
    """Plain WAV by the standard library."""

    lost = 0

    def __init__(self, file: IO[bytes]) -> None:
        self.file = wave.Wave_read(file)
        self.rate, self.samples = self.file.getframerate(), self.file.getnframes()
        self.channels, self.width = self.file.getnchannels(), self.file.getsampwidth()
        if self.width > 4:
            raise wave.Error("more than 32 bits")
        if self.samples * self.channels * self.width >= STREAMED - 4 * self.channels:
            self.samples = UNKNOWN

    def read(self, count: int) -> Array:
        content = np.frombuffer(self.file.readframes(count), np.uint8)
        content = content[: len(content) // (self.width * self.channels) * self.width * self.channels]
        content = content.reshape(-1, self.width)
        if self.width == 1:  # unsigned
            samples = (content[:, 0].astype(np.float32) - 128) / 128
        else:  # the bytes become the upper ones of 32 bits
            whole = np.zeros((len(content), 4), np.uint8)
            whole[:, 4 - self.width :] = content
            samples = whole.view("<i4")[:, 0].astype(np.float32) / 2**31
        return samples.reshape(-1, self.channels)


class _FileReader:
    """Every format of soundfile."""

    def __init__(self, file: IO[bytes], library: Any) -> None:
        headerless = str(getattr(file, "name", "")).lower().endswith(".raw")  # soundfile goes by this name alone
        source = io.BytesIO(file.read()) if headerless else file
        self.source, self.size = source, source.seek(0, os.SEEK_END)
        counted = states_length(source)
        self.file = library.SoundFile(source)
        self.file.seekable = lambda: False  # else every read is followed by a seek, which some files do not support
        self.rate, self.samples, self.channels = self.file.samplerate, self.file.frames, self.file.channels
        self.lost = int(LOST * self.rate) if self.file.format == "MP3" else 0
        self.estimated = self.file.format == "MP3" and not counted
        self.samples = UNKNOWN if self.estimated else self.samples

    def read(self, count: int) -> Array:
        block: Array = self.file.read(count, dtype="float32", always_2d=True)
        if self.estimated and not len(block) and self.size - self.source.tell() > REST * self.size:
            raise RuntimeError("an MP3 of variable bit rate that does not tell its length: the end is lost")
        return block


def _mono_blocks(reader: _Reader, name: str) -> Iterator[Array]:
    total = 0
    while True:
        try:
            block = reader.read(BLOCK)
        except RuntimeError as error:  # of soundfile
            raise _damaged(name, error) from error
        if not len(block):
            break
        low, high = float(block.min()), float(block.max())
        if not (math.isfinite(low) and math.isfinite(high)):
            wrong = total + int(np.argmin(np.isfinite(block).all(1)))
            raise UserError(
                f"{name} has a sample that is no finite number after {wrong / reader.rate:.2f} s; expected samples in "
                "-1…1, create it again"
            )
        if max(-low, high) > PEAK:
            raise UserError(f"{name} has samples from {low:g} to {high:g}; expected -1…1, divide them by their range")
        total += len(block)
        yield np.ascontiguousarray(block[:, 0] if block.shape[1] == 1 else block.mean(1))
    if not total:
        raise UserError(f"{name} has no samples; expected at least one, record or download it again")
    if total < reader.samples - reader.lost and reader.samples < UNKNOWN:
        raise UserError(
            f"{name} is damaged or truncated: {total:,} of {reader.samples:,} samples can be read; copy or download it "
            "again"
        )


# --- sources ---------------------------------------------------------------------------------------------------------


@contextmanager
def _open_sound(raw: Any, rate: int) -> Iterator[_Reader]:
    """A reader of any raw sound. Refuses a header without samples or with an impossible rate."""
    name = sound_name(raw)
    if isinstance(raw, str | os.PathLike | bytes):
        with _open_file(raw, name) as file:
            yield _check_header(_open_reader(file, name), name)
    elif isinstance(raw, np.ndarray | torch.Tensor):
        yield _check_header(_ArrayReader(raw, rate, name), name)
    elif isinstance(raw, tuple):
        if len(raw) != 2 or not _is_number(raw[1]):
            types = ", ".join(type(entry).__name__ for entry in raw)
            raise UserError(f"a tuple of ({types}) is no sound; expected (samples, rate), the rate a whole number")
        yield _check_header(_ArrayReader(raw[0], int(raw[1]), name), name)
    else:
        type_name = type(raw).__name__
        raise UserError(f"a {type_name} is no sound; expected a path, bytes, samples or (samples, rate)")


def _check_header(reader: _Reader, name: str) -> _Reader:
    check_rate(reader.rate, name)
    if reader.samples < 1 or reader.channels < 1:
        raise UserError(f"{name} has no samples; expected at least one, record or download it again")
    return reader


def _open_file(raw: str | os.PathLike[str] | bytes, name: str) -> IO[bytes]:
    if isinstance(raw, bytes):
        return io.BytesIO(raw)
    if name.startswith(("http://", "https://")):
        raise UserError(f"{name} is an address, which regard does not fetch; download the sound and give its path")
    try:
        return open(Path(name).expanduser(), "rb")
    except FileNotFoundError as error:
        raise UserError(f"{name} does not exist; give the path of a sound file") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{name} cannot be read ({reason}); give the path of a sound file") from error


def _open_reader(file: IO[bytes], name: str) -> _Reader:
    if problem := describe_file(file, name):
        raise UserError(f"{name} cannot be read as sound: {problem}")
    if problem := check_complete(file):
        raise UserError(f"{name} is truncated: {problem}; copy or download it again")
    try:
        import soundfile
    except ImportError:
        soundfile = None
    try:
        return _FileReader(file, soundfile) if soundfile else _WavReader(file)
    except (wave.Error, EOFError, RuntimeError, MemoryError, ValueError, TypeError) as error:
        if soundfile is None:
            raise UserError(f"{name} is no plain WAV; for other formats: pip install 'regard[audio]'") from error
        raise _damaged(name, error) from error


def _damaged(name: str, error: Exception) -> UserError:
    reason = str(getattr(error, "error_string", error)).strip().rstrip(".")
    return UserError(f"{name} cannot be read as sound ({reason}); give WAV, FLAC, OGG or MP3, or create it again")


def _to_table(samples: Any, name: str) -> Array:
    """An array or a tensor as (samples, channels). Channels may come first: their axis is the shorter one."""
    try:
        half = isinstance(samples, torch.Tensor) and samples.dtype == torch.bfloat16
        array = to_array(samples.float() if half else samples)
    except (ValueError, TypeError) as error:
        raise UserError(f"{name} cannot be read ({error}); expected samples of shape (samples,)") from error
    if array.ndim == 1:
        array = array[:, None]
    elif array.ndim == 2 and array.shape[0] < array.shape[1]:
        array = array.T
    if array.ndim != 2 or array.shape[1] > CHANNELS:
        shape = tuple(np.shape(samples))
        raise UserError(f"an array of shape {shape} is no sound; expected (samples,) or (samples, channels)")
    if array.dtype.kind != "f" and array.dtype not in (np.uint8, np.int16, np.int32) and array.size:
        raise UserError(
            f"{name} has samples of {array.dtype}; expected floats in -1…1, or whole numbers as int16, int32 or uint8"
        )
    return array


def _is_number(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
