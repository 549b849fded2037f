"""Media of any kind with labels or texts: in tables, in a folder for each class, or in .txt files beside the media."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import ClassVar

import numpy as np

from ...errors import UserError
from ..files.line_index import BLANK
from ..files.open import BOM, text_error
from ..files.trees import FileTree
from ..source import Source
from ..tables.cells import MediaValue, label_value
from ..tables.columns import LABEL, Role
from ..tables.records import Table
from .media import MediaTree, Medium, Pairing, T

SPLITS = {"train", "training", "val", "valid", "validation", "dev", "test", "testing"}
TOGETHER = ".trans.txt"  # LibriSpeech's: one file for all recordings of a folder


# --- labels ----------------------------------------------------------------------------------------------------------


class LabeledMedia(Pairing[T]):
    """Media with a label each."""

    several = "media and labels are in one place, but {} were given, separated by commas; join places by a TOML list"
    expected = "a folder with one folder per class, or a table with the columns path and label"
    where = ", in a folder for each class"

    def __init__(self, medium: Medium[T], target: Role = LABEL) -> None:
        super().__init__(medium)
        self.target = target

    def describe(self, pattern: str) -> str:
        return "is neither a folder, an archive nor a table"

    def label_names(self, data: T) -> Sequence[str]:
        """The names of labels that are given by their index."""
        return ()

    def open_tree(self, tree: FileTree, data: T) -> Source:
        names = [name for name in tree.names if self.medium.is_name(name)]
        if not names:
            raise self.medium.missing_in(str(tree.path), self.where)
        top = _common_folder(names)
        _check_folders(tree, names, top, self.medium.plural)
        classes = (PurePosixPath(name).relative_to(top).parts[0] for name in names)
        labels = [read_label(label, self.label_names(data), str(tree.path)) for label in classes]
        return ClassFolders(tree, list(zip(names, labels, strict=True)), self.medium, data)


def _check_folders(tree: FileTree, names: Sequence[str], top: PurePosixPath, plural: str) -> None:
    """Refuse files beside the class folders, and folders of splits."""
    classes = [PurePosixPath(name).relative_to(top).parts for name in names]
    for name, parts in zip(names, classes, strict=True):
        if len(parts) < 2:
            raise UserError(
                f"{tree.location(name)} is in no folder of a class; put the {plural} of each class into a folder of "
                "its own, or give a table with the columns path and label"
            )
    labels = sorted({parts[0] for parts in classes})
    if {label.lower() for label in labels} <= SPLITS and any(len(parts) > 2 for parts in classes):
        first = min(labels, key=lambda label: not label.lower().startswith("train"))
        raise UserError(
            f"{tree.path} has the folders {', '.join(labels)}, which look like splits and not like classes; give one "
            f"for each split, such as data.train={tree.path}/{top / first}"
        )


class ClassFolders(MediaTree):
    """A folder or archive with one folder per class."""

    def __init__(self, tree: FileTree, files: Sequence[tuple[str, str]], medium: Medium[T], data: T) -> None:
        super().__init__(tree, files, medium, data)
        media = {name for name, _ in files}
        self.top, self.other = _common_folder([*media]), [name for name in tree.names if name not in media]

    def report(self) -> list[str]:
        labels, facts = {PurePosixPath(name).relative_to(self.top).parts[0] for name, _ in self.files}, []
        folders = [PurePosixPath(name) for name in self.tree.folders]
        empty = sorted(folder.name for folder in folders if folder.parent == self.top and folder.name not in labels)
        if empty:
            facts.append(f"no {self.medium.plural} in {', '.join(empty)}, so no class of this name")
        if self.other:
            facts.append(
                f"{len(self.other):,} files are no {self.medium.plural} and were left out, such as {self.other[0]}"
            )
        return facts + super().report()


def read_label(name: str, names: Sequence[str], place: str) -> str:
    """The label of a folder or a number; with data.names, a number is the index of one."""
    try:
        return label_value(name, names)
    except ValueError as error:
        raise UserError(f"{place} has the label {error}; give a name for each, or leave data.names out") from error


def _common_folder(names: Sequence[str]) -> PurePosixPath:
    """The folder that contains the class folders: an archive often has one folder around them."""
    parents = [PurePosixPath(name).parent.parts for name in names]
    top: list[str] = []
    while parents and len({parts[: len(top) + 1] for parts in parents}) == 1 and len(parents[0]) > len(top) + 1:
        top.append(parents[0][len(top)])
    return PurePosixPath(*top)


# --- texts -----------------------------------------------------------------------------------------------------------


class TextPairing(Pairing[T]):
    """Media with a text each, which must not be empty."""

    noun: ClassVar[str]  # of a text
    write: ClassVar[str]  # what to write where it is empty
    other_place: ClassVar[str]  # where texts may be if none is beside the media of {}

    def describe(self, pattern: str) -> str:
        if not self.medium.is_name(pattern):
            return super().describe(pattern)
        return f"is {self.medium.article} {self.medium.noun} without its {self.noun}"

    def empty(self, place: str) -> UserError:
        return UserError(f"{place}: the {self.noun} is empty; {self.write}, {self.medium.skip_hint}")

    def table(self, pattern: str, data: T) -> Table:
        table = super().table(pattern, data)
        silent = [row for row, medium, text in blank_records(table) if medium and not text]
        if silent and data.invalid != "skip":
            raise self.empty(table.location(silent[0]))
        return table

    def texts_beside(self, tree: FileTree, invalid: str) -> tuple[list[tuple[str, str]], Counter[str]]:
        """The media of a folder or archive with their texts, and counts of what is left out."""
        media = {name: os.path.splitext(name)[0] for name in tree.names if self.medium.is_name(name)}
        if not media:
            raise self.medium.missing_in(str(tree.path))
        stems, texts, counts = {*media.values()}, dict[str, str](), Counter[str]()
        for stem, place, content in stored_texts(tree):
            if stem not in stems:
                counts["no recording"] += 1
                continue
            problem = text_error(content)
            if problem and invalid != "skip":
                hint = f"convert the file, for instance with iconv, {self.medium.skip_hint}"
                raise UserError(f"{place}: {problem}; {hint}")
            texts[stem] = "" if problem else self.convert(content.decode("utf-8-sig"))
            if not texts[stem]:
                if invalid != "skip":
                    raise self.empty(place)
                counts["invalid" if problem else "empty"] += 1
        if not texts:
            raise UserError(
                f"{tree.path} has {len(media):,} {self.medium.plural} and no {self.noun}s; put a .txt file beside "
                f"each, such as {min(stems)}.txt, or {self.other_place.format(tree.path)}"
            )
        counts["no transcript"] = sum(stem not in texts for stem in media.values())
        return [(name, texts[stem]) for name, stem in media.items() if texts.get(stem)], counts

    def convert(self, content: str) -> str:
        """The text in a file, on one line."""
        return " ".join(content.split())


def blank_records(table: Table) -> Iterator[tuple[int, bool, bool]]:
    """The records in which something is empty: their numbers, and whether they have a medium and a text."""
    for row in np.flatnonzero(table.statuses() == BLANK).tolist():
        medium, text = table.item(row)
        yield row, isinstance(medium, MediaValue) or bool(str(medium).strip()), bool(str(text).strip())


def stored_texts(tree: FileTree) -> Iterator[tuple[str, str, bytes]]:
    """For each text of a folder or archive: the name of its file without suffix, its place, and its bytes."""
    together = [name for name in tree.names if name.lower().endswith(TOGETHER)]
    for name in together:
        folder = name.rpartition("/")[0]
        for number, line in enumerate(tree.read(name).removeprefix(BOM).splitlines(), 1):
            if line.strip():
                key, *text = line.split(maxsplit=1)
                stem = os.path.join(folder, key.decode("utf-8", "replace"))
                yield stem, f"{tree.location(name)}:{number}", b"".join(text)
    for name in () if together else tree.names:
        if name.lower().endswith(".txt"):
            yield os.path.splitext(name)[0], tree.location(name), tree.read(name)
