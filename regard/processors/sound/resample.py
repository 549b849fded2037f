"""Sound at another rate. scipy (the extra `audio`) is imported where it is used."""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from math import ceil, gcd

import numpy as np

from ...errors import UserError
from ..base import Array

RATES = 1000, 768_000  # samples per second that can be resampled
BLOCK = 1 << 16  # samples


def resample(samples: Array, rate: int, new_rate: int) -> Array:
    """The samples at another rate, filtered against aliasing."""
    check_rate(rate)
    return _convert(samples, *_ratio(rate, new_rate))


def resample_blocks(blocks: Iterable[Array], rate: int, new_rate: int) -> Iterator[Array]:
    """Like `resample`, of a sound in blocks: the joined blocks equal the whole.

    Every block is resampled with the neighbors that its filter reaches. Blocks begin at multiples of `down`, where
    input and output have a sample at the same time.
    """
    check_rate(rate)
    up, down = _ratio(rate, new_rate)
    margin = ceil(ceil(_reach(up, down) / up) / down) * down
    size = ceil(BLOCK / down) * down
    waiting, before = np.zeros(0, np.float32), 0  # `before`: samples in front that are only neighbors
    for block in blocks:
        waiting = np.concatenate([waiting, np.asarray(block, np.float32)])
        while len(waiting) >= before + size + margin:
            whole = _convert(waiting[: before + size + margin], up, down)
            yield whole[before // down * up : (before + size) // down * up]
            keep = min(margin, before + size)
            waiting, before = waiting[before + size - keep :], keep
    if len(waiting) > before:
        yield _convert(waiting, up, down)[before // down * up :]


def change_speed(samples: Array, up: int, down: int) -> Array:
    """down / up times as fast: tempo and pitch change together."""
    return _convert(samples, up, down)


def check_rate(rate: int, name: str = "a sound") -> None:
    """Refuse a sampling rate that no recording has."""
    if not RATES[0] <= rate <= RATES[1]:
        raise UserError(
            f"{name} has {rate} samples per second; expected {RATES[0]} to {RATES[1]}, perhaps it is damaged"
        )


def _ratio(rate: int, new_rate: int) -> tuple[int, int]:
    divisor = gcd(rate, new_rate)
    return new_rate // divisor, rate // divisor


def _convert(samples: Array, up: int, down: int) -> Array:
    if up == down:
        return np.asarray(samples, np.float32)
    try:
        from scipy.signal import resample_poly
    except ImportError as error:
        raise UserError(f"sound must be resampled by {up}/{down}; pip install 'regard[audio]'") from error
    return np.asarray(resample_poly(np.asarray(samples, np.float32), up, down, window=_filter(up, down)))


def _reach(up: int, down: int) -> int:
    """Half of the filter's width, at `up` times the rate of the input."""
    return 10 * max(up, down)


@lru_cache(maxsize=16)
def _filter(up: int, down: int) -> Array:
    """The filter that resample_poly designs, cached: designing it takes longer than filtering a short block."""
    from scipy.signal import firwin

    length = 2 * _reach(up, down) + 1
    return np.asarray(firwin(length, 1 / max(up, down), window=("kaiser", 5.0)), np.float32)
