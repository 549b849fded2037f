"""Text to text, as in T5: every task has a text as input and as output, and a prefix names the task."""

from pathlib import Path

import torch

from ..config.run import Run
from ..config.schema import Sides
from ..data.examples import Examples
from ..data.mixture import Mixture, open_mixture
from ..metrics.text import text_metrics
from ..synthetic.mixture import make_mixture
from . import translate
from .base import Metrics, Processors, open_split
from .requests import TranslateRequest, TranslateResult
from .task import TEXT, Task
from .translate import TranslateJob, TranslatePredictor, with_max_vocab

__all__ = ["TASK", "Text2TextPredictor", "prepare", "restore", "with_max_vocab"]

TASK = Task("text2text", TEXT, "target", TranslateRequest, TranslateResult)


class Text2TextPredictor(TranslatePredictor):
    """A translation predictor whose texts begin with the prefix of their task."""

    @staticmethod
    def data_split(run: Run, split: str, sides: Sides | None = None) -> Examples:
        read = lambda files: open_mixture(files, run.data, references=split != "train")  # noqa: E731
        return open_split(run, split, sides, read, lambda: make_mixture(run.data, split), "test.tsv")

    def evaluate_texts(self, sides: Sides | None) -> tuple[Metrics, list[str], list[list[str]]]:
        """As in translation, with the metrics of each task in addition."""
        metrics, found, references = super().evaluate_texts(sides)
        examples = self.data_split(self.run, "test", sides)
        if isinstance(examples, Mixture) and len(examples.datasets) > 1:
            bounds = zip(examples.prefixes, examples.offsets, examples.offsets[1:], strict=False)
            metrics["tasks"] = MetricsByTask(
                {name: text_metrics(found[a:b], references[a:b], ("bleu", "chrf", "exact")) for name, a, b in bounds}
            )
        return metrics, found, references


class MetricsByTask(dict[str, dict[str, float]]):
    def __str__(self) -> str:
        widest = max(map(len, self))
        rows = [
            "  ".join([f"  {name:{widest}}", *(f"{key} {value:.4f}" for key, value in row.items())])
            for name, row in self.items()
        ]
        return "\n" + "\n".join(rows)


def prepare(run: Run, kept: Processors, device: torch.device, folder: Path | None = None) -> TranslateJob:
    return translate.prepare(run, kept, device, folder, Text2TextPredictor)


def restore(run: Run, folder: Path, device: torch.device) -> TranslatePredictor:
    return translate.restore(run, folder, device, Text2TextPredictor)
