"""The data of translation, and the metrics of a translator over them."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from ...config.data.base import DataFiles
from ...data.source import Source
from ...data.sources.pairs import open_pairs, split_references
from ...metrics.text import signature, text_metrics
from ...metrics.tokenization import choose_tokenization
from ...synthetic.dates import make_dates
from ..base import Metrics, open_split
from ..generate.plans import best_text
from .settings import TranslateRun

if TYPE_CHECKING:
    from .task import TranslatePredictor

TEXT_METRICS = ("bleu", "chrf", "exact")  # of validation; TER takes longer
SIGNED = ("bleu", "chrf", "ter")  # metrics that have a signature
OpenSplit: TypeAlias = Callable[..., Source]  # (run, split, files)


def data_split(run: TranslateRun, split: str, files: DataFiles | None = None) -> Source:
    """A split of the data; the embedded data are dates. Test data may have several references."""
    data = run.data
    alignments = data.alignment_file if split == "train" else ""
    read = lambda files: open_pairs(files, data, references=split != "train", alignments=alignments)  # noqa: E731
    embedded = lambda: make_dates(data.locales, data.examples, seed=1)[split]  # noqa: E731
    return open_split(run, split, files, read, embedded, "test.en,test.de")


def evaluate_translations(
    predictor: "TranslatePredictor", examples: Source
) -> tuple[Metrics, list[str], list[list[str]]]:
    """The metrics of examples with one or more references each, the translations and the references."""
    examples.require_nonempty("data.test")
    sources, references = [pair[0] for pair in examples], [split_references(pair[1]) for pair in examples]
    tokenization = choose_tokenization(references, predictor.run.eval)  # first: it may raise UserError
    translations = predictor.predict(sources, strategy=best_text(predictor.run))
    metrics: Metrics = {"examples": len(examples)}
    metrics |= text_metrics(translations, references, (*SIGNED, "exact"), tokenization)
    metrics |= target_loss(predictor, sources, [texts[0] for texts in references])
    metrics |= {f"{name}_signature": signature(name, references, tokenization) for name in SIGNED}
    return metrics, translations, references


def target_loss(predictor: "TranslatePredictor", sources: Sequence[str], targets: Sequence[str]) -> dict[str, float]:
    """The loss in nats per target token, END included, without label smoothing, and the perplexity."""
    rows = predictor.logprobs(predictor.source.encode(list(sources)), predictor.target.encode(list(targets)))
    return mean_loss(rows)


def mean_loss(logprobs: Sequence[Sequence[float]]) -> dict[str, float]:
    """The loss and the perplexity of rows of log-probabilities."""
    loss = -sum(map(sum, logprobs)) / max(sum(map(len, logprobs)), 1)
    return {"loss": loss, "perplexity": math.exp(min(loss, 700))}
