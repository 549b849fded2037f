"""Text to text, as T5 does it: every task is a text in and a text out, and a prefix says which task it is."""

from pathlib import Path
from typing import Any

import torch

from ..config.run import Run
from ..config.schema import Sides
from ..data.examples import Examples
from ..data.mixture import Mixture, made, mixture
from ..metrics.text import text_figures
from ..processors.tokenizers import Text
from . import translate
from .base import part_of
from .translate import VERBS, Lesson, Translator, sized

__all__ = ["VERBS", "Writer", "prepare", "restore", "sized"]


class Writer(Translator):
    """A translator whose texts begin with the prefix of their task."""

    @staticmethod
    def part(run: Run, name: str, sides: Sides | None = None) -> Examples:
        read = lambda some: mixture(some, run.data, references=name != "train")  # noqa: E731
        return part_of(run, name, sides, read, lambda: made(run.data, name), "test.tsv")

    def examine(self, sides: Sides | None = None) -> tuple[dict[str, Any], list[str], list[list[str]]]:
        """As in translation, and for each task by itself."""
        figures, found, right = super().examine(sides)
        examples = self.part(self.run, "test", sides)
        if isinstance(examples, Mixture) and len(examples.sets) > 1:
            bounds = zip(examples.prefixes, examples.firsts, examples.firsts[1:], strict=False)
            figures["tasks"] = Tasks(
                {name: text_figures(found[a:b], right[a:b], ("bleu", "chrf", "exact")) for name, a, b in bounds}
            )
        return figures, found, right


class Tasks(dict[str, dict[str, float]]):
    def __str__(self) -> str:
        widest = max(map(len, self))
        rows = [
            "  ".join([f"  {name:{widest}}", *(f"{key} {value:.4f}" for key, value in row.items())])
            for name, row in self.items()
        ]
        return "\n" + "\n".join(rows)


def prepare(run: Run, folder: Path | None, device: torch.device) -> tuple[Lesson, dict[str, Text], Run]:
    return translate.prepare(run, folder, device, Writer)


def restore(run: Run, folder: Path, device: torch.device) -> Translator:
    return translate.restore(run, folder, device, Writer)
