"""Images with captions: tables of paths and captions, COCO JSON, folders with a text beside each image, archives.

An example has one image and all its captions, with tabs between them; `CaptionPairs` has an example for every caption.
Every image is checked when the data are opened, as for the other tasks that read images.
"""

import glob
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...config.data.images import CaptionData, NamedImages
from ...errors import UserError
from ...processors.image.read import RawImage, image_problem
from ..files.in_memory import InMemory
from ..files.line_index import BLANK
from ..files.open import missing_file, plain_suffix, text_error
from ..files.trees import open_tree
from ..source import Source, Subset, concatenate
from ..tables.cells import MediaValue, text_value
from ..tables.columns import Role
from ..tables.open import SUFFIXES, column_rule, is_json_array, open_table
from ..tables.records import TableSource
from .annotations import coco_captions
from .boxes import ImageFiles, StoredImage
from .images import PATH, SKIP_HINT, is_image_name
from .media import RECORD, MediaSource, is_tree, open_files, readable
from .pairs import split_references

CAPTION_NAMES = ("text", "sentence", "sentences", "description", "raw", "answer")


def caption_value(cell: object, names: Sequence[str] = ()) -> str:
    """A caption on one line; a list of captions with tabs between them."""
    cell = cell.tolist() if hasattr(cell, "tolist") else cell
    captions = [text_value(caption) for caption in cell] if isinstance(cell, list | tuple) else [text_value(cell)]
    return "\t".join(filter(None, (" ".join(caption.split()) for caption in captions)))


CAPTION = Role("caption", "text", (("caption", "captions"), CAPTION_NAMES), caption_value)


def captioned_images(data_files: Sequence[Sequence[str]], data: CaptionData | NamedImages) -> Source:
    """The examples in these files: a table, a folder or an archive; or images and their captions, after a comma."""
    if len(data_files) == 1:
        return concatenate([_open(pattern, data) for pattern in data_files[0]])
    if len(data_files) > 2 or not all(len(group) == 1 for group in data_files):
        raise UserError(
            f"images with captions are {len(data_files)} places here; expected one table, or two places, separated by "
            "a comma: the images and their captions, such as data.train=images/,captions.tsv"
        )
    (images,), (captions,) = data_files
    files = ImageFiles(open_tree(Path(images).expanduser()), data.invalid == "skip")
    if plain_suffix(captions) == ".json" and Path(captions).is_file() and not is_json_array(Path(captions)):
        return CaptionedImages(captions, _coco(Path(captions), files, data), data.invalid, files)
    table = _open_table(captions, data)
    return CaptionedImages(table.name, _records(table, files), data.invalid, files, table)


def open_captioned(name: str, data: CaptionData | NamedImages) -> Iterator[tuple[str, RawImage]]:
    """The images in a file, a folder, an archive or a table of paths, each with its name."""
    return open_files(name, is_image_name, _no_images, column_rule(data, (PATH, CAPTION), 1), data.invalid)


def _no_images(name: str) -> UserError:
    return UserError(f"{name} has no images; expected files such as .png or .jpg")


def _open(pattern: str, data: CaptionData | NamedImages) -> Source:
    path = Path(pattern).expanduser()
    if is_tree(pattern):
        files = ImageFiles(open_tree(path))
        return CaptionedImages(pattern, _texts_beside(files, data), data.invalid, files)
    if isinstance(pattern, InMemory) or plain_suffix(pattern) in SUFFIXES or data.format != "auto":
        table = _open_table(pattern, data)
        return CaptionedImages(table.name, _records(table), data.invalid, table=table)
    if not path.exists() and not glob.glob(str(path), recursive=True):
        raise missing_file(pattern)
    what = "is an image without its caption" if is_image_name(pattern) else "is no table, folder or archive"
    raise UserError(
        f"{pattern} {what}; give a table with the columns path and caption, a folder with a .txt file beside each "
        "image, or images and captions, such as data.train=images/,captions.tsv"
    )


# --- records ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CellImage:
    """An image in a table, read when it is needed."""

    table: TableSource
    index: int

    def read(self) -> RawImage:
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


