"""The inputs of one model: texts, images and recordings, distinguished by the rule of `as_item`."""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from ...data.files.lines import TextLines
from ...data.files.open import plain_suffix
from ...data.files.trees import open_tree
from ...data.sources.manifest import (
    AUDIO,
    IMAGE,
    MODALITIES,
    SUFFIXES,
    TEXT,
    is_media_name,
    manifest_items,
    modality_of_name,
    parse_line,
)
from ...data.sources.media import is_tree
from ...errors import UserError
from ...messages.media import Image, Item, Sound
from ...messages.texts import MultitaskRequest
from ...processors.image.read import RawImage
from ...processors.sound.read import RawSound, is_sound

EXPECTED = 'give {"text": …}, {"image": …} or {"audio": …}'
RawInput: TypeAlias = "RawImage | RawSound | Mapping[str, object] | Item"
WRAPPERS: Mapping[str, Callable[[Any], str | Image | Sound]] = {TEXT: str, IMAGE: Image, AUDIO: Sound}


def is_single(x: object) -> bool:
    """True for one item, False for several."""
    single = isinstance(x, str | os.PathLike | Mapping | np.ndarray | torch.Tensor | Item) or hasattr(x, "convert")
    return single or (isinstance(x, tuple) and is_sound(x))


def as_item(x: RawInput) -> Item:
    """A text is a string. A string or path with the suffix of an image or a recording is that file.

    Pillow images and arrays (height, width[, channels]) are images; samples (samples,) and (samples, rate) recordings.
    A dict has the keys of a manifest line, without its target.
    """
    if isinstance(x, Item):
        return x
    if isinstance(x, Mapping):
        try:
            line = parse_line({key: value for key, value in x.items() if value is not None}, required=False)
        except ValueError as error:
            raise UserError(f"an input has {error}") from error
        return new_item(line.tag.modality, line.value, line.tag.task if x.get("task") else None)
    if isinstance(x, str | os.PathLike):
        modality = modality_of_name(os.fspath(x))
        if modality is None and not isinstance(x, str):
            raise UserError(f"{x} is neither an image nor a recording by its name; {EXPECTED}")
        return new_item(modality or TEXT, x if modality is None else Path(x))
    if isinstance(x, np.ndarray | torch.Tensor):
        return new_item(AUDIO if x.ndim == 1 else IMAGE, x)
    if hasattr(x, "convert"):
        return new_item(IMAGE, x)
    if isinstance(x, tuple) and is_sound(x):
        return new_item(AUDIO, x)
    raise UserError(f"a {type(x).__name__} is no text, image or recording; {EXPECTED}")


def new_item(modality: str, value: object, task: str | None = None) -> Item:
    """An item from a raw value."""
    fields: dict[str, Any] = {modality: WRAPPERS[modality](value)}
    return Item(**fields, task=task)


def new_request(item: Item, fields: Mapping[str, Any]) -> MultitaskRequest:
    """The request for an item, whose task wins over that of the other fields."""
    task = {} if item.task is None else {"task": item.task}
    return MultitaskRequest(item.text, item.image, item.audio, **{**fields, **task})


def input_of(request: Item | MultitaskRequest) -> tuple[str, str | Image | Sound]:
    """The modality of a request or an item, and its value."""
    values = {name: getattr(request, name) for name in MODALITIES}
    return next((name, value) for name, value in values.items() if value is not None)


def open_items(name: str) -> Iterator[tuple[str, RawInput]]:
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
