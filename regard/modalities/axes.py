"""The axes of attention over images and sound."""

from collections.abc import Sequence

import numpy as np

from ..families.protocols import ModelBase
from ..look import FrameSegment, PatchSegment, QuerySegment, TextSegment, ViewAxis
from ..processors.base import Array
from ..processors.sound.frames import SoundFrames


def image_axis(model: ModelBase | None, pixels: Array, positions: int, patch: int = 0) -> ViewAxis:
    """Patches or places of the image (3, height, width); positions before them are class tokens.

    `patch` is the side of a patch, for a model that does not say how it cuts images.
    """
    height, width = pixels.shape[1:]
    if model is not None and hasattr(model, "patch_grid"):
        rows, columns = model.patch_grid(height, width)
    else:
        rows, columns = (-(-side // patch) if patch else 0 for side in (height, width))
    before = positions - rows * columns
    labels = ("[CLS]", *(f"[{number}]" for number in range(2, before + 1)))[:before]
    patches = PatchSegment(rows, columns, picture(pixels))
    return ViewAxis("patch", (TextSegment(labels), patches) if before else (patches,))


def query_axis(
    pixels: Array, labels: Sequence[str], scores: Sequence[float], boxes: Sequence[Sequence[float]]
) -> ViewAxis:
    """Object queries with what they find; boxes are shares of the image."""
    corners = tuple((left, top, right, bottom) for left, top, right, bottom in boxes)
    return ViewAxis("query", (QuerySegment(tuple(labels), tuple(scores), corners, picture(pixels)),))


def picture(pixels: Array) -> Array:
    """Pixels (channels, height, width) as RGB (height, width, 3)."""
    colors = np.repeat(pixels, 3, 0) if len(pixels) == 1 else pixels[:3]
    return np.ascontiguousarray(colors.transpose(1, 2, 0))


def frame_axis(sound: SoundFrames, stride: int, positions: int, frames: Array | None = None) -> ViewAxis:
    """Encoder positions, each `stride` frames after the last, with their times and the frames that they come from."""
    first, second = (sound.seconds_of(place * stride) for place in (0, 1))
    spectrogram = np.zeros((0, 0), np.float32) if frames is None else np.asarray(frames, np.float32)
    return ViewAxis("second", (FrameSegment(positions, second - first, first, spectrogram),))
