"""Benchmarks beside other programs, each in one run: `python -m benchmarks WHAT`, or `make bench WHAT=…`.

A benchmark module has SIZES (the default first), PARTS and main.
"""

from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from regard.errors import UserError
from regard.files import check_picture_path

BENCHMARKS = (
    "big-file",
    "encode",
    "generate",
    "long",
    "look",
    "multimodal",
    "parallel",
    "scaling",
    "speech",
    "threads",
    "translate",
    "tune",
    "vision",
    "whisper",
)


def bench(
    what: str,
    device: str,
    size: str | None,
    rounds: int,
    only: str | None,
    out: str | Path | None = None,
    lines: int | None = None,
) -> Any:
    """Run a benchmark, or one part of it: `rounds` rounds in which all programs take turns.

    The report has a `table` for people and `values` for programs; that of scaling is also drawn to `out`.
    """
    if what not in BENCHMARKS:
        raise UserError(f"there is no benchmark {what!r}; expected {one_of(BENCHMARKS)}")
    if lines is not None and (what != "big-file" or lines < 1):
        raise UserError(f"--lines {lines} is for the benchmark big-file, 1 or more; leave it out for {what}")
    module = import_module(f".{what.replace('-', '_')}", __name__)
    if what == "big-file":
        return module.measure(lines or module.LINES)
    size = module.SIZES[0] if size is None else size
    if size not in module.SIZES:
        raise UserError(f"--size {size} is not a size of this benchmark; expected {one_of(module.SIZES)}")
    if only is not None and only not in module.PARTS:
        raise UserError(f"--only {only} is not a part of this benchmark; expected {one_of(module.PARTS)}")
    if rounds < 1:
        raise UserError(f"--rounds is {rounds}; expected 1 or more")
    if out is not None and what != "scaling":
        raise UserError(f"--out takes a picture and the benchmark {what} has none; leave it out, or use scaling")
    picture = None if out is None else check_picture_path(Path(out))
    report = module.main(device, size, rounds, module.PARTS if only is None else (only,))
    if picture is not None:
        report.draw(picture)
    return report


def one_of(names: Iterable[str]) -> str:
    return " or ".join(names) if len(names := list(names)) < 3 else ", ".join(names)
