"""Images as normalized pixels. Pillow (the extra `vision`) is imported where it is used."""

import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

import numpy as np
import torch

from ...errors import UserError
from ...parts.inputs import Inputs, TensorKind
from ..base import Array, Rng, SavedSettings, to_array
from .augment import erase, jitter_color, rand_augment, resize
from .read import RawImage, image_name, open_image

if TYPE_CHECKING:
    from PIL import Image

Channels: TypeAlias = tuple[float, ...]  # a number for each channel
MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # Pillow's, by the number of channels
RESAMPLING = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3}  # Pillow's numbers
ASPECTS = 3 / 4, 4 / 3  # of random crops
MAX_ASPECT = 100  # aspect ratio of images whose shorter side is resized: the longer side must fit into memory
THREADS = min(os.cpu_count() or 1, 8)  # for reading files
TRIES = 10  # random crops; if none fits, the middle of the image is used


@dataclass(frozen=True)
class ImageProcessor(SavedSettings):
    """Pixels (channels, height, width), resized, cropped, and normalized by the mean and deviation of each channel.

    Images are RGB, or gray with one mean, or RGBA with four.
    Training resizes a random crop with an area share within `scale`, and mirrors it half of the time if `flip`. Tasks
    with boxes set scale to (1, 1), and flip image and boxes together.
    """

    resize: int | tuple[int, int] = 224  # the shorter side; two numbers: height and width; 0: images keep their size
    crop: int = 224  # the side of the center crop; 0: the whole image
    resample: Literal["nearest", "lanczos", "bilinear", "bicubic"] = "bicubic"
    mean: Channels = (0.5, 0.5, 0.5)
    std: Channels = (0.5, 0.5, 0.5)
    patch: int = 16  # the side of a patch: the cost counts patches, batches are padded to whole patches
    scale: tuple[float, float] = (0.08, 1.0)
    flip: bool = True
    color: float = 0.0  # brightness, contrast and saturation change by up to this share
    randaugment: int = 0  # random operations, each of this strength (0…1)
    strength: float = 0.3
    erase: float = 0.0  # how often a random rectangle is erased
    max_size: int = 0  # limit of the longer side if the shorter one is resized; 0: none
    pad: tuple[int, int] = (0, 0)  # height and width that a batch has at least
    background: str = "none"  # the color of transparent parts, as in `open_image`
    kind: ClassVar[str] = "image"
    file: ClassVar[str] = "image.json"

    def __post_init__(self) -> None:
        sides = (self.resize,) if isinstance(self.resize, int) else self.resize
        least = 0 if len(sides) == 1 else 1
        if len(sides) > 2 or min(sides) < least or self.patch < 1 or self.crop < 0:
            raise UserError(
                f"images of resize={self.resize}, crop={self.crop}, patch={self.patch} are not possible; expected "
                "positive numbers of pixels"
            )
        if self.resample not in RESAMPLING:
            raise UserError(f"resample is {self.resample!r}; expected one of {', '.join(RESAMPLING)}")
        if len(self.mean) not in MODES or len(self.std) != len(self.mean) or min(self.std) <= 0:
            expected = "expected three numbers each, or one for gray images and four for RGBA, std above 0"
            raise UserError(f"mean is {self.mean} and std {self.std}; {expected}")
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise UserError(f"scale is {self.scale}; expected two shares of an image, 0 < from ≤ to ≤ 1")

    @property
    def modality(self) -> TensorKind:
        return "pixels"

    def encode(self, raw: RawImage, rng: Rng | None = None) -> Array:
        """A file, its bytes, a Pillow image, or an array (height, width[, channels]) of 0…255 or of floats 0…1."""
        pixels = self._normalize(self.encode_bytes(raw, rng))
        return erase(pixels, rng) if rng is not None and self.erase and rng.random() < self.erase else pixels

    def encode_bytes(self, raw: RawImage, rng: Rng | None = None) -> Array:
        """The pixels as bytes, without normalization and erasing. The device normalizes their batches."""
        opened = open_image(raw, 0 if rng is None else self._enough, self.background)
        whole = self._limit_aspect(opened if opened.mode == self.mode else opened.convert(self.mode), raw)
        image = self._crop(self._resize(whole)) if rng is None else self._augment(whole, rng)
        pixels = np.asarray(image)
        return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)

    def encode_all(self, images: Sequence[RawImage]) -> list[Array]:
        """The images in order. Several threads read files: decoding releases the GIL."""
        files = sum(isinstance(image, str | bytes | os.PathLike) for image in images)
        if min(files, THREADS) < 2:
            return [self.encode(image) for image in images]
        with ThreadPoolExecutor(min(files, THREADS)) as pool:
            return list(pool.map(self.encode, images))

    @property
    def augments(self) -> bool:
        """True if training changes images, so that they must be encoded again."""
        return self.scale != (1, 1) or bool(self.flip or self.color or self.randaugment or self.erase)

    @staticmethod
    def is_uniform(encoded: Array) -> bool:
        """True for pixels of one color."""
        return bool((encoded == encoded[:, :1, :1]).all())

    def cost(self, encoded: Array) -> int:
        return self._patches(encoded.shape[1:])

    @property
    def fixed_cost(self) -> int | None:
        """The cost of every image; None if it depends on the image."""
        sides = (self.crop, self.crop) if self.crop else self.resize
        return None if isinstance(sides, int) else self._patches(sides)

    @property
    def mode(self) -> str:
        """Pillow's mode of the images."""
        return MODES[len(self.mean)]

    def cost_of_size(self, width: int, height: int) -> int:
        """The cost of an image of this size, as its header has it."""
        return self._patches((self.crop, self.crop) if self.crop else self.target_size(width, height))

    def _patches(self, sides: Sequence[int]) -> int:
        return math.prod(-(-side // self.patch) for side in sides)

    def collate(self, encoded: Sequence[Array]) -> Inputs:
        """Images of unequal sizes are padded to the largest, in whole patches, with the mean color."""
        height, width = (
            max(least, *(pixels.shape[1 + axis] for pixels in encoded)) for axis, least in enumerate(self.pad)
        )
        equal, in_bytes = all(pixels.shape[1:] == (height, width) for pixels in encoded), encoded[0].dtype == np.uint8
        if equal and in_bytes:
            values = torch.from_numpy(np.stack([pixels.transpose(1, 2, 0) for pixels in encoded]))  # as Pillow has them
            return Inputs("pixels", values.permute(0, 3, 1, 2), scaling=torch.from_numpy(self._scaling))
        if equal:
            return Inputs("pixels", torch.from_numpy(np.stack(encoded)))
        encoded = [self._normalize(pixels) for pixels in encoded] if in_bytes else encoded
        height, width = (-(-side // self.patch) * self.patch for side in (height, width))
        values = torch.zeros(len(encoded), len(self.mean), height, width)
        valid = torch.zeros(len(encoded), height, width, dtype=torch.bool)
        for i, pixels in enumerate(encoded):
            values[i, :, : pixels.shape[1], : pixels.shape[2]] = torch.from_numpy(pixels)
            valid[i, : pixels.shape[1], : pixels.shape[2]] = True
        return Inputs("pixels", values, valid)

    def decode(self, values: Array | torch.Tensor) -> "Image.Image":
        """The image of pixels (channels, height, width)."""
        from PIL import Image

        pixels = to_array(values).astype(np.float32) * self._channels(self.std) + self._channels(self.mean)
        whole = np.rint(pixels.clip(0, 1) * 255).astype(np.uint8)
        return Image.fromarray(whole[0] if len(whole) == 1 else whole.transpose(1, 2, 0))

    @property
    def _scaling(self) -> Array:
        """The value of `Inputs.scaling`."""
        return np.array(((255,) * len(self.mean), self.mean, self.std), np.float32)

    def _normalize(self, pixels: Array) -> Array:
        normalized: Array = pixels.astype(np.float32, order="C")
        whole, mean, deviation = self._scaling[..., None, None]
        normalized /= whole  # in place: a third of the time
        normalized -= mean
        normalized /= deviation
        return normalized

    @staticmethod
    def _channels(values: Channels) -> Array:
        return np.array(values, np.float32)[:, None, None]

    @property
    def _enough(self) -> int:
        """Smallest side at which every random crop still has as many pixels as training reads."""
        return math.ceil(self.crop * math.sqrt(ASPECTS[1] / self.scale[0]))

    def _limit_aspect(self, image: "Image.Image", raw: RawImage) -> "Image.Image":
        """The middle of an image that is too narrow to be resized whole, if a center crop follows."""
        width, height = image.size
        longest = MAX_ASPECT * min(width, height)
        if max(width, height) <= longest or self.max_size or not self.resize or not isinstance(self.resize, int):
            return image
        if not 0 < self.crop <= self.resize:
            expected = f"expected one side at most {MAX_ASPECT} times the other"
            raise UserError(f"{image_name(raw)} is {width} × {height} pixels; {expected}")
        left, top = max(width - longest, 0) // 2, max(height - longest, 0) // 2
        return image.crop((left, top, left + min(width, longest), top + min(height, longest)))

    def _resize(self, image: "Image.Image") -> "Image.Image":
        height, width = self.target_size(*image.size)
        return image.resize((width, height), RESAMPLING[self.resample]) if self.resize else image

    def target_size(self, width: int, height: int) -> tuple[int, int]:
        """The height and width that an image is resized to, rounded as transformers does."""
        if not isinstance(self.resize, int):
            return self.resize
        if not self.resize:
            return height, width
        shorter, longer = min(width, height), max(width, height)
        exact: float = self.resize
        if self.max_size and longer / shorter * self.resize > self.max_size:
            exact = self.max_size * shorter / longer
        side = round(exact)
        side, other = (side, longer) if side == shorter else (max(side, 1), int(exact * longer / shorter))
        return (side, other) if height <= width else (other, side)

    def _crop(self, image: "Image.Image") -> "Image.Image":
        """The center crop; a smaller image gets a black border."""
        if not self.crop:
            return image
        left, top = (image.width - self.crop) // 2, (image.height - self.crop) // 2
        return image.crop((left, top, left + self.crop, top + self.crop))

    def _augment(self, image: "Image.Image", rng: Rng) -> "Image.Image":
        from PIL import ImageOps

        region = random_region(image.size, self.scale, rng)
        mirrored = self.flip and rng.random() < 0.5
        part = image.crop(region)
        height, width = (self.crop, self.crop) if self.crop else self.target_size(*part.size)
        part = resize(part, height, width, self.resample)
        part = ImageOps.mirror(part) if mirrored else part
        part = jitter_color(part, self.color, rng) if self.color else part
        return rand_augment(part, self.randaugment, self.strength, rng).convert(self.mode) if self.randaugment else part


def random_region(size: tuple[int, int], scale: tuple[float, float], rng: Rng) -> tuple[int, int, int, int]:
    """A random crop (left, top, right, bottom) of an image, with an area share within `scale`."""
    width, height = size
    if scale == (1, 1):
        return 0, 0, width, height
    for _ in range(TRIES):
        area = width * height * rng.uniform(*scale)
        aspect = math.exp(rng.uniform(math.log(ASPECTS[0]), math.log(ASPECTS[1])))
        across, down = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < across <= width and 0 < down <= height:
            left, top = int(rng.integers(width - across + 1)), int(rng.integers(height - down + 1))
            return left, top, left + across, top + down
    across = min(width, max(round(height * ASPECTS[1]), 1))  # none fits: the largest crop in the middle
    down = min(height, max(round(width / ASPECTS[0]), 1))
    left, top = (width - across) // 2, (height - down) // 2
    return left, top, left + across, top + down
