"""A store of tiny runs on disk, shared by all tests, by the processes that run them and by later runs of the suite.

    run = tiny_run("classify", {"train.tsv": "good\tglad\nbad\tsad\n"}, data__train="{files}/train.tsv", train__steps=2)

A run is trained once for its settings, its files and the code of regard. It is shared, so nothing may write into it: a
test that has to takes `copy_run`. Tests that need just some run of a task should ask for the same settings.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

import regard
from regard.training import curves

ROOT = Path(__file__).parents[2]
FOLDER = Path(tempfile.gettempdir()) / f"regard-tiny-runs-{os.getuid()}"
KEPT, RECENT = 3, 2 * 3600  # versions of the code whose runs stay, beside those used within so many seconds
ERRORS = "REGARD_USER_ERRORS"  # see helpers/error_hook
USED: set[Path] = set()

Files = Mapping[str, str | bytes]


def tiny_run(
    task: str,
    files: Files | None = None,
    data: Mapping[str, Any] | None = None,
    patches: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Path:
    """The folder of a finished run of a task or recipe. It has no picture of its curves, which takes long to draw.

    Settings may have __ for dots. `files` are written into the folder of the run's folder, whose name replaces {files}
    in the settings. `data` are examples in memory, as regard.train takes them, of plain values; `patches` are names
    in regard's modules and the plain values that they have while the run is trained.
    """
    own = {key.replace("__", "."): value for key, value in settings.items()}
    place = code_folder(FOLDER, ROOT) / f"{task}-{digest(task, dict(files or {}), data, patches, own)}"
    stored(place, lambda: train(place, task, files or {}, data, patches or {}, own))
    if folder := os.environ.get(ERRORS):  # lines that made an error while it was trained count as executed
        for path in (place / "errors").iterdir():
            shutil.copyfile(path, Path(folder) / f"{place.name}-{path.name}")
    return place / "run"


def tiny_folder(make: Callable[..., Any], path: Path, **arguments: Any) -> Path:
    """Copy to `path` the folder that a function of the helpers makes there, once for its arguments and its file."""
    file = Path(make.__code__.co_filename)
    name = f"{file.stem}-{digest(file.name, file.read_bytes(), make.__name__, arguments)}"
    place = code_folder(FOLDER, ROOT) / name

    def fill() -> None:
        place.mkdir()
        with same_random_numbers():
            make(place / "run", **arguments)
        complete(place)

    stored(place, fill)
    return copy_run(place / "run", path)


def stored(place: Path, fill: Callable[[], None]) -> None:
    """Let one process fill a folder of the store, and check that no test has changed it."""
    with locked(place):
        if not (place / "listing.json").exists():
            shutil.rmtree(place, ignore_errors=True)  # of a process that was killed
            fill()
        check_unchanged(place)
    USED.add(place)


def copy_run(run: Path, out: Path) -> Path:
    """A copy of a run, or of the folder that also has its files, which a test may change."""
    return Path(shutil.copytree(run, out))


def train(
    place: Path, task: str, files: Files, data: Mapping[str, Any] | None, patches: Mapping[str, Any], settings: Any
) -> None:
    """Train a run into a folder, which is complete when it has listing.json."""
    (place / "errors").mkdir(parents=True)
    for name, content in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content.encode() if isinstance(content, str) else content)
    settings = {
        key: value.replace("{files}", str(place)) if isinstance(value, str) else value
        for key, value in settings.items()
    }
    with contextlib.ExitStack() as stack:
        stack.enter_context(same_random_numbers())
        stack.enter_context(mock.patch.dict(os.environ, {ERRORS: str(place / "errors")}))
        if (hook := sys.modules.get("sitecustomize")) is not None and hasattr(hook, "RECORDED"):
            stack.enter_context(mock.patch.object(hook, "RECORDED", set()))
        stack.enter_context(mock.patch.object(curves, "draw", lambda folder: None))
        for name, value in patches.items():
            stack.enter_context(mock.patch(name, value))
        named = {"data": dict(data)} if data is not None else {}
        regard.train(task, settings, out=place / "run", progress=False, **named)
    complete(place)


def complete(place: Path) -> None:
    path = place / "listing.tmp"
    path.write_text(json.dumps(listing(place)))
    path.rename(place / "listing.json")


@contextlib.contextmanager
def same_random_numbers() -> Iterator[None]:
    """Begin from a fixed seed and restore the generators, as if nothing had been trained."""
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        yield
    random.setstate(states[0])
    np.random.set_state(states[1])


def listing(place: Path) -> dict[str, list[int]]:
    """The size and the time of every file."""
    found = {}
    for path in sorted(place.rglob("*")):
        if path.is_file() and not path.name.startswith("listing."):
            stat = path.stat()
            found[str(path.relative_to(place))] = [stat.st_size, stat.st_mtime_ns]
    return found


def check_unchanged(place: Path) -> None:
    before, now = json.loads((place / "listing.json").read_text()), listing(place)
    if before != now:
        (place / "listing.json").unlink()  # the next one who asks for it trains it again
        changed = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
        raise AssertionError(f"a test wrote {', '.join(changed)} into {place}; let it take copy_run")


def check_used() -> None:
    """Fail if a test of this process changed a run of the store."""
    for place in sorted(USED):
        with locked(place):
            if (place / "listing.json").exists():
                check_unchanged(place)


@contextlib.contextmanager
def locked(place: Path) -> Iterator[None]:
    """Exclude other processes and threads from a folder."""
    with open(place.with_name(f"{place.name}.lock"), "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def digest(*values: Any) -> str:
    """A short name for plain values and arrays."""

    def plain(value: Any) -> Any:
        if isinstance(value, bytes):
            return {"bytes": hashlib.sha256(value).hexdigest()}
        if isinstance(value, np.ndarray):
            return {"array": [str(value.dtype), value.shape, hashlib.sha256(value.tobytes()).hexdigest()]}
        raise TypeError(f"a run with {value!r} cannot be stored; give plain values")

    return hashlib.sha256(json.dumps(values, sort_keys=True, default=plain).encode()).hexdigest()[:20]


@cache
def code_folder(folder: Path, root: Path) -> Path:
    """The folder of all runs of this version of the code; those of older versions are removed."""
    sources = [*sorted((root / "regard").rglob("*.py")), *sorted((root / "regard").rglob("*.toml")), Path(__file__)]
    texts = {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in sources}
    found = folder / digest(texts, torch.__version__, sys.version)
    found.mkdir(parents=True, exist_ok=True)
    os.utime(found)
    with locked(folder):
        versions = sorted(filter(Path.is_dir, folder.iterdir()), key=lambda path: path.stat().st_mtime)
        for path in versions[:-KEPT]:
            if time.time() - path.stat().st_mtime > RECENT:
                shutil.rmtree(path, ignore_errors=True)
    return found
