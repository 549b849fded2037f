"""Text to text, as in T5: every task has a text as input and as output, and a prefix names the task."""

from pathlib import Path

import torch

from ...config.data.base import DataFiles
from ...config.losses import TaughtLoss
from ...data.source import Source
from ...data.sources.mixture import Mixture, open_mixture
from ...metrics.text import signature, text_metrics
from ...metrics.tokenization import choose_tokenization
from ...synthetic.mixture import make_mixture
from ..base import Metrics, Processors, open_split
from ..task import TEXT, Task
from ..translate import task as translate
from ..translate.evaluation import TEXT_METRICS, evaluate_translations
from ..translate.task import TranslateJob, TranslatePredictor, size_without_data
from .settings import Text2TextRun

__all__ = ["TASK", "Text2TextPredictor", "prepare", "restore", "size_without_data"]

TASK = Task("text2text", TEXT, "target")


def data_split(run: Text2TextRun, split: str, files: DataFiles | None = None) -> Source:
    """A split of the data: texts of several tasks."""
    read = lambda files: open_mixture(files, run.data, references=split != "train")  # noqa: E731
    return open_split(run, split, files, read, lambda: make_mixture(run.data, split), "test.tsv")


class Text2TextPredictor(TranslatePredictor):
    """A translation predictor whose texts begin with the prefix of their task."""

    run: Text2TextRun
    data_split = staticmethod(data_split)

    def evaluate_with_outputs(self, files: DataFiles | None = None) -> tuple[Metrics, list[str], list[list[str]]]:
        """The result of translation, with the metrics of each task in addition."""
        examples = self.data_split(self.run, "test", files)
        metrics, translations, references = evaluate_translations(self, examples)
        if isinstance(examples, Mixture) and len(examples.parts) > 1:
            bounds = zip(examples.prefixes, examples.bounds, examples.bounds[1:], strict=False)
            common = metrics["bleu_signature"]
            rows = {name: task_metrics(self.run, translations[a:b], references[a:b], common) for name, a, b in bounds}
            metrics["tasks"] = MetricsByTask(rows)
        return metrics, translations, references


def task_metrics(
    run: Text2TextRun, translations: list[str], references: list[list[str]], common_signature: str
) -> dict[str, float | str]:
    """The metrics of one task. Its language may need another tokenizer; then it has its own signature."""
    tokenization = choose_tokenization(references, run.eval)
    scores = text_metrics(translations, references, TEXT_METRICS, tokenization)
    bleu_signature = signature("bleu", references, tokenization)
    return {**scores} if bleu_signature == common_signature else {**scores, "bleu_signature": bleu_signature}


class MetricsByTask(dict[str, dict[str, float | str]]):
    """The metrics of every task by its name."""

    def __str__(self) -> str:
        widest = max(map(len, self))
        rows = [
            "  ".join([f"  {name:{widest}}", *(_format(key, value) for key, value in row.items())])
            for name, row in self.items()
        ]
        return "\n" + "\n".join(rows)


def _format(name: str, value: float | str) -> str:
    return f"{name} {value:.4f}" if isinstance(value, float) else f"{name} {value}"


def prepare(
    run: Text2TextRun, processors: Processors, device: torch.device, folder: Path | None = None
) -> TranslateJob:
    """Open the data, train a tokenizer that is not kept, and build the model."""
    return translate.prepare_pairs(run, processors, device, Text2TextPredictor, TaughtLoss())


def restore(run: Text2TextRun, folder: Path, device: torch.device) -> TranslatePredictor:
    """The predictor of a run folder, without the weights."""
    return translate.restore(run, folder, device, Text2TextPredictor)
