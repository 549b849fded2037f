"""Augmentation of images with boxes: a random window of the image, mirrored at random; boxes and labels follow."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ..base import Array, Rng
from .processor import RESAMPLING, ImageProcessor

if TYPE_CHECKING:
    from PIL import Image

Region = tuple[float, float, float, float]  # left, top, right, bottom
BoxedImage: TypeAlias = "tuple[Image.Image, Array, tuple[str, ...]]"  # with boxes (boxes, 4) and their labels


@dataclass(frozen=True)
class BoxWindow:
    """Resizes a random window of an image to the size that the whole image would get.

    The window is the image size times a factor within `scale`; above 1, it has a border in the mean color. Boxes are
    clipped to the window. A box is dropped with its label if less than the share `visible` of its area remains.
    """

    image: ImageProcessor
    scale: tuple[float, float] = (1.0, 1.0)
    stretch: float = 0.0  # the aspect ratio of the window changes by up to this share
    visible: float = 0.3
    flip: bool = False  # left and right
    upside: bool = False  # up and down

    def __call__(self, image: "Image.Image", boxes: Array, labels: tuple[str, ...], rng: Rng) -> BoxedImage:
        """The window, its boxes in pixels of the whole image, and their labels."""
        window, size = self._draw_window(image.size, rng), image.size
        across, down = self.flip and rng.random() < 0.5, self.upside and rng.random() < 0.5
        part = self._cut(image, window, across, down)
        moved, remain = self._transform_boxes(np.array(boxes, np.float64).reshape(-1, 4), window, size)
        if across:
            moved[:, [0, 2]] = size[0] - moved[:, [2, 0]]
        if down:
            moved[:, [1, 3]] = size[1] - moved[:, [3, 1]]
        return part, moved, tuple(label for label, keep in zip(labels, remain, strict=True) if keep)

    def _draw_window(self, size: tuple[int, int], rng: Rng) -> Region:
        """Left, top, right and bottom of the window in pixels of the image."""
        scale = math.exp(rng.uniform(math.log(self.scale[0]), math.log(self.scale[1])))
        aspect = math.exp(rng.uniform(-1, 1) * math.log1p(self.stretch) / 2)
        width, height = size[0] * scale * aspect, size[1] * scale / aspect
        left, top = rng.random() * (size[0] - width), rng.random() * (size[1] - height)
        return left, top, left + width, top + height

    def _cut(self, image: "Image.Image", window: Region, across: bool, down: bool) -> "Image.Image":
        from PIL import Image, ImageOps

        height, width = self.image.target_size(*image.size)
        left, top, right, bottom = window
        inner = max(left, 0), max(top, 0), min(right, image.width), min(bottom, image.height)
        x, y = width / (right - left), height / (bottom - top)
        place = [round((inner[0] - left) * x), round((inner[1] - top) * y)]
        place += [round((inner[2] - left) * x), round((inner[3] - top) * y)]
        shape = max(place[2] - place[0], 1), max(place[3] - place[1], 1)
        part = image.resize(shape, RESAMPLING[self.image.resample], inner)
        if shape != (width, height):
            color = tuple(round(255 * channel) for channel in self.image.mean)
            canvas, part = Image.new(self.image.mode, (width, height), color), part.convert(self.image.mode)
            canvas.paste(part, (place[0], place[1]))
            part = canvas
        part = ImageOps.mirror(part) if across else part
        return ImageOps.flip(part) if down else part

    def _transform_boxes(self, boxes: Array, window: Region, size: tuple[int, int]) -> tuple[Array, Array]:
        """The remaining boxes, in pixels of an image of this size, and a mask of the boxes that remain."""
        left, top, right, bottom = window
        limits = np.array([right - left, bottom - top] * 2)
        moved = boxes - np.array([left, top] * 2)
        clipped = moved.clip(0, limits)
        before, after = ((corners[:, 2:] - corners[:, :2]).prod(1) for corners in (moved, clipped))
        remain: Array = (clipped[:, 2:] > clipped[:, :2]).all(1) & (after >= self.visible * before)
        return clipped[remain] * (np.array(size * 2) / limits), remain
