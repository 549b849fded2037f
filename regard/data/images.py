"""Images with labels: a folder per class, tables of paths, IDX files as MNIST has them, and archives of these."""

import gzip
import hashlib
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from ..config.vision import ImageData
from ..errors import UserError
from .columns import LABEL, Role, text_value
from .examples import Examples, InMemoryExamples
from .memory import InMemory
from .open_file import matching_files, missing_file, open_decompressed, plain_suffix
from .table_files import SUFFIXES, column_rule, open_table
from .tables import Table, TableExamples
from .trees import FileTree, is_archive, open_tree

IMAGES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".jp2"}
PATH = Role("path", "path", (("path",), ("image", "file", "file_name", "filename", "image_path", "image")), text_value)


def labeled_images(sides: Sequence[Sequence[str]], data: ImageData) -> Examples:
    """The examples in these files, each an image and its label."""
    if len(sides) == 2:
        return idx_examples(sides[0], sides[1])
    if len(sides) != 1:
        raise UserError(
            f"images and labels are in one place, but {len(sides)} were given, separated by commas; two are IDX "
            "files, as in data.train=images-idx3-ubyte.gz,labels-idx1-ubyte.gz"
        )
    found = [_open(pattern, data) for pattern in sides[0]]
    return found[0] if len(found) == 1 else _joined(found)


def open_images(name: str, data: ImageData) -> Iterator[tuple[str, Any]]:
    """The images in a file, a folder, an archive or a table of paths, each with its name."""
    path = Path(name).expanduser()
    if path.is_dir() or is_archive(name):
        tree = open_tree(path)
        names = [each for each in tree.names if is_image_name(each)]
        if not names:
            raise UserError(f"{name} has no images; expected files such as .png or .jpg")
        return ((tree.location(each), tree.read(each)) for each in names)
    if plain_suffix(name) in SUFFIXES:
        rule = replace(column_rule(data, (PATH,)), asked=data.columns[:1])
        table = TableImages(open_table([name], rule, "auto", data.invalid))
        return ((str(path := table.path(index)), path) for index in range(len(table)))
    return iter([(name, path)])


def is_image_name(name: str) -> bool:
    return PurePosixPath(name).suffix.lower() in IMAGES


def _open(pattern: str, data: ImageData) -> Examples:
    if isinstance(pattern, InMemory):
        return _in_memory(pattern)
    path = Path(pattern).expanduser()
    if path.is_dir() or is_archive(pattern):
        return TreeImages(open_tree(path))
    if plain_suffix(pattern) in SUFFIXES or data.format != "auto":
        return TableImages(open_table([pattern], column_rule(data, (PATH, LABEL)), data.format, data.invalid))
    if not path.exists() and not matching_files(pattern):
        raise missing_file(pattern)
    raise UserError(
        f"{pattern} is neither a folder, an archive nor a table; give a folder with one folder per class, a table with "
        "the columns path and label, or two IDX files"
    )


def _in_memory(name: InMemory) -> Examples:
    rows = name.data
    if not hasattr(rows, "__getitem__") or not all(isinstance(row, tuple) and len(row) == 2 for row in rows):
        raise UserError(f"{name}: expected a list of tuples (image, label)")
    return InMemoryImages(name, [(image, str(label)) for image, label in rows])


def _joined(found: Sequence[Examples]) -> Examples:
    return InMemoryImages(
        f"{found[0].name} (and {len(found) - 1} more)", [example for examples in found for example in examples]
    )


class InMemoryImages(InMemoryExamples):
    """Images held in memory, or named by paths."""

    def fingerprint(self) -> str:
        state = hashlib.blake2b(digest_size=16)
        for image, label in self.examples:
            content = image.tobytes() if hasattr(image, "tobytes") else str(image).encode()
            state.update(content + b"\0" + label.encode())
        return state.hexdigest()


class TreeImages(Examples):
    """A folder or archive with one folder per class."""

    def __init__(self, tree: FileTree) -> None:
        self.tree, self.name = tree, str(tree.path)
        images = [name for name in tree.names if is_image_name(name)]
        top = _common_folder(images)
        self.files = [(name, PurePosixPath(name).relative_to(top).parts[0]) for name in images]
        loose = [name for name in images if len(PurePosixPath(name).relative_to(top).parts) < 2]
        if loose:
            raise UserError(
                f"{tree.location(loose[0])} is in no folder of a class; put the images of each class into a folder "
                "of its own, or give a table with the columns path and label"
            )
        self.counts = {"examples": len(self.files), "other": len(tree.names) - len(images)}

    def __len__(self) -> int:
        return len(self.files)

    def item(self, index: int) -> tuple[Any, ...]:
        name, label = self.files[index]
        return self.tree.read(name), label

    def location(self, index: int) -> str:
        return self.tree.location(self.files[index][0])

    def fingerprint(self) -> str:
        parts = (f"{name}\0{label}\0{self.tree.digest(name)}" for name, label in self.files)
        return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()

    def report(self) -> list[str]:
        other = self.counts["other"]
        return [f"{other:,} files are no images and were left out"] * bool(other) + super().report()


def _common_folder(names: Sequence[str]) -> PurePosixPath:
    """The folder whose folders are the classes: an archive often has one folder around them."""
    parents = [PurePosixPath(name).parent.parts for name in names]
    top: list[str] = []
    while parents and len({parts[: len(top) + 1] for parts in parents}) == 1 and len(parents[0]) > len(top) + 1:
        top.append(parents[0][len(top)])
    return PurePosixPath(*top)


class TableImages(TableExamples):
    """Paths in a table, and perhaps labels. Paths are relative to the folder of the table."""

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        for index in range(len(self)):
            if not (path := self.path(index)).is_file():
                raise UserError(f"{self.location(index)}: there is no image {path}; correct the path or the line")

    def path(self, index: int) -> Path:
        place = self.location(index).rpartition(":")[0] or "."
        return Path(place).parent / str(super().item(index)[0])

    def item(self, index: int) -> tuple[Any, ...]:
        return self.path(index), *super().item(index)[1:]


# --- IDX -------------------------------------------------------------------------------------------------------------


def idx_examples(image_files: Sequence[str], label_files: Sequence[str]) -> Examples:
    """The images and labels of IDX files, as MNIST has them; a label is its number."""
    images = np.concatenate([read_idx(path) for pattern in image_files for path in matching_files(pattern)])
    numbers = np.concatenate([read_idx(path) for pattern in label_files for path in matching_files(pattern)])
    if images.ndim not in (3, 4) or numbers.ndim != 1 or len(images) != len(numbers):
        raise UserError(
            f"{image_files[0]} has shape {images.shape} and {label_files[0]} {numbers.shape}; expected images (count, "
            "height, width) and as many labels (count)"
        )
    return InMemoryImages(image_files[0], list(_pairs(images, numbers)))


def _pairs(images: np.ndarray, numbers: np.ndarray) -> Iterator[tuple[np.ndarray, str]]:
    return ((image, str(int(number))) for image, number in zip(images, numbers, strict=True))


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