def _open_table(pattern: str, data: CaptionData | NamedImages) -> TableSource:
    table = open_table([pattern], column_rule(data, (PATH, CAPTION)), data.format, data.invalid)
    for row in np.flatnonzero(table.statuses() == BLANK).tolist():
        image, caption = table.item(row)
        if not caption and (not isinstance(image, str) or image.strip()) and data.invalid != "skip":
            raise _no_caption(table.location(row))
    return TableSource(table)


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


def _coco(path: Path, files: ImageFiles, data: CaptionData | NamedImages) -> Iterator[CaptionRecord]:
    for place, name, captions in coco_captions(path):
        stored = files.find(name, place) if captions else None
        for where, text in captions:
            caption = caption_value(text)
            if not caption and data.invalid != "skip":
                raise _no_caption(where)
            if stored is not None and caption:
                yield CaptionRecord(stored.name, stored, caption, place)


def _texts_beside(files: ImageFiles, data: CaptionData | NamedImages) -> Iterator[CaptionRecord]:
    """The captions in .txt files beside the images, one on each line."""
    tree, beside = files.tree, {*files.tree.names}
    if not files.images:
        raise _no_images(str(tree.path))
    texts = {name: f"{os.path.splitext(name)[0]}.txt" for name in sorted(files.images)}
    if not any(text in beside for text in texts.values()):
        raise UserError(
            f"{tree.path} has {len(texts):,} images and no captions; put a .txt file beside each, such as "
            f"{min(texts.values())}, or name a table after it: data.train={tree.path},captions.tsv"
        )
    for name, text in texts.items():
        if text not in beside:
            continue
        content = tree.read(text)
        problem = text_error(content)
        if problem and data.invalid != "skip":
            raise UserError(f"{tree.location(text)}: {problem}; convert the file, for instance with iconv, {SKIP_HINT}")
        captions = "" if problem else caption_value(content.decode("utf-8-sig").splitlines())
        if captions:
            yield CaptionRecord(name, StoredImage(tree, name), captions, tree.location(name))
        elif data.invalid != "skip":
            raise _no_caption(tree.location(text))


def _no_caption(place: str) -> UserError:
    return UserError(f"{place}: the caption is empty; write what the image shows, {SKIP_HINT}")


# --- examples --------------------------------------------------------------------------------------------------------


class CaptionedImages(MediaSource):
    """Images with all their captions."""

    noun = "image"

    def __init__(
        self,
        name: str,
        records: Iterator[CaptionRecord],
        invalid: str,
        files: ImageFiles | None = None,
        table: TableSource | None = None,
    ) -> None:
        self.name = name
        groups: dict[object, list[CaptionRecord]] = {}
        for record in records:
            groups.setdefault(record.key, []).append(record)
        all_groups = list(groups.values())
        problems = (_problem(group[0], invalid == "skip") for group in all_groups)
        usable, self.problem = readable(problems, invalid, SKIP_HINT)
        self.groups: list[list[CaptionRecord]] = [all_groups[number] for number in usable.tolist()]
        self.counts, self.facts = ({}, []) if table is None else (dict(table.counts), table.table.facts())
        self.counts |= {"examples": len(self.groups), "unreadable": len(all_groups) - len(usable)}
        if files is not None:
            self.counts |= {"missing": files.missing, "uncaptioned": len(files.images) - len(all_groups)}

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
            "missing": "captions name an image that is missing and were left out (data.invalid=skip)",
        }
        several = sum(len(split_references(self._captions(index))) for index in range(len(self)))
        facts = [f"{several:,} captions of {len(self):,} images"] if several > len(self) else []
        facts += [f"{self.counts[key]:,} {why}" for key, why in reasons.items() if self.counts.get(key)]
        return self.facts + facts + super().report()


def _content(image: StoredImage | CellImage | Path) -> RawImage:
    """An object that the image processor can open."""
    if isinstance(image, StoredImage):
        return image.tree.content(image.name)
    content: RawImage = image.read() if isinstance(image, CellImage) else image
    return content


def _problem(record: CaptionRecord, decode: bool) -> str:
    """Why an image cannot be read, with the place of its caption; "" if it can."""
    if isinstance(record.image, Path) and not record.image.is_file():
        return f"{record.place}: there is no image {record.image}; correct the path or the line"
    problem = image_problem(_content(record.image), decode)
    return f"{record.place}: {problem}" if problem else ""


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
