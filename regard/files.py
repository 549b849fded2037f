"""Writing so that nothing is lost: a temporary name, a sync, a rename."""

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import UserError


def sync(path: Path) -> None:
    """Make what is at `path` (a file or a folder) survive a power cut."""
    if path.is_dir() and os.name == "nt":
        return  # Windows cannot open a folder
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A temporary file or folder beside `path` to write; it takes the name `path` only when all went well."""
    path = Path(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    remove(draft)
    try:
        yield draft
        if draft.is_dir():
            for inner in draft.rglob("*"):
                sync(inner)
            remove(path)  # os.replace cannot put a folder over a full one
        sync(draft)
        os.replace(draft, path)
        sync(path.parent)
    except OSError as error:
        raise explain_os_error(error, path, draft) from error
    finally:
        remove(draft)


def check_picture_path(path: Path) -> Path:
    """The path of a picture, if it can be one: to be asked before the work that it will show."""
    if path.is_dir() or not path.parent.is_dir():
        what = "is a folder" if path.is_dir() else "cannot be made, for its folder is not there"
        raise UserError(f"the picture {path} {what}; give the name of a file in a folder that is (--out)")
    return path


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def explain_os_error(error: OSError, path: Path, draft: Path | None = None) -> Exception:
    """What the operating system said, as a sentence that names the file which people know."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return UserError(f"no space left while writing {path}; free some and run again, what was saved before is whole")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) or (draft and error.filename == str(draft)):
        return UserError(f"{path} cannot be written ({error.strerror}); choose another place or change its permissions")
    return error


def write_json(path: Path, value: Any) -> None:
    with atomic_write(path) as draft:
        draft.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path, kind: type = dict) -> Any:
    """What a file of JSON holds: an object, or a list where that is the `kind`."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path} is not whole JSON ({error}); it may have been cut off, restore or make it anew"
        ) from error
    if not isinstance(found, kind):
        wanted = "a list" if kind is list else "an object"
        raise UserError(f"{path} does not hold {wanted} but {json.dumps(found)[:40]}; restore or make it anew")
    return found


def read_optional_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; nothing where there is no file."""
    found: dict[str, Any] = read_json(path) if path.is_file() else {}
    return found
