"""Augmentation of images: resizing, color jitter, RandAugment (1909.13719), random erasing (1708.04896).

All draw only from the generator of their example, so an image of an epoch is the same in every process.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch.nn.functional import interpolate

from ..base import Array, Rng

if TYPE_CHECKING:
    from PIL import Image

PilImage: TypeAlias = "Image.Image"
Operation: TypeAlias = "Callable[[Image.Image, float], Image.Image]"  # strength 0…1, the sign is drawn
GRAY = (124, 116, 104)  # the mean color of photographs fills uncovered pixels
SHIFT, SHEAR, ROTATION = 150 / 331, 0.3, 30.0  # at full strength: shares of a side, degrees
ERASED, LOG_ASPECT = (0.02, 0.4), -math.log(0.3)  # share of the area and aspect of erased rectangles
SMALL = 80  # pixels of a side
TRIES = 10  # random rectangles; if none fits, nothing is erased


def resize(image: PilImage, height: int, width: int, resample: str) -> PilImage:
    """Pillow's `resize` in half of its time for photographs; Pillow itself resizes small images.

    A pixel may differ by rounding, so evaluation uses Pillow.
    """
    from PIL import Image

    small = min(*image.size, width, height) < SMALL
    if resample not in ("bilinear", "bicubic") or small or image.mode != "RGB":
        return image.resize((width, height), Image.Resampling[resample.upper()])
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None]
    resized = interpolate(pixels, (height, width), mode=resample, antialias=True)[0]
    return Image.fromarray(resized.permute(1, 2, 0).contiguous().numpy())


def jitter_color(image: PilImage, share: float, rng: Rng) -> PilImage:
    """Brightness, contrast and saturation, each changed by a factor within 1 ± `share`, in random order."""
    from PIL import ImageEnhance

    enhancers = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    for number in rng.permutation(len(enhancers)).tolist():
        image = enhancers[number](image).enhance(1 + share * (2 * rng.random() - 1))
    return image


def _enhance(name: str) -> Operation:
    def change(image: PilImage, strength: float) -> PilImage:
        from PIL import ImageEnhance

        changed: Image.Image = getattr(ImageEnhance, name)(image).enhance(1 + 0.9 * strength)
        return changed

    return change


def _affine(a: float, b: float, c: float, d: float, e: float, f: float) -> Operation:
    """An affine map of the pixels; the numbers are added to the identity at full strength."""

    def change(image: PilImage, strength: float) -> PilImage:
        from PIL import Image

        width, height = image.size
        data = (
            1 + a * strength,
            b * strength,
            c * strength * width,
            d * strength,
            1 + e * strength,
            f * strength * height,
        )
        return image.transform(image.size, Image.Transform.AFFINE, data, Image.Resampling.BILINEAR, fillcolor=GRAY)

    return change


def _rotate(image: PilImage, strength: float) -> PilImage:
    from PIL import Image

    return image.rotate(ROTATION * strength, Image.Resampling.BILINEAR, fillcolor=GRAY)


def _posterize(image: PilImage, strength: float) -> PilImage:
    from PIL import ImageOps

    return ImageOps.posterize(image, 8 - round(4 * abs(strength)))


def _solarize(image: PilImage, strength: float) -> PilImage:
    from PIL import ImageOps

    return ImageOps.solarize(image, 256 - round(256 * abs(strength)))


def _ops(name: str) -> Operation:
    def change(image: PilImage, strength: float) -> PilImage:
        from PIL import ImageOps

        changed: Image.Image = getattr(ImageOps, name)(image)
        return changed

    return change


OPERATIONS: dict[str, Operation] = {
    "identity": lambda image, strength: image,
    "autocontrast": _ops("autocontrast"),
    "equalize": _ops("equalize"),
    "rotate": _rotate,
    "solarize": _solarize,
    "color": _enhance("Color"),
    "posterize": _posterize,
    "contrast": _enhance("Contrast"),
    "brightness": _enhance("Brightness"),
    "sharpness": _enhance("Sharpness"),
    "shear_x": _affine(0, SHEAR, 0, 0, 0, 0),
    "shear_y": _affine(0, 0, 0, SHEAR, 0, 0),
    "shift_x": _affine(0, 0, SHIFT, 0, 0, 0),
    "shift_y": _affine(0, 0, 0, 0, 0, SHIFT),
}
NAMES = tuple(OPERATIONS)


def rand_augment(image: PilImage, count: int, strength: float, rng: Rng) -> PilImage:
    """`count` random operations of this strength (0…1), each with a random sign; an RGB image."""
    image = image.convert("RGB")
    for number in rng.integers(len(NAMES), size=count).tolist():
        sign = 1 if rng.random() < 0.5 else -1
        image = OPERATIONS[NAMES[number]](image, sign * strength)
    return image


def erase(pixels: Array, rng: Rng) -> Array:
    """Fill a random rectangle of normalized pixels (channels, height, width) with noise."""
    channels, height, width = pixels.shape
    pixels = pixels.copy()
    for _ in range(TRIES):
        area = height * width * rng.uniform(*ERASED)
        aspect = math.exp(rng.uniform(-LOG_ASPECT, LOG_ASPECT))
        down, across = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
        if 0 < down <= height and 0 < across <= width:
            top, left = int(rng.integers(height - down + 1)), int(rng.integers(width - across + 1))
            noise = rng.standard_normal((channels, down, across), dtype=np.float32)
            pixels[:, top : top + down, left : left + across] = noise
            break
    return pixels
