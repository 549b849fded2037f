"""What writes runs in a format of another program."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Exporter:
    """The functions that write runs of a family in a format."""

    name: str  # what is written, for messages
    unsupported: Callable[[Any], list[str]]  # the settings of a Config that the format cannot represent
    write: Callable[[Any, Path, str], None]  # (predictor, draft, precision): write all files except README.md
    verify: Callable[[Any, Path, str], str]  # (predictor, draft, precision): compare with the run; the report
    usage: Callable[[Any], str]  # of a predictor: the usage example of README.md
    tag: Callable[[Any], str]  # of a Config: the Hub's pipeline tag
