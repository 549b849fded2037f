"""Atomic writing of files and folders (temporary name, sync, rename), and JSON files."""

import errno
import json
import math
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, time
from pathlib import Path
from typing import Any, TypeAlias, overload

from .errors import UserError

PICTURES = (".png", ".pdf", ".svg")
Json: TypeAlias = str | int | float | bool | None | Sequence["Json"] | Mapping[str, "Json"]
Toml: TypeAlias = str | int | float | bool | date | time | list["Toml"] | dict[str, "Toml"]
JsonObject: TypeAlias = dict[str, Any]  # as read from a file: its keys and their types depend on who wrote it
JsonMapping: TypeAlias = Mapping[str, Any]  # a JSON object that is only read


def sync(path: Path) -> None:
    """Flush a file or folder to disk, so that it survives a power failure."""
    if path.is_dir() and os.name == "nt":
        return  # Windows cannot open folders
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def cache_folder(cache: str = "") -> Path:
    """The folder of data.cache, or the default one of the user."""
    if cache:
        return Path(cache).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~", ".cache").expanduser(), "regard")


@contextmanager
def atomic_write(path: Path, replace: bool = True) -> Iterator[Path]:
    """Yield a temporary path beside `path` for a file or folder; it is renamed to `path` if no exception is raised.

    Without `replace`, a folder that has appeared at `path` meanwhile stays, and an exception is raised.
    """
    path = Path(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    remove(draft)
    try:
        yield draft
        if draft.is_dir():
            for inner in draft.rglob("*"):
                sync(inner)
            if replace:
                remove(path)  # os.replace cannot replace a folder that is not empty
        sync(draft)
        os.replace(draft, path)
        sync(path.parent)
    except OSError as error:
        raise explain_os_error(error, path, draft) from error
    finally:
        remove(draft)


def check_picture_path(path: Path, suffixes: Sequence[str] = PICTURES) -> Path:
    """The path of a picture to write, or a UserError; call it before computing the picture."""
    if path.is_dir() or not path.parent.is_dir():
        problem = "is a folder" if path.is_dir() else "cannot be written: its folder does not exist"
        raise UserError(f"the picture {path} {problem}; give a file name in an existing folder (--out)")
    if path.suffix.lower() not in suffixes:
        raise UserError(f"the picture {path} has the suffix {path.suffix!r}; expected one of {', '.join(suffixes)}")
    return path


def remove(path: Path) -> None:
    """Remove a file or folder if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def explain_os_error(error: OSError, path: Path, draft: Path | None = None) -> Exception:
    """An OSError as a UserError that names `path`, not the temporary `draft`; other errors are returned unchanged."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return UserError(f"no space left while writing {path}; free some and run again, earlier saved files are intact")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) or (draft and error.filename == str(draft)):
        return UserError(f"{path} cannot be written ({error.strerror}); choose another path or change its permissions")
    return error


def path_name(value: object, name: str) -> str:
    """A path argument as a str; `name` is the name of the argument, for messages."""
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else value
    if not isinstance(path, str):
        type_name = "None" if value is None else f"a {type(value).__name__}"
        raise UserError(f"{name} is {type_name}; expected a path: a str or an os.PathLike")
    return path


def format_output(output: object) -> str:
    """An output on one line; several (decode.nbest, decode.top) separated by tabs, a label with its probability."""
    if isinstance(output, list):
        return "\t".join(format_output(item).replace("\t", " ") for item in output)
    if isinstance(output, float) or output is None:  # the number of a regressor; an empty text has none
        return "" if output is None else f"{output:.7g}"
    if isinstance(output, tuple):
        return format_output(f"{output[0]} {output[1]:.4f}")
    return str(output).replace("\r", " ").replace("\n", " ")


def json_line(value: Json) -> str:
    """A value as one line of JSON. JSON has no NaN and no infinity: they become null, with a warning."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        warnings.warn("a number is NaN or infinite, which JSON does not have; it is null in the output", stacklevel=2)
        return json.dumps(_without_nonfinite(value), ensure_ascii=False)


def _without_nonfinite(value: Json) -> Json:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _without_nonfinite(item) for key, item in value.items()}
    return [_without_nonfinite(item) for item in value] if isinstance(value, list | tuple) else value


def write_json(path: Path, value: Json) -> None:
    """Write a value as JSON, atomically."""
    with atomic_write(path) as draft:
        draft.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


@overload
def read_json(path: Path) -> JsonObject: ...
@overload
def read_json(path: Path, expected_type: type[list[Json]]) -> list[Json]: ...
def read_json(path: Path, expected_type: type[JsonObject] | type[list[Json]] = dict) -> JsonObject | list[Json]:
    """The content of a JSON file, which must have this type: an object (dict), or a list."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path} is not valid JSON ({error}); it may be truncated, restore or create it again"
        ) from error
    if not isinstance(value, expected_type):
        expected = "a list" if expected_type is list else "an object"
        raise UserError(f"{path} does not hold {expected} but {json.dumps(value)[:40]}; restore or create it again")
    return value


def read_optional_json(path: Path) -> JsonObject:
    """The JSON object in a file; an empty dict if there is no file."""
    return read_json(path) if path.is_file() else {}
