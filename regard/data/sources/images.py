"""Images with labels: a folder per class, tables of paths, IDX files as of MNIST, and archives of these.

Opening the data checks every image: the first and last bytes of a PNG or JPEG file, the header of others. With
data.invalid=skip, it decodes every image and leaves out those that fail.
"""

import gzip
import hashlib
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from ...config.data.images import NamedImages, SquareImages
from ...errors import UserError
from ...processors.image.read import RawImage, image_problem, is_uniform
from ..files.open import matching_files, open_decompressed
from ..source import InMemorySource, Source, array_digest
from ..tables.cells import text_value
from ..tables.columns import MediaValue, Role
from .media import Medium, file_cell
from .pairings import LabeledMedia, read_label

READ = {".png", ".jpg", ".jpeg", ".jfif", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".jp2", ".avif"}
OTHER = {".heic", ".heif", ".svg", ".psd", ".eps"}  # images that are refused, not ignored as other files are
PATH_NAMES = ("image", "img", "file", "file_name", "filename", "image_path", "file_path", "filepath")


def image_value(cell: object, names: Sequence[str] = ()) -> str | MediaValue:
    """The path of an image, or the image itself."""
    cell = file_cell(cell)
    if isinstance(cell, bytes | np.ndarray) or hasattr(cell, "tobytes") or hasattr(cell, "detach"):
        return MediaValue(cell, lambda: array_digest(cell))
    return text_value(cell)


class ImageMedium(Medium[SquareImages]):
    """Images."""

    noun, plural, examples = "image", "images", ".png or .jpg"
    column = Role("path", "path or image", (("path",), PATH_NAMES), image_value)

    def is_name(self, name: str) -> bool:
        return PurePosixPath(name).suffix.lower() in READ | OTHER

    def inspect(self, raw: RawImage, data: SquareImages) -> tuple[str, float]:
        return image_problem(raw, data.invalid == "skip"), 0.0

    empty = "have one color throughout"

    def is_empty(self, raw: RawImage, data: SquareImages) -> bool:
        return is_uniform(raw, data.background)


class LabeledImages(LabeledMedia[NamedImages]):
    """Images with a label each."""

    several = (
        "images and labels are in one place, but {} were given, separated by commas; two are IDX files, as in "
        "data.train=images-idx3-ubyte.gz,labels-idx1-ubyte.gz"
    )
    expected = "a folder with one folder per class, a table with the columns path and label, or two IDX files"

    def label_names(self, data: NamedImages) -> Sequence[str]:
        return data.names

    def open(self, files: Sequence[Sequence[str]], data: NamedImages) -> Source:
        if len(files) == 2 and not any(Path(name).is_dir() for group in files for name in group):
            return idx_examples(files[0], files[1], data)
        return super().open(files, data)


IMAGE = ImageMedium()
LABELED_IMAGES = LabeledImages(IMAGE)


class InMemoryImages(InMemorySource):
    """Images held in memory."""

    def fingerprint(self) -> str:
        state = hashlib.blake2b(digest_size=16)
        for image, label in self.examples:
            state.update(f"{array_digest(image)} {label}\0".encode())
        return state.hexdigest()


# --- IDX -------------------------------------------------------------------------------------------------------------


def idx_examples(image_files: Sequence[str], label_files: Sequence[str], data: NamedImages) -> Source:
    """The images and labels of IDX files, the format of MNIST; a label is its number, or one of data.names."""
    images = np.concatenate([read_idx(path) for pattern in image_files for path in matching_files(pattern)])
    numbers = np.concatenate([read_idx(path) for pattern in label_files for path in matching_files(pattern)])
    if images.ndim not in (3, 4) or numbers.ndim != 1 or len(images) != len(numbers):
        raise UserError(
            f"{image_files[0]} has shape {images.shape} and {label_files[0]} {numbers.shape}; expected images (count, "
            "height, width) and as many labels (count)"
        )
    labels = {number: read_label(str(number), data.names, label_files[0]) for number in np.unique(numbers).tolist()}
    pairs = [(image, labels[number]) for image, number in zip(images, numbers.tolist(), strict=True)]
    return InMemoryImages(image_files[0], pairs)


def read_idx(path: Path) -> np.ndarray:
    """The array in an IDX file of bytes, compressed or not."""
    try:
        with open_decompressed(path) as file:
            data = file.read()
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise UserError(f"{path} is not a complete archive ({error}); download it again") from error
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise UserError(f"{path} is no IDX file of bytes; expected one as MNIST has them, or a folder or table")
    shape = struct.unpack(f">{data[3]}I", data[4 : 4 + 4 * data[3]])
    values = np.frombuffer(data, np.uint8, offset=4 + 4 * data[3])
    if len(values) != int(np.prod(shape, dtype=np.int64)):
        raise UserError(f"{path} has {len(values)} values, and its header says {shape}; download it again")
    return values.reshape(shape)
