"""How surely there is sound at each place of a recording."""

import numpy as np

from ..base import Array
from .segments import ABOVE, BELOW, QUIET

NOISE = 4.0  # decibels by which sound is above the noise floor, if the recording has no silence BELOW the peak
LOUD = 10.0  # decibels under the peak: always sound
SLOPE = 3.0  # decibels from the border of sound and silence over which the level goes from 0.5 to 0.73


def sound_levels(samples: Array, rate: int, centers: Array, width: float) -> Array:
    """A level from 0 (silence) to 1 (sound) at each of the `centers`, in seconds, from `width` seconds around it."""
    sums = np.cumsum(np.concatenate([np.zeros((1, 2)), np.stack([samples, samples**2], 1, dtype=np.float64)]), 0)
    first = np.clip(((centers - width / 2) * rate).astype(int), 0, max(len(samples) - 1, 0))
    last = np.clip(((centers + width / 2) * rate).astype(int), first + 1, max(len(samples), 1))
    means = (sums[last] - sums[first]) / (last - first)[:, None]
    decibels = 10 * np.log10(np.maximum(means[:, 1] - means[:, 0] ** 2, 1e-10))
    audible = decibels[decibels > QUIET]
    if not len(audible):
        return np.zeros(len(centers))
    floor, peak = float(np.percentile(audible, 5)), float(audible.max())
    border = max(min(floor + ABOVE, peak - BELOW), min(floor + NOISE, peak - LOUD), QUIET)
    return np.asarray(1 / (1 + np.exp(-np.clip((decibels - border) / SLOPE, -30, 30))))
