"""Cuts long recordings at pauses, block by block."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from ...errors import UserError
from ..base import Array

FRAME = 0.01  # seconds whose energy is measured
SMOOTH = 20  # frames over which energies are averaged
PAUSE = 2.0  # silence of this many seconds or more is left out
MARGIN = 0.2  # seconds of silence that stay beside speech
QUIET = -75.0  # decibels of full scale: always silence
ABOVE, BELOW = 10.0, 25.0  # decibels: silence is less than ABOVE over the noise floor and BELOW under the peak
DRIFT = 3.0  # decibels by which the noise floor may rise and the peak may fall from one window to the next
SHORTEST = 0.1  # seconds


class Segment(NamedTuple):
    """A part of a recording."""

    start: float  # seconds from its beginning
    samples: Array


def segments(blocks: Iterable[Array], rate: int, longest: float) -> Iterator[Segment]:
    """Parts of at most `longest` seconds, cut at the quietest place in the second half of that time.

    Silence of two seconds and more is left out, and digital silence gives no segment. A recording that is not longer
    is one segment as it is. Memory is bounded by `longest`.
    """
    if not longest >= SHORTEST:
        raise UserError(f"segments of at most {longest} seconds are too short; expected {SHORTEST} or more")
    limit, source = int(longest * rate), iter(blocks)
    cutter = _Cutter(rate, longest)
    buffer, more = _fill(np.zeros(0, np.float32), source, limit)
    if not more:
        yield from [Segment(0.0, buffer)] if len(buffer) else []
        return
    position = 0  # of the buffer in the recording
    while len(buffer):
        begin, end, resume = cutter.cut(buffer[:limit], more)
        if end > begin:
            yield Segment((position + begin) / rate, buffer[begin:end].copy())
        position += resume
        buffer, more = _fill(buffer[resume:], source, limit)


def _fill(buffer: Array, source: Iterator[Array], limit: int) -> tuple[Array, bool]:
    """Fill the buffer with more than `limit` samples. Returns it, and False if the source ended before."""
    parts, size = [buffer], len(buffer)
    while size <= limit and (block := next(source, None)) is not None:
        parts.append(np.asarray(block, np.float32))
        size += len(block)
    return np.concatenate(parts), size > limit


class _Cutter:
    """Finds silence and the quietest place. It tracks the noise floor and the peak of the recording."""

    def __init__(self, rate: int, longest: float) -> None:
        self.frame = max(int(rate * FRAME), 1)
        self.pause = int(min(PAUSE, longest / 2) / FRAME)  # in frames
        self.margin = int(min(MARGIN, longest / 8) / FRAME)
        self.floor, self.loudest = np.inf, -np.inf  # decibels
        self.in_silence = False  # the recording was silent just before the window

    def cut(self, window: Array, more: bool) -> tuple[int, int, int]:
        """Begin and end of the next segment in a window, which may be empty, and where to resume."""
        levels = self._levels(window)
        runs = _runs(levels < self._threshold(levels))
        count, begin = len(levels), 0
        if runs and runs[0][0] == 0:
            end = runs[0][1]
            if end == count and (more or self.in_silence or end >= self.pause or levels.max() < QUIET):
                self.in_silence = True
                return 0, 0, (count - self.margin) * self.frame if more else len(window)
            if self.in_silence or end >= self.pause:
                begin = max(end - self.margin, 0)
        self.in_silence = False
        if begin and more:
            return 0, 0, begin * self.frame  # look again, with the samples that follow
        for first, end in runs:
            if first > begin and end - first >= self.pause:
                self.in_silence = True
                resume = (end - self.margin) * self.frame if end < count or more else len(window)
                return begin * self.frame, (first + self.margin) * self.frame, resume
        if not more:
            return begin * self.frame, len(window), len(window)
        half = count // 2
        place = count - 1 - int(np.argmin(levels[:half:-1]))  # the last one of several
        if runs and runs[-1][1] == count and half < runs[-1][0] + self.margin < place:
            place = runs[-1][0] + self.margin  # silence at the end may continue; the next segment gets it
        return 0, place * self.frame, place * self.frame

    def _levels(self, window: Array) -> Array:
        """The energies of frames in decibels of full scale, without a constant offset, averaged over neighbors."""
        whole = len(window) // self.frame
        frames = window[: whole * self.frame].reshape(whole, self.frame)
        energies = frames.var(1, dtype=np.float64) if whole else np.zeros(0)
        if len(rest := window[whole * self.frame :]):
            energies = np.append(energies, rest.var(dtype=np.float64))
        sums = np.cumsum(np.concatenate([[0.0], energies]))
        low = np.maximum(np.arange(len(energies)) - SMOOTH // 2, 0)
        high = np.minimum(np.arange(len(energies)) + SMOOTH // 2 + 1, len(energies))
        averages = np.maximum((sums[high] - sums[low]) / (high - low), 1e-20)
        return np.asarray(10 * np.log10(averages))

    def _threshold(self, levels: Array) -> float:
        """The level below which a frame is silent."""
        if len(audible := levels[levels > QUIET]):
            self.floor = min(float(np.percentile(audible, 5)), self.floor + DRIFT)
            self.loudest = max(float(audible.max()), self.loudest - DRIFT)
        return max(min(self.floor + ABOVE, self.loudest - BELOW), QUIET)


def _runs(silent: Array) -> list[tuple[int, int]]:
    """The ranges of frames that are silent."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], silent, [False]]).astype(np.int8)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
