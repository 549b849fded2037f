"""Draws the objects of an image: boxes with names and scores."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL import Image, ImageFont

COLORS = (
    (214, 39, 40), (31, 119, 180), (44, 160, 44), (255, 127, 14), (148, 103, 189), (23, 190, 207), (227, 119, 194),
    (140, 86, 75), (188, 189, 34),
)  # fmt: skip
SMALLEST = 320  # the shorter side of a drawing: smaller images are enlarged, so that names are legible


def draw_objects(
    image: "Image.Image", objects: Sequence[tuple[str, float, Sequence[float]]], labels: Sequence[str]
) -> "Image.Image":
    """A copy of the image with (label, score, corners in pixels); the color follows the place of the label."""
    from PIL import ImageDraw

    times = max(-(-SMALLEST // min(image.size)), 1)
    drawn = image.resize((image.width * times, image.height * times), 0)
    line = max(round(min(drawn.size) / 240), 2)
    font, draw = _font(max(round(min(drawn.size) / 32), 10)), ImageDraw.Draw(drawn)
    for label, score, box in reversed(objects):  # the likeliest come last, on top
        color = COLORS[labels.index(label) % len(COLORS)]
        corners = [each * times for each in box]
        draw.rectangle(corners, outline=color, width=line)
        text = f"{label} {score:.2f}"
        _, _, width, height = draw.textbbox((0, 0), text, font)
        left = min(max(corners[0], 0), max(drawn.width - width - 4, 0))
        top = corners[1] - height - 4 if corners[1] >= height + 4 else corners[1]
        draw.rectangle((left, top, left + width + 4, top + height + 4), fill=color)
        draw.text((left + 2, top + 1), text, (255, 255, 255), font)
    return drawn


@cache
def _font(size: int) -> "ImageFont.FreeTypeFont":
    import matplotlib
    from PIL import ImageFont

    data: Any = matplotlib.get_data_path()
    return ImageFont.truetype(str(Path(data, "fonts", "ttf", "DejaVuSans.ttf")), size)
