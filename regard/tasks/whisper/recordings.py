"""Recordings in windows: one after the other, or cut at pauses. Memory does not grow with the length of a recording."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ...messages.media import Sound
from ...modalities.sound import SoundModality
from ...processors.base import Array
from ...processors.sound.log_mel import AudioProcessor
from ...processors.sound.read import RawSound, stream_sound
from ...processors.sound.windows import FilledWindow, FrameWindows


class SoundWindow(NamedTuple):
    """A part of a recording that is encoded at once."""

    start: float  # in seconds
    seconds: float  # without the silence that fills it up
    frames: Array  # (frames, bins), filled up


class Recording:
    """Windows at any ascending positions of a recording."""

    def __init__(self, raw: RawSound, sound: AudioProcessor) -> None:
        samples = read_short(raw, sound)
        self._windows = FrameWindows(raw, sound) if samples is None else FilledWindow(samples, sound)
        self.rate, self.seconds = sound.rate / sound.hop, self._windows.samples / sound.rate  # frames per second

    def window(self, first: int) -> SoundWindow | None:
        """The window from frame `first` on; None after the end, and if all is silent: that has no transcript."""
        windows = self._windows
        if windows.silent or first >= windows.total:
            return None
        frames, seconds = windows(first), min(windows.total - first, windows.size) / self.rate
        return SoundWindow(first / self.rate, seconds, np.pad(frames, ((0, windows.size - len(frames)), (0, 0))))


def open_recordings(items: Sequence[tuple[RawSound, AudioProcessor]]) -> list[Recording]:
    """The function of `Read` jobs that open recordings."""
    return [Recording(raw, sound) for raw, sound in items]


def read_windows(items: Sequence[tuple[Recording, int]]) -> list[SoundWindow | None]:
    """The function of `Read` jobs that read the windows of recordings from these frames on."""
    return [recording.window(first) for recording, first in items]


def read_short(raw: RawSound, sound: AudioProcessor) -> Array | None:
    """The samples of a recording that fits one window; None if it is longer."""
    limit, parts, size = sound.seconds * sound.rate, [np.zeros(0, np.float32)], 0
    for block in stream_sound(raw, sound.rate):
        parts.append(block)
        size += len(block)
        if size >= limit + sound.hop:
            return None
    return np.concatenate(parts)


def windows_at_pauses(
    sound: Sound, modality: SoundModality, processor: AudioProcessor, read: list[float]
) -> Iterator[SoundWindow]:
    """The parts of a recording between pauses; `read[0]` gets the seconds that are read."""
    for segment in modality.segments(sound, float(processor.seconds), read):
        seconds = len(segment.samples) / processor.rate
        yield SoundWindow(segment.start, seconds, processor.encode(segment.samples))
