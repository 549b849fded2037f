"""Images with texts: tables of paths with a caption or a label, a folder for each class, IDX files with names."""

from collections.abc import Sequence
from pathlib import Path

from ..config.vision import NamedImages
from ..errors import UserError
from .columns import LABEL_NAMES, TEXT_NAMES, Role, label_value
from .examples import Examples
from .images import PATH, TableImages, idx_examples, labeled_images
from .media import is_tree, join_examples
from .memory import InMemory
from .open_file import plain_suffix
from .table_files import SUFFIXES, column_rule, open_table


def named_text(cell: object, names: Sequence[str] = ()) -> str:
    """A text on one line; with data.names, a number is the index of one."""
    return " ".join(label_value(cell, names).split())


CAPTION_NAMES = ("text", "caption", "captions", "title", "alt", "alt_text", "description", *TEXT_NAMES)
NAME = Role("text", "text", (CAPTION_NAMES, ("label",), LABEL_NAMES), named_text)


def image_texts(sides: Sequence[Sequence[str]], data: NamedImages) -> Examples:
    """The examples in these files, each an image and a text that belongs to it."""
    folders = [is_tree(name) for side in sides for name in side]
    if len(sides) == 2 and not any(folders):
        return idx_examples(sides[0], sides[1], data)
    if len(sides) != 1:
        raise UserError(
            f"images and texts are in one place, but {len(sides)} were given, separated by commas; give a table with "
            "the columns path and text, a folder with one folder for each class, or two IDX files"
        )
    if all(_is_table(name, data) for name in sides[0]):
        return join_examples([_open_table(name, data) for name in sides[0]])
    return labeled_images(sides, data)


def _is_table(name: str, data: NamedImages) -> bool:
    known = isinstance(name, InMemory) or plain_suffix(name) in SUFFIXES or data.format != "auto"
    return known and not is_tree(name)


def _open_table(name: str, data: NamedImages) -> Examples:
    path = name if isinstance(name, InMemory) else str(Path(name).expanduser())
    table = TableImages(open_table([path], column_rule(data, (PATH, NAME)), data.format, data.invalid))
    table.check(data.invalid)
    return table
