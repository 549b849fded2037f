"""What writes runs in a format of another program."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


class Exporter(Protocol):
    """What writes runs in a format: a `HuggingFaceFormat`, or the functions for another library."""

    @property
    def name(self) -> str:
        """What is written, for messages."""

    @property
    def unsupported(self) -> Callable[[Any], list[str]]:
        """The settings of a Config that the format cannot represent."""

    @property
    def write(self) -> Callable[[Any, Path, str], None]:
        """(predictor, draft, precision): write all files except README.md."""

    @property
    def verify(self) -> Callable[[Any, Path, str], str]:
        """(predictor, draft, precision): compare what was written with the run; the report."""

    @property
    def usage(self) -> Callable[[Any], str]:
        """The usage example of README.md, by the predictor."""

    @property
    def tag(self) -> Callable[[Any], str]:
        """The Hub's pipeline tag, by the Config."""


@dataclass(frozen=True)
class ExportFunctions:
    """An exporter of functions; `Exporter` says what they do."""

    name: str
    unsupported: Callable[[Any], list[str]]
    write: Callable[[Any, Path, str], None]
    verify: Callable[[Any, Path, str], str]
    usage: Callable[[Any], str]
    tag: Callable[[Any], str]
