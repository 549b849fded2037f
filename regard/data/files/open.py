"""Opens data files by name or glob, compressed or not; refuses files that are not text, by their suffix."""

import bz2
import glob
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

from ...errors import UserError
from .in_memory import IN_MEMORY

BOM = b"\xef\xbb\xbf"
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
BLOCK_BYTES = 1 << 20  # compressed bytes read at once
ARCHIVE_ERRORS = (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError)  # raised for a damaged or truncated archive
IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".heic", ".svg", ".avif")
SOUNDS = (
    *(".wav", ".wave", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".aifc", ".au", ".caf", ".w64"),
    *(".rf64", ".sph", ".m4a", ".m4b", ".mp4", ".aac", ".webm", ".wma", ".amr", ".3gp", ".mkv", ".mov", ".ape"),
    *(".wv", ".spx"),
)

REFUSED = dict.fromkeys((".xlsx", ".xls", ".ods", ".numbers"), "save it as .csv first")
REFUSED |= dict.fromkeys((".docx", ".doc", ".odt", ".pdf", ".rtf", ".epub"), "save it as plain text first")
REFUSED |= dict.fromkeys((".zip", ".tar", ".tgz", ".7z", ".rar"), "unpack it and name the files in it")
REFUSED |= dict.fromkeys((".pkl", ".pickle", ".pt", ".pth", ".npy", ".npz", ".h5"), "write it as .jsonl or .parquet")
REFUSED |= dict.fromkeys(IMAGES, "this task reads text; use a run of an image task, such as classify-image")
REFUSED |= dict.fromkeys(SOUNDS, "this task reads text; use a run of the task transcribe")
REFUSED |= dict.fromkeys((".db", ".sqlite", ".sqlite3", ".orc", ".avro"), "write it as .csv, .jsonl or .parquet")


def matching_files(pattern: str) -> list[Path]:
    """The files that match a name or glob, sorted."""
    path = Path(pattern).expanduser()
    refuse_suffix(path)
    if path.is_dir():
        raise UserError(f"{pattern} is a folder, expected files; name them, for example {pattern.rstrip('/')}/*.txt")
    if path.exists():
        return [path]  # also if the name itself contains * or [
    files = sorted(p for p in map(Path, glob.glob(str(path), recursive=True)) if not p.is_dir())
    if not files:
        raise missing_file(pattern)
    return files


def refuse_suffix(path: Path) -> None:
    """Raise UserError for a file that is not text, by its suffix."""
    suffix = path.suffix.lower() if path.suffix.lower() in REFUSED else plain_suffix(path.name)
    if remedy := REFUSED.get(suffix):
        why = "which is no text" if suffix in IMAGES + SOUNDS else "which regard does not read"
        raise UserError(f"{path} is a {suffix} file, {why}; {remedy}")


def missing_file(pattern: str) -> UserError:
    """The error for a file that does not exist."""
    if pattern.endswith(IN_MEMORY):
        return UserError(f"the data are a {pattern} of another program; give them again, or files (--data, data.test)")
    problem = "no file matches" if glob.has_magic(pattern) else "there is no file"
    return UserError(f"{problem} {pattern}; check the name (the current folder is {os.getcwd()})")


def plain_suffix(name: str) -> str:
    """The suffix of a file name in lower case; that of a compression is ignored."""
    path = Path(name.lower())
    return Path(path.stem).suffix if path.suffix in DECOMPRESSORS else path.suffix


# --- decompression ---------------------------------------------------------------------------------------------------


class _Unpacked(io.RawIOBase):
    """The plain bytes of an archive; every stream has its own decompressor. Damaged data raise EOFError."""

    def __init__(self, path: Path, start: Callable[[], Any], errors: type[Exception]) -> None:
        self.file, self.start, self.errors = open(path, "rb"), start, errors  # noqa: SIM115 (closed with this object)
        self.stream, self.waiting = start(), memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.waiting:
            data = self.stream.unused_data or self.file.read(BLOCK_BYTES) if self.stream.eof else b""
            if self.stream.eof and not data:
                return 0
            if self.stream.eof:
                self.stream = self.start()
            data = data or self.file.read(BLOCK_BYTES)
            if not data:
                raise EOFError("it ends too early")
            try:
                self.waiting = memoryview(self.stream.decompress(data))
            except self.errors as error:
                raise EOFError(str(error)) from error
        count = min(len(buffer), len(self.waiting))
        buffer[:count], self.waiting = self.waiting[:count], self.waiting[count:]
        return count

    def close(self) -> None:
        self.file.close()
        super().close()


def _open_bz2(path: Path) -> object:
    return io.BufferedReader(_Unpacked(path, bz2.BZ2Decompressor, OSError))


def _open_zstd(path: Path) -> object:
    try:
        import zstandard
    except ImportError as error:
        raise UserError(f"{path} needs zstandard, which is not installed; pip install 'regard[tables]'") from error
    return io.BufferedReader(_Unpacked(path, zstandard.ZstdDecompressor().decompressobj, zstandard.ZstdError))


DECOMPRESSORS: dict[str, Callable[[Path], object]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": _open_bz2}
DECOMPRESSORS |= {".zst": _open_zstd}


# --- opening files ---------------------------------------------------------------------------------------------------


def is_compressed(path: Path) -> bool:
    """True if the suffix is that of a compressed file."""
    return path.suffix.lower() in DECOMPRESSORS


def open_text(path: Path) -> IO[bytes]:
    """Open a file unbuffered, as it is on disk."""
    try:
        return open(path, "rb", buffering=0)
    except OSError as error:
        raise unreadable(path, error) from error


def open_decompressed(path: Path) -> IO[bytes]:
    """Open a file for reading its plain bytes, decompressed. Reading may raise ARCHIVE_ERRORS."""
    refuse_suffix(path)
    try:
        return cast(IO[bytes], DECOMPRESSORS.get(path.suffix.lower(), _open_plain)(path))
    except OSError as error:
        raise unreadable(path, error) from error


def _open_plain(path: Path) -> IO[bytes]:
    return open(path, "rb")


def unreadable(path: Path, error: OSError) -> UserError:
    """The error for a file that cannot be read."""
    return UserError(f"{path} cannot be read: {error.strerror}; check its name and permissions")


def archive_error(path: Path, error: Exception) -> UserError:
    """The error for a damaged archive."""
    return UserError(f"{path} is not a complete {path.suffix} archive ({error}); download or compress it again")


def text_error(data: bytes, before: int = 0) -> str:
    """Why bytes of a line are not valid text, or "". `before` is the number of bytes of the line before them."""
    if data.startswith(UTF_16):
        return "this is UTF-16, expected UTF-8"
    if b"\0" in data:
        return "a NUL byte, so this looks like a binary file, not text"
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"byte {before + error.start + 1} of the line is 0x{data[error.start]:02x}, which is not valid UTF-8"
    return ""
