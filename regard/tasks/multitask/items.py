"""The inputs of one model: texts, images and recordings, distinguished by the rule of `as_item`."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ...data.files.lines import TextLines
from ...data.files.open import plain_suffix
from ...data.files.trees import open_tree
from ...data.sources.manifest import (
    AUDIO,
    IMAGE,
    SUFFIXES,
    TEXT,
    is_media_name,
    manifest_items,
    modality_of_name,
    parse_line,
)
from ...data.sources.media import is_tree
from ...errors import UserError
from ...processors.sound.read import is_sound

EXPECTED = 'give {"text": …}, {"image": …} or {"audio": …}'


class Item(NamedTuple):
    """A text, an image or a recording, with the task that it names."""

    modality: str
    value: Any
    task: str | None = None


def is_single(x: object) -> bool:
    """True for one item, False for several."""
    single = isinstance(x, str | os.PathLike | Mapping | np.ndarray | torch.Tensor) or hasattr(x, "convert")
    return single or (isinstance(x, tuple) and is_sound(x))


def as_item(x: Any) -> Item:
    """A text is a string. A string or path with the suffix of an image or a recording is that file.

    Pillow images and arrays (height, width[, channels]) are images; samples (samples,) and (samples, rate) recordings.
    A dict has the keys of a manifest line, without its target.
    """
    if isinstance(x, Mapping):
        try:
            line = parse_line({key: value for key, value in x.items() if value is not None}, required=False)
        except ValueError as error:
            raise UserError(f"an input has {error}") from error
        return Item(line.tag.modality, line.value, line.tag.task if x.get("task") else None)
    if isinstance(x, str | os.PathLike):
        modality = modality_of_name(os.fspath(x))
        if modality is None and not isinstance(x, str):
            raise UserError(f"{x} is neither an image nor a recording by its name; {EXPECTED}")
        return Item(modality or TEXT, x if modality is None else Path(x))
    if isinstance(x, np.ndarray | torch.Tensor):
        return Item(AUDIO if x.ndim == 1 else IMAGE, x)
    if hasattr(x, "convert"):
        return Item(IMAGE, x)
    if isinstance(x, tuple) and is_sound(x):
        return Item(AUDIO, x)
    raise UserError(f"a {type(x).__name__} is no text, image or recording; {EXPECTED}")


def open_items(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The items in a file, each with its name: lines of .txt, lines of a manifest, images and recordings of a folder or
    archive, or one image or recording."""
    if is_tree(name):
        tree = open_tree(Path(name).expanduser())
        names = [member for member in tree.names if is_media_name(member)]
        if not names:
            raise UserError(f"{name} has neither images nor recordings; expected files such as .png or .wav")
        return ((tree.location(member), {modality_of_name(member) or "": tree.content(member)}) for member in names)
    suffix = plain_suffix(name)
    if suffix in SUFFIXES:
        return manifest_items(name)
    if suffix == ".txt":
        lines = TextLines([name])
        return ((lines.location(number), {TEXT: text}) for number, text in enumerate(lines))
    if (modality := modality_of_name(name)) is None:
        raise UserError(
            f"{name} is neither an image nor a recording by its name; expected one, or texts in a .txt file, or a "
            ".jsonl manifest"
        )
    return iter([(name, {modality: Path(name).expanduser()})])
