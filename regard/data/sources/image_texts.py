"""Images with texts: tables of paths with a caption or a label, folders of classes or with captions, IDX files."""

import os
from collections.abc import Sequence
from pathlib import Path

from ...config.data.images import NamedImages
from ...errors import UserError
from ..files.in_memory import InMemory
from ..files.open import plain_suffix
from ..files.trees import open_tree
from ..source import Source
from ..tables.columns import LABEL_NAMES, TEXT_NAMES, Role, label_value
from ..tables.open import SUFFIXES, column_rule, open_table
from .captions import CaptionPairs, captioned_images
from .images import PATH, TableImages, idx_examples, is_image_name, labeled_images
from .media import is_tree, join_examples


def named_text(cell: object, names: Sequence[str] = ()) -> str:
    """A text on one line; with data.names, a number is the index of one."""
    return " ".join(label_value(cell, names).split())


CAPTION_NAMES = ("text", "caption", "captions", "title", "alt", "alt_text", "description", *TEXT_NAMES)
NAME = Role("text", "text", (CAPTION_NAMES, ("label",), LABEL_NAMES), named_text)


def image_texts(sides: Sequence[Sequence[str]], data: NamedImages) -> Source:
    """The examples in these files, each an image and a text that belongs to it."""
    folders = [is_tree(name) for side in sides for name in side]
    if len(sides) == 2:
        return CaptionPairs(captioned_images(sides, data)) if any(folders) else idx_examples(sides[0], sides[1], data)
    if len(sides) != 1:
        raise UserError(
            f"images and texts are {len(sides)} places here, separated by commas; give a table with the columns path "
            "and text, a folder with one folder for each class, images and a table of captions, or two IDX files"
        )
    if all(folders) and all(_has_captions(name) for name in sides[0]):
        return CaptionPairs(captioned_images(sides, data))
    if all(_is_table(name, data) for name in sides[0]):
        return join_examples([_open_table(name, data) for name in sides[0]])
    return labeled_images(sides, data)


def _has_captions(name: str) -> bool:
    """True if there is a text beside an image of a folder or archive."""
    names = open_tree(Path(name).expanduser()).names
    return any(f"{os.path.splitext(each)[0]}.txt" in {*names} for each in names[:1000] if is_image_name(each))


def _is_table(name: str, data: NamedImages) -> bool:
    known = isinstance(name, InMemory) or plain_suffix(name) in SUFFIXES or data.format != "auto"
    return known and not is_tree(name)


def _open_table(name: str, data: NamedImages) -> Source:
    path = name if isinstance(name, InMemory) else str(Path(name).expanduser())
    table = TableImages(open_table([path], column_rule(data, (PATH, NAME)), data.format, data.invalid))
    table.check(data.invalid)
    return table
