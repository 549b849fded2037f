"""Images with captions: tables of paths and captions, COCO JSON, folders with a text beside each image, archives.

An example has one image and all its captions, with tabs between them; `CaptionPairs` has an example for every caption.
Every image is checked when the data are opened, as for the other tasks that read images.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...config.data.images import ImageTable, NamedImages
from ...processors.image.read import RawImage
from ..files.open import plain_suffix
from ..files.trees import FileTree, open_tree
from ..source import Source, Subset
from ..tables.cells import MediaValue, label_value, text_value
from ..tables.columns import LABEL_NAMES, TEXT_NAMES, Role
from ..tables.open import is_json_array
from ..tables.records import TableSource
from .annotations import coco_captions
from .boxes import ImageFiles, StoredImage
from .images import IMAGE, LABELED_IMAGES, LabeledImages
from .media import RECORD, MediaSource, is_table, is_tree
from .pairings import TextPairing
from .pairs import split_references

CAPTION_NAMES = ("text", "sentence", "sentences", "description", "raw", "answer")


def caption_value(cell: object, names: Sequence[str] = ()) -> str:
    """A caption on one line; a list of captions with tabs between them."""
    cell = cell.tolist() if hasattr(cell, "tolist") else cell
    captions = [text_value(caption) for caption in cell] if isinstance(cell, list | tuple) else [text_value(cell)]
    return "\t".join(filter(None, (" ".join(caption.split()) for caption in captions)))


CAPTION = Role("caption", "text", (("caption", "captions"), CAPTION_NAMES), caption_value)


class Captions(TextPairing[ImageTable]):
    """Images with their captions. Both may be in two places, after a comma."""

    target = CAPTION
    noun, write = "caption", "write what the image shows"
    other_place = "name a table after it: data.train={},captions.tsv"
    several = (
        "images with captions are {} places here; expected one table, or two places, separated by a comma: the images "
        "and their captions, such as data.train=images/,captions.tsv"
    )
    expected = (
        "a table with the columns path and caption, a folder with a .txt file beside each image, or images and "
        "captions, such as data.train=images/,captions.tsv"
    )

    def convert(self, content: str) -> str:
        return caption_value(content.splitlines())

    def open(self, files: Sequence[Sequence[str]], data: ImageTable) -> Source:
        if len(files) != 2 or not all(len(group) == 1 for group in files):
            return super().open(files, data)
        (place,), (captions,) = files
        images = ImageFiles(open_tree(Path(place).expanduser()), data.invalid == "skip")
        if plain_suffix(captions) == ".json" and Path(captions).is_file() and not is_json_array(Path(captions)):
            return CaptionedImages(captions, self._coco(Path(captions), images, data), data, images)
        table = TableSource(self.table(captions, data))
        return CaptionedImages(table.name, _records(table, images), data, images, table)

    def open_tree(self, tree: FileTree, data: ImageTable) -> Source:
        pairs, _ = self.texts_beside(tree, data.invalid)
        records = (CaptionRecord(name, StoredImage(tree, name), text, tree.location(name)) for name, text in pairs)
        return CaptionedImages(str(tree.path), records, data, ImageFiles(tree))

    def open_table(self, pattern: str, data: ImageTable) -> Source:
        table = TableSource(self.table(pattern, data))
        return CaptionedImages(table.name, _records(table), data, table=table)

    def _coco(self, path: Path, files: ImageFiles, data: ImageTable) -> Iterator["CaptionRecord"]:
        for place, name, captions in coco_captions(path, files):
            stored = files.find(name, place) if captions else None
            for where, text in captions:
                caption = caption_value(text)
                if not caption and data.invalid != "skip":
                    raise self.empty(where)
                if stored is not None and caption:
                    yield CaptionRecord(stored.name, stored, caption, place)


CAPTIONED_IMAGES = Captions(IMAGE)


# --- records ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CellImage:
    """An image in a table, read when it is needed."""

    table: TableSource
    index: int

    def content(self) -> RawImage:
        image: RawImage = self.table.item(self.index)[0].value
        return image

    def digest(self) -> str:
        digest: str = self.table.item(self.index)[0].digest()
        return digest


class CaptionRecord(NamedTuple):
    """Captions of an image as in a file. Records with the same key belong to one image."""

    key: object
    image: StoredImage | CellImage | Path
    captions: str  # with tabs between them
    place: str


def _records(examples: TableSource, files: ImageFiles | None = None) -> Iterator[CaptionRecord]:
    """The records of a table. Paths are relative to its folder, or to `files`."""
    for index in range(len(examples)):
        (cell, captions), place = examples.item(index), examples.location(index)
        if isinstance(cell, MediaValue):
            yield CaptionRecord(index, CellImage(examples, index), captions, place)
        elif files is None:
            path = Path(RECORD.sub("", place)).parent / cell
            yield CaptionRecord(path, path, captions, place)
        elif (stored := files.find(cell, place)) is not None:
            yield CaptionRecord(stored.name, stored, captions, place)


# --- examples --------------------------------------------------------------------------------------------------------


class CaptionedImages(MediaSource):
    """Images with all their captions."""

    medium = IMAGE

    def __init__(
        self,
        name: str,
        records: Iterable[CaptionRecord],
        data: ImageTable,
        files: ImageFiles | None = None,
        table: TableSource | None = None,
    ) -> None:
        self.name, self.data = name, data
        groups: dict[object, list[CaptionRecord]] = {}
        for record in records:
            groups.setdefault(record.key, []).append(record)
        whole = list(groups.values())
        self.counts, self.facts = ({}, []) if table is None else (dict(table.counts), table.table.facts())
        usable = self.select((_inspect(group[0], data) for group in whole), data.invalid, IMAGE.skip_hint)
        self.groups: list[list[CaptionRecord]] = [whole[number] for number in usable]
        if files is not None:
            self.counts |= {
                "missing": files.missing,
                "unlisted": files.unlisted,
                "uncaptioned": len(files.images) - len(whole),
            }

    def __len__(self) -> int:
        return len(self.groups)

    def item(self, index: int) -> tuple[RawImage, str]:
        return _content(self.groups[index][0].image), self._captions(index)

    def field(self, index: int, field: int) -> RawImage | str:
        return self._captions(index) if field == 1 else self.item(index)[field]

    def _captions(self, index: int) -> str:
        return "\t".join(record.captions for record in self.groups[index])

    def location(self, index: int) -> str:
        return self.groups[index][0].place

    def caption_places(self, index: int) -> list[str]:
        """The place of every caption of an image."""
        return [record.place for record in self.groups[index] for _ in record.captions.split("\t")]

    def fingerprint(self) -> str:
        state = hashlib.blake2b(digest_size=16)
        for index, group in enumerate(self.groups):
            image = group[0].image
            content = f"{image.name} {image.stat().st_size}" if isinstance(image, Path) else image.digest()
            state.update(f"{content}\0{self._captions(index)}\0".encode())
        return state.hexdigest()

    def report(self) -> list[str]:
        reasons = {
            "uncaptioned": "images have no caption and were left out",
            "unlisted": "captions belong to an image that the file does not list and were left out (data.invalid=skip)",
            "missing": "captions name an image that is missing and were left out (data.invalid=skip)",
        }
        several = sum(len(split_references(self._captions(index))) for index in range(len(self)))
        facts = [f"{several:,} captions of {len(self):,} images"] if several > len(self) else []
        facts += [f"{self.counts[key]:,} {why}" for key, why in reasons.items() if self.counts.get(key)]
        return self.facts + facts + super().report()


def _content(image: StoredImage | CellImage | Path) -> RawImage:
    return image if isinstance(image, Path) else image.content()


def _inspect(record: CaptionRecord, data: ImageTable) -> tuple[str, float]:
    """Why an image cannot be read, with the place of its caption; "" if it can."""
    if isinstance(record.image, Path) and not record.image.is_file():
        return f"{record.place}: there is no image {record.image}; correct the path or the line", 0.0
    problem, seconds = IMAGE.inspect(_content(record.image), data)
    return f"{record.place}: {problem}" if problem else "", seconds


class CaptionPairs(Subset):
    """Every caption is one example, with its image; training reads these pairs."""

    def __init__(self, examples: Source) -> None:
        captions = np.array([examples.text(index, 1).count("\t") + 1 for index in range(len(examples))], np.int64)
        super().__init__(examples, np.repeat(np.arange(len(examples)), captions), examples.name)
        self.numbers = np.arange(len(self)) - np.repeat(captions.cumsum() - captions, captions)

    def item(self, index: int) -> tuple[RawImage, str]:
        image, captions = super().item(index)
        return image, captions.split("\t")[self.numbers[index]]

    def field(self, index: int, field: int) -> RawImage | str:
        return self.text(index, 1) if field else super().field(index, 0)

    def text(self, index: int, field: int) -> str:
        return super().text(index, field).split("\t")[int(self.numbers[index])]

    def location(self, index: int) -> str:
        """The place of the caption, where it is known; else that of the image."""
        source, image = self.origin(index)
        if isinstance(source, CaptionedImages):
            return source.caption_places(image)[int(self.numbers[index])]
        return source.location(image)

    def fingerprint(self) -> str:
        return self.examples.fingerprint()


# --- images with texts of any kind -----------------------------------------------------------------------------------


def named_text(cell: object, names: Sequence[str] = ()) -> str:
    """A text on one line; with data.names, a number is the index of one."""
    return " ".join(label_value(cell, names).split())


TEXTS = ("text", "caption", "captions", "title", "alt", "alt_text", "description", *TEXT_NAMES)


class ImageTexts(LabeledImages):
    """Pairs of an image and its text, which is a caption or the name of a class."""

    several = (
        "images and texts are {} places here, separated by commas; give a table with the columns path and text, a "
        "folder with one folder for each class, images and a table of captions, or two IDX files"
    )

    def open(self, files: Sequence[Sequence[str]], data: NamedImages) -> Source:
        folders = [is_tree(name) for group in files for name in group]
        captioned = len(files) == 2 and any(folders)
        if captioned or len(files) == 1 and all(folders) and all(_has_captions(name) for name in files[0]):
            return CaptionPairs(CAPTIONED_IMAGES.open(files, data))
        if len(files) == 1 and not all(is_table(name, data) and not is_tree(name) for name in files[0]):
            return LABELED_IMAGES.open(files, data)
        return super().open(files, data)


def _has_captions(name: str) -> bool:
    """True if a folder or archive has a text file beside an image."""
    names = open_tree(Path(name).expanduser()).names
    return any(f"{os.path.splitext(path)[0]}.txt" in {*names} for path in names[:1000] if IMAGE.is_name(path))


IMAGE_TEXTS = ImageTexts(IMAGE, Role("text", "text", (TEXTS, ("label",), LABEL_NAMES), named_text))
