"""Vectors of texts for the command line: as JSON lists, or as a ranking of other lines."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..errors import UserError

Answer = Callable[[list[str]], Iterator[str | list[str]]]  # some lines -> what is printed for them


def embedding_answers(system: Any, others: list[str] | None) -> Answer:
    """What to say to each line: its vector; or, if there are `others`, these with their cosines, the likest first."""
    if not hasattr(system, "embed"):
        raise UserError("this model gives no vectors of texts; --embed and --similar are for BERT runs and folders")
    if others is None:
        return lambda lines: (json.dumps([round(x, 7) for x in row]) for row in system.embed(lines).tolist())
    vectors = system.embed(others, normalize=True) if others else []

    def ranked(lines: list[str]) -> Iterator[str | list[str]]:
        for line, found in zip(lines, system.similar(lines, vectors), strict=True):
            yield from ([line, f"{cosine:.4f}", others[place]] for place, cosine in found)

    return ranked


def save_confusion(figures: dict[str, Any], out: Path) -> None:
    if "confusion" not in figures:
        raise UserError("--out draws which label is taken for which, and this run gives no labels; leave it out")
    figures["confusion"].save(out)
