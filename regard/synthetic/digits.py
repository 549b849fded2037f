"""Embedded images: digits in the fonts that matplotlib brings, distorted, on a noisy background."""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..data.source import Source
from .generated import GeneratedSource

if TYPE_CHECKING:
    from PIL import ImageFont

SIDE, DRAWN = 28, 56  # pixels of an image, and of the drawing before it is scaled down
FONTS = (
    "DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSansMono", "DejaVuSerif", "DejaVuSerif-Bold",
    "DejaVuSerif-Italic", "STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "cmr10", "cmss10", "cmtt10",
)  # fmt: skip
HELD_OUT = 1000  # images for validation, and for test


class DigitSource(GeneratedSource):
    """Images of digits."""

    noun = "image"

    def item(self, index: int) -> tuple[np.ndarray, str]:
        rng = self.rng(index)
        digit = int(rng.integers(10))
        return draw_digit(digit, rng), str(digit)

    def field(self, index: int, field: int) -> np.ndarray | str:
        if field == 1:  # without drawing the image
            return str(int(self.rng(index).integers(10)))
        return self.item(index)[field]

    def fingerprint(self) -> str:
        return f"digits {self.split} {len(self)}"


def make_digits(examples: int) -> dict[str, Source]:
    """Train, valid and test: different drawings in the same fonts."""
    counts = {"train": examples, "valid": HELD_OUT, "test": HELD_OUT}
    return {split: DigitSource(split, count, "digits") for split, count in counts.items()}


def draw_digit(digit: int, rng: np.random.Generator) -> np.ndarray:
    """A gray image (28, 28) of a digit: random font, size, place, rotation, shear, gray levels and noise."""
    from PIL import Image, ImageDraw

    font = _font(FONTS[int(rng.integers(len(FONTS)))], int(rng.integers(36, 49)))
    canvas = Image.new("L", (DRAWN, DRAWN), 0)
    place = DRAWN / 2 + rng.uniform(-4, 4), DRAWN / 2 + rng.uniform(-4, 4)
    ImageDraw.Draw(canvas).text(place, str(digit), 255, font, anchor="mm")
    shear, turn = rng.uniform(-0.2, 0.2), rng.uniform(-15, 15)
    canvas = canvas.rotate(turn, Image.Resampling.BILINEAR)
    shift = -shear * DRAWN / 2
    canvas = canvas.transform(
        canvas.size, Image.Transform.AFFINE, (1, shear, shift, 0, 1, 0), Image.Resampling.BILINEAR
    )
    ink = np.asarray(canvas.resize((SIDE, SIDE), Image.Resampling.BOX), np.float32) / 255
    dark, light = rng.uniform(0, 80), rng.uniform(160, 255)
    values = dark + (light - dark) * ink + rng.normal(0, rng.uniform(2, 15), (SIDE, SIDE))
    gray: np.ndarray = np.rint(values.clip(0, 255)).astype(np.uint8)
    return gray


@cache
def _font(name: str, size: int) -> "ImageFont.FreeTypeFont":
    import matplotlib
    from PIL import ImageFont

    return ImageFont.truetype(str(Path(matplotlib.get_data_path(), "fonts", "ttf", f"{name}.ttf")), size)
