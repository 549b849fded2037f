"""Images with labels: a folder per class, tables of paths, IDX files as of MNIST, and archives of these.

Opening the data checks every image: the first and last bytes of a PNG or JPEG file, the header of others. With
data.invalid=skip, it decodes every image and leaves out those that fail.
"""

import glob
import gzip
import hashlib
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from ...config.data.images import NamedImages
from ...errors import UserError
from ...processors.image.read import RawImage, image_problem
from ..files.in_memory import InMemory
from ..files.open import matching_files, missing_file, open_decompressed, plain_suffix
from ..files.trees import FileTree, open_tree
from ..source import InMemorySource, Source, concatenate
from ..tables.cells import label_value, text_value
from ..tables.columns import LABEL, MediaValue, Role
from ..tables.open import SUFFIXES, column_rule, open_table
from .media import FileTable, TreeSource, array_digest, file_cell, is_tree, open_files, readable

SKIP_HINT = "or set data.invalid=skip to leave such images out"
READ = {".png", ".jpg", ".jpeg", ".jfif", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".jp2", ".avif"}
OTHER = {".heic", ".heif", ".svg", ".psd", ".eps"}  # images that are refused, not ignored as other files are
SPLITS = {"train", "training", "val", "valid", "validation", "dev", "test", "testing"}
PATH_NAMES = ("image", "img", "file", "file_name", "filename", "image_path", "file_path", "filepath")


def image_value(cell: object, names: Sequence[str] = ()) -> str | MediaValue:
    """The path of an image, or the image itself."""
    cell = file_cell(cell)
    if isinstance(cell, bytes | np.ndarray) or hasattr(cell, "tobytes") or hasattr(cell, "detach"):
        return MediaValue(cell, lambda: array_digest(cell))
    return text_value(cell)


PATH = Role("path", "path or image", (("path",), PATH_NAMES), image_value)


def labeled_images(files: Sequence[Sequence[str]], data: NamedImages) -> Source:
    """The examples in these files, each an image and its label."""
    if len(files) == 2 and not any(Path(name).is_dir() for group in files for name in group):
        return idx_examples(files[0], files[1], data)
    if len(files) != 1:
        raise UserError(
            f"images and labels are in one place, but {len(files)} were given, separated by commas; two are IDX "
            "files, as in data.train=images-idx3-ubyte.gz,labels-idx1-ubyte.gz"
        )
    return concatenate([_open(pattern, data) for pattern in files[0]])


def open_images(name: str, data: NamedImages) -> Iterator[tuple[str, RawImage]]:
    """The images in a file, a folder, an archive or a table of paths, each with its name."""
    return open_files(name, is_image_name, _no_images, column_rule(data, (PATH, LABEL), 1), data.invalid)


def is_image_name(name: str) -> bool:
    """True if the suffix is that of an image."""
    return PurePosixPath(name).suffix.lower() in READ | OTHER


def _no_images(name: str) -> UserError:
    return UserError(f"{name} has no images; expected files such as .png or .jpg, in a folder for each class")


def _open(pattern: str, data: NamedImages) -> Source:
    path = Path(pattern).expanduser()
    if is_tree(pattern):
        return TreeImages(open_tree(path), data)
    if isinstance(pattern, InMemory) or plain_suffix(pattern) in SUFFIXES or data.format != "auto":
        table = TableImages(open_table([pattern], column_rule(data, (PATH, LABEL)), data.format, data.invalid))
        table.check(data.invalid)
        return table
    if not path.exists() and not glob.glob(str(path), recursive=True):
        raise missing_file(pattern)
    raise UserError(
        f"{pattern} is neither a folder, an archive nor a table; give a folder with one folder per class, a table with "
        "the columns path and label, or two IDX files"
    )


class TreeImages(TreeSource):
    """A folder or archive with one folder per class."""

    noun = "image"

    def __init__(self, tree: FileTree, data: NamedImages) -> None:
        self.tree, self.name = tree, str(tree.path)
        images = [name for name in tree.names if is_image_name(name)]
        if not images:
            raise _no_images(self.name)
        self.top = _common_folder(images)
        classes = [PurePosixPath(name).relative_to(self.top).parts for name in images]
        self._check_folders(images, classes)
        problems = (image_problem(tree.content(name), data.invalid == "skip") for name in images)
        usable, self.problem = readable(problems, data.invalid, SKIP_HINT)
        self.files = [(images[number], _label(classes[number][0], data, self.name)) for number in usable.tolist()]
        self.other = [name for name in tree.names if not is_image_name(name)]
        self.counts = {"examples": len(self.files), "unreadable": len(images) - len(usable)}

    def _check_folders(self, images: Sequence[str], classes: Sequence[tuple[str, ...]]) -> None:
        for name, parts in zip(images, classes, strict=True):
            if len(parts) < 2:
                raise UserError(
                    f"{self.tree.location(name)} is in no folder of a class; put the images of each class into a "
                    "folder of its own, or give a table with the columns path and label"
                )
        labels = sorted({parts[0] for parts in classes})
        if {label.lower() for label in labels} <= SPLITS and any(len(parts) > 2 for parts in classes):
            first = min(labels, key=lambda label: not label.lower().startswith("train"))
            raise UserError(
                f"{self.name} has the folders {', '.join(labels)}, which look like splits and not like classes; give "
                f"one for each split, such as data.train={self.name}/{self.top / first}"
            )

    def report(self) -> list[str]:
        labels, facts = {PurePosixPath(name).relative_to(self.top).parts[0] for name, _ in self.files}, []
        folders = [PurePosixPath(name) for name in self.tree.folders]
        empty = sorted(folder.name for folder in folders if folder.parent == self.top and folder.name not in labels)
        if empty:
            facts.append(f"no images in {', '.join(empty)}, so no class of this name")
        if self.other:
            facts.append(f"{len(self.other):,} files are no images and were left out, such as {self.other[0]}")
        return facts + super().report()


def _label(name: str, data: NamedImages, place: str) -> str:
    """The label of a folder or a number; with data.names, a number is the index of one."""
    try:
        return label_value(name, data.names)
    except ValueError as error:
        raise UserError(f"{place} has the label {error}; give a name for each, or leave data.names out") from error


def _common_folder(names: Sequence[str]) -> PurePosixPath:
    """The folder that contains the class folders: an archive often has one folder around them."""
    parents = [PurePosixPath(name).parent.parts for name in names]
    top: list[str] = []
    while parents and len({parts[: len(top) + 1] for parts in parents}) == 1 and len(parents[0]) > len(top) + 1:
        top.append(parents[0][len(top)])
    return PurePosixPath(*top)


class TableImages(FileTable):
    """Images and labels in a table."""

    noun = "image"

    def check(self, invalid: str) -> None:
        """Leave out images that cannot be read, or raise an error."""
        whole, decode = len(self), invalid == "skip"
        problems = (self.file_problem(index, lambda raw: image_problem(raw, decode)) for index in range(whole))
        usable, self.problem = readable(problems, invalid, SKIP_HINT)
        self.keep(usable)
        self.counts["unreadable"] = whole - len(usable)


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
    labels = {number: _label(str(number), data, label_files[0]) for number in np.unique(numbers).tolist()}
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
