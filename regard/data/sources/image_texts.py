"""Images with texts: tables of paths with a caption or a label, folders of classes or with captions, IDX files."""

import os
from collections.abc import Sequence
from pathlib import Path

from ...config.data.images import NamedImages
from ...errors import UserError
from ..files.in_memory import InMemory
from ..files.open import plain_suffix
from ..files.trees import open_tree
from ..source import Source, concatenate
from ..tables.columns import LABEL_NAMES, TEXT_NAMES, Role, label_value
from ..tables.open import SUFFIXES, column_rule, open_table
from .captions import CaptionPairs, captioned_images
from .images import PATH, TableImages, idx_examples, is_image_name, labeled_images
from .media import is_tree


def named_text(cell: object, names: Sequence[str] = ()) -> str:
    """A text on one line; with data.names, a number is the index of one."""
    return " ".join(label_value(cell, names).split())


CAPTION_NAMES = ("text", "caption", "captions", "title", "alt", "alt_text", "description", *TEXT_NAMES)
NAME = Role("text", "text", (CAPTION_NAMES, ("label",), LABEL_NAMES), named_text)


def image_texts(files: Sequence[Sequence[str]], data: NamedImages) -> Source:
    """The examples in these files: pairs of an image and its text."""
    folders = [is_tree(name) for group in files for name in group]
    if len(files) == 2:
        return CaptionPairs(captioned_images(files, data)) if any(folders) else idx_examples(files[0], files[1], data)
    if len(files) != 1:
        raise UserError(
            f"images and texts are {len(files)} places here, separated by commas; give a table with the columns path "
            "and text, a folder with one folder for each class, images and a table of captions, or two IDX files"
        )
    if all(folders) and all(_has_captions(name) for name in files[0]):
        return CaptionPairs(captioned_images(files, data))
    if all(_is_table(name, data) for name in files[0]):
        return concatenate([_open_table(name, data) for name in files[0]])
    return labeled_images(files, data)


def _has_captions(name: str) -> bool:
    """True if a folder or archive has a text file beside an image."""
    names = open_tree(Path(name).expanduser()).names
    return any(f"{os.path.splitext(path)[0]}.txt" in {*names} for path in names[:1000] if is_image_name(path))


def _is_table(name: str, data: NamedImages) -> bool:
    has_format = isinstance(name, InMemory) or plain_suffix(name) in SUFFIXES or data.format != "auto"
    return has_format and not is_tree(name)


def _open_table(name: str, data: NamedImages) -> Source:
    path = name if isinstance(name, InMemory) else str(Path(name).expanduser())
    table = TableImages(open_table([path], column_rule(data, (PATH, NAME)), data.format, data.invalid))
    table.check(data.invalid)
    return table
