"""Text to text, as T5 does it: every task is a text in and a text out, and a prefix says which task it is."""

from pathlib import Path
from typing import Any

import torch

from ..config.run import Run
from ..config.schema import Sides
from ..data.examples import Examples
from ..data.mixture import Mixture, open_mixture
from ..metrics.text import text_metrics
from ..processors.tokenizers import TrainedTokenizer
from ..synthetic.mixture import make_mixture
from . import translate
from .base import open_split
from .translate import VERBS, TranslateObjective, TranslatePredictor, sized

__all__ = ["VERBS", "Text2TextPredictor", "prepare", "restore", "sized"]


class Text2TextPredictor(TranslatePredictor):
    """A translator whose texts begin with the prefix of their task."""

    @staticmethod
    def part(run: Run, name: str, sides: Sides | None = None) -> Examples:
        read = lambda some: open_mixture(some, run.data, references=name != "train")  # noqa: E731
        return open_split(run, name, sides, read, lambda: make_mixture(run.data, name), "test.tsv")

    def examine(self, sides: Sides | None = None) -> tuple[dict[str, Any], list[str], list[list[str]]]:
        """As in translation, and for each task by itself."""
        figures, found, right = super().examine(sides)
        examples = self.part(self.run, "test", sides)
        if isinstance(examples, Mixture) and len(examples.datasets) > 1:
            bounds = zip(examples.prefixes, examples.offsets, examples.offsets[1:], strict=False)
            figures["tasks"] = MetricsByTask(
                {name: text_metrics(found[a:b], right[a:b], ("bleu", "chrf", "exact")) for name, a, b in bounds}
            )
        return figures, found, right


class MetricsByTask(dict[str, dict[str, float]]):
    def __str__(self) -> str:
        widest = max(map(len, self))
        rows = [
            "  ".join([f"  {name:{widest}}", *(f"{key} {value:.4f}" for key, value in row.items())])
            for name, row in self.items()
        ]
        return "\n" + "\n".join(rows)


def prepare(
    run: Run, folder: Path | None, device: torch.device
) -> tuple[TranslateObjective, dict[str, TrainedTokenizer], Run]:
    return translate.prepare(run, folder, device, Text2TextPredictor)


def restore(run: Run, folder: Path, device: torch.device) -> TranslatePredictor:
    return translate.restore(run, folder, device, Text2TextPredictor)
