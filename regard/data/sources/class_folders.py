"""Media with labels: a folder for each class, or tables of paths."""

from collections.abc import Sequence
from pathlib import PurePosixPath

from ...errors import UserError
from ..files.trees import FileTree
from ..source import Source
from ..tables.cells import label_value
from ..tables.columns import LABEL, Role
from .media import MediaTree, Medium, Pairing, T

SPLITS = {"train", "training", "val", "valid", "validation", "dev", "test", "testing"}


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
        _check_folders(tree, names, top, self.medium.noun)
        classes = (PurePosixPath(name).relative_to(top).parts[0] for name in names)
        labels = [read_label(label, self.label_names(data), str(tree.path)) for label in classes]
        return ClassFolders(tree, list(zip(names, labels, strict=True)), self.medium, data)


def _check_folders(tree: FileTree, names: Sequence[str], top: PurePosixPath, noun: str) -> None:
    """Refuse files beside the class folders, and folders of splits."""
    classes = [PurePosixPath(name).relative_to(top).parts for name in names]
    for name, parts in zip(names, classes, strict=True):
        if len(parts) < 2:
            raise UserError(
                f"{tree.location(name)} is in no folder of a class; put the {noun}s of each class into a folder of its "
                "own, or give a table with the columns path and label"
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
            facts.append(f"no {self.noun}s in {', '.join(empty)}, so no class of this name")
        if self.other:
            facts.append(f"{len(self.other):,} files are no {self.noun}s and were left out, such as {self.other[0]}")
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
