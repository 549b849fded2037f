"""Recordings in windows: one after the other, or cut at pauses. Memory does not grow with the length of a recording."""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np

from ...processors.base import Array
from ...processors.sound.log_mel import AudioProcessor
from ...processors.sound.read import RawSound, stream_sound
from ...processors.sound.segments import segments
from ...processors.sound.windows import FilledWindow, FrameWindows
from ...processors.text.whisper import text_language
from ..transcribe.requests import TranscribeRequest, TranscriptSegment


class SoundWindow(NamedTuple):
    """A part of a recording that is encoded at once."""

    recording: "Recording"
    start: float  # in seconds
    seconds: float  # without the silence that fills it up
    frames: Array  # (frames, bins), filled up


@dataclass(eq=False)
class Recording:
    """The state of a recording that is being transcribed."""

    number: int
    request: TranscribeRequest
    language: str  # the code; "": not detected yet, or the model knows one
    task: str = "transcribe"
    seconds: float = 0.0  # as far as it is read
    total_seconds: float = 0.0  # its full length; 0: not known yet
    segments: list[TranscriptSegment] = field(default_factory=list)
    previous: list[int] = field(default_factory=list)  # tokens of the text so far
    conditioned: bool = True  # the next window reads them

    @property
    def text_language(self) -> str:
        return text_language(self.language, self.task)


WindowSequence: TypeAlias = Generator[SoundWindow, float, None]  # `send` takes the seconds of the window that were used


def sequential_windows(
    recording: Recording, sound: AudioProcessor, report: Callable[[Recording, float], None]
) -> WindowSequence:
    """The windows of a recording; each begins where the used part of the previous window ends."""
    rate, raw = sound.rate / sound.hop, recording.request.sound
    samples = read_short(raw, sound)
    windows = FrameWindows(raw, sound) if samples is None else FilledWindow(samples, sound)
    recording.seconds = windows.samples / sound.rate
    if windows.silent:  # digital silence has no transcript
        return
    first = 0
    while first < windows.total:
        frames, seconds = windows(first), min(windows.total - first, windows.size) / rate
        filled = np.pad(frames, ((0, windows.size - len(frames)), (0, 0)))
        used = yield SoundWindow(recording, first / rate, seconds, filled)
        first += max(round(used * rate), 1)
        recording.total_seconds = recording.seconds
        report(recording, first / rate)


def next_window(sequence: WindowSequence, used: float) -> SoundWindow | None:
    """Resume after `used` seconds; None at the end."""
    try:
        return sequence.send(used)
    except StopIteration:
        return None


def read_short(raw: RawSound, sound: AudioProcessor) -> Array | None:
    """The samples of a recording that fits one window; None if it is longer."""
    most, parts, size = sound.seconds * sound.rate, [np.zeros(0, np.float32)], 0
    for block in stream_sound(raw, sound.rate):
        parts.append(block)
        size += len(block)
        if size >= most + sound.hop:
            return None
    return np.concatenate(parts)


def windows_at_pauses(recording: Recording, sound: AudioProcessor) -> Iterator[SoundWindow]:
    """The parts of a recording between pauses."""

    def counted() -> Iterator[Array]:
        samples = 0
        for block in stream_sound(recording.request.sound, sound.rate):
            samples += len(block)
            recording.seconds = samples / sound.rate
            yield block

    for start, samples in segments(counted(), sound.rate, float(sound.seconds)):
        if samples.min() < samples.max():
            yield SoundWindow(recording, start, len(samples) / sound.rate, sound.encode(samples))
