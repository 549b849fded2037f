"""Figures beside peers, each in one run: `regard bench WHAT`. A bench has SIZES (the usual first), PARTS and main."""

from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from regard.errors import UserError
from regard.files import check_picture_path

BENCHES = ("encode", "generate", "long", "scaling", "translate", "tune")


def bench(
    what: str, device: str, size: str | None, rounds: int, only: str | None, out: str | Path | None = None
) -> Any:
    """Time a bench, or one part of it, on a device: `rounds` rounds in which all programs take turns. Its report has a
    `table` for people and `values` for programs; that of scaling is drawn to `out`."""
    if what not in BENCHES:
        raise UserError(f"there is no bench {what!r}; expected {one_of(BENCHES)}")
    module = import_module(f".{what}", __name__)
    size = module.SIZES[0] if size is None else size
    if size not in module.SIZES:
        raise UserError(f"--size {size} is no size of this bench; expected {one_of(module.SIZES)}")
    if only is not None and only not in module.PARTS:
        raise UserError(f"--only {only} is no part of this bench; expected {one_of(module.PARTS)}")
    if rounds < 1:
        raise UserError(f"--rounds {rounds} times nothing; expected 1 or more")
    if out is not None and what != "scaling":
        raise UserError(f"--out takes a picture and the bench {what} has none; leave it out, or use scaling")
    picture = None if out is None else check_picture_path(Path(out))
    report = module.main(device, size, rounds, module.PARTS if only is None else (only,))
    if picture is not None:
        report.draw(picture)
    return report


def one_of(names: Iterable[str]) -> str:
    return " or ".join(names) if len(names := list(names)) < 3 else ", ".join(names)
