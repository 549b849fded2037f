"""Files by relative name, in a folder or in an archive (.zip, .tar, compressed or not)."""

import os
import tarfile
import threading
import zipfile
from abc import ABC, abstractmethod
from pathlib import Path

from ...errors import UserError
from ...processors.base import FileBytes

TAR = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz")


class FileTree(ABC):
    """Files by their names, sorted. Hidden files are left out."""

    path: Path
    names: list[str]

    folders: list[str]  # of a folder on disk, also empty ones

    @abstractmethod
    def read(self, name: str) -> bytes: ...

    def content(self, name: str) -> Path | FileBytes:
        """An object to open a file with: its path, or its bytes from an archive."""
        return FileBytes(self.read(name), self.location(name))

    def location(self, name: str) -> str:
        return f"{self.path}/{name}"

    @abstractmethod
    def digest(self, name: str) -> str:
        """A hash that changes with the content of a file, without reading all of it."""


def open_tree(path: Path) -> FileTree:
    """The files in a folder or an archive."""
    if path.is_dir():
        return FolderTree(path)
    if not path.is_file():
        raise UserError(f"{path} does not exist; expected a folder or an archive (the current folder is {os.getcwd()})")
    try:
        if zipfile.is_zipfile(path):
            return ZipTree(path)
        if tarfile.is_tarfile(path):
            return TarTree(path)
    except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} cannot be unpacked ({error}); download or create it again") from error
    raise UserError(f"{path} is neither a folder nor a .zip or .tar archive; give one of these, or a table of paths")


def is_archive(name: str) -> bool:
    """True if the suffix is that of an archive."""
    return name.lower().endswith((".zip", *TAR))


def _is_visible(name: str) -> bool:
    return not any(part.startswith((".", "__MACOSX")) for part in name.split("/"))


class FolderTree(FileTree):
    """The files below a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folders, self.names = [], []
        self._walk("", frozenset())
        self.names.sort()

    def _walk(self, inside: str, above: frozenset[tuple[int, int]]) -> None:
        """Collect the files. Links are followed, except to a parent folder."""
        try:
            status = os.stat(self.path / inside)
            with os.scandir(self.path / inside) as scan:
                entries = [entry for entry in scan if _is_visible(entry.name)]
        except OSError as error:
            raise UserError(f"{self.path / inside} cannot be read: {error.strerror}; check its permissions") from error
        if (folder_id := (status.st_dev, status.st_ino)) in above:
            return
        for entry in entries:
            name = f"{inside}/{entry.name}" if inside else entry.name
            if entry.is_dir():
                self.folders.append(name)
                self._walk(name, above | {folder_id})
            elif entry.is_file() or entry.is_symlink():  # a link to nothing is found when it is opened
                self.names.append(name)

    def content(self, name: str) -> Path | FileBytes:
        return self.path / name

    def read(self, name: str) -> bytes:
        try:
            return (self.path / name).read_bytes()
        except OSError as error:
            raise UserError(f"{self.path / name} cannot be read: {error.strerror}; check it and start again") from error

    def digest(self, name: str) -> str:
        return str((self.path / name).stat().st_size)


class ZipTree(FileTree):
    """A zip archive. Every thread and forked process opens its own handle."""

    def __init__(self, path: Path) -> None:
        self.path, self._open = path, threading.local()
        with zipfile.ZipFile(path) as archive:
            self._sizes = {info.filename: info.CRC for info in archive.infolist() if not info.is_dir()}
        self.names, self.folders = sorted(filter(_is_visible, self._sizes)), []

    def read(self, name: str) -> bytes:
        if getattr(self._open, "process", None) != os.getpid():
            self._open.archive, self._open.process = zipfile.ZipFile(self.path), os.getpid()
        try:
            content: bytes = self._open.archive.read(name)
        except (zipfile.BadZipFile, OSError, EOFError) as error:
            raise UserError(f"{self.location(name)} cannot be read ({error}); create the archive again") from error
        return content

    def digest(self, name: str) -> str:
        return str(self._sizes[name])


class TarTree(FileTree):
    """A tar archive. A plain one keeps only the offsets of its files in memory; a compressed one is unpacked there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._places: dict[str, tuple[int, int]] = {}
        self._unpacked: dict[str, bytes] = {}
        with tarfile.open(path) as archive:
            plain = archive.fileobj is not None and type(archive.fileobj).__module__ in ("io", "_io")
            for member in archive:
                if not member.isfile():
                    continue
                name = member.name.removeprefix("./")
                self._places[name] = member.offset_data, member.size
                if not plain and (file := archive.extractfile(member)):
                    self._unpacked[name] = file.read()
        self.names, self.folders = sorted(filter(_is_visible, self._places)), []

    def read(self, name: str) -> bytes:
        if name in self._unpacked:
            return self._unpacked[name]
        place, size = self._places[name]
        with open(self.path, "rb") as file:
            file.seek(place)
            return file.read(size)

    def digest(self, name: str) -> str:
        return str(self._places[name][1])
