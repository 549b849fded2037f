"""Metrics of taggers: of words, of spans, and of baselines."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...data.datasets.collate import IGNORED
from ...data.source import Source
from ...metrics.labels import label_metrics, span_metrics
from ...processors.labels import LabelSet
from ..base import Metrics
from ..label.results import best_labels, majority_baseline, report_labels, unseen_labels
from ..notices import require_finite
from .sentences import Words

if TYPE_CHECKING:
    from .task import TagPredictor


def evaluate_tags(
    predictor: "TagPredictor", examples: Source, train: Source | None
) -> tuple[Metrics, list[str], list[str]]:
    """The metrics of `evaluate`, the predicted tags and the reference tags of all words."""
    labels, references = predictor.labels, [tags for _, tags in examples]
    report_labels(examples, [*chain(*references)])
    logprobs = sentence_logprobs(predictor, examples)
    require_finite(float(rows.sum()) for rows in logprobs)
    predicted = [best_labels(labels, rows) for rows in logprobs]
    metrics = {"examples": len(references), **tag_metrics(labels, predicted, references)}
    flat_predicted, flat_references = list(chain(*predicted)), list(chain(*references))
    metrics |= tag_baselines(labels, examples, train) | unseen_labels(labels, flat_references)
    return metrics, flat_predicted, flat_references


def validate_tags(predictor: "TagPredictor", examples: Source) -> dict[str, float]:
    """The loss and the metrics on validation data."""
    loss, predicted, references = tag_loss(predictor, examples)
    metrics = tag_metrics(predictor.labels, predicted, references)
    return {"loss": loss, **{name: metrics[name] for name in ("accuracy", "f1", "spans") if name in metrics}}


def sentence_logprobs(predictor: "TagPredictor", examples: Source) -> list[Tensor]:
    """(words, labels) of every example."""
    outputs = predictor.run_programs(predictor.word_logprobs(words) for words, _ in examples)
    return [torch.from_numpy(rows) for rows in outputs]


def tag_loss(predictor: "TagPredictor", examples: Source) -> tuple[float, list[list[str]], list[Words]]:
    """Nats per word, predicted and reference tags; words with an unseen tag do not count in the loss."""
    references, logprobs, ids = (
        [tags for _, tags in examples],
        sentence_logprobs(predictor, examples),
        predictor.labels.ids,
    )
    targets = torch.tensor([ids.get(tag, IGNORED) for tags in references for tag in tags])
    nats = -torch.cat(logprobs).gather(1, targets.clamp(min=0)[:, None])[targets != IGNORED].sum()
    count = max(int((targets != IGNORED).sum()), 1)
    return float(nats) / count, [best_labels(predictor.labels, rows) for rows in logprobs], references


def tag_metrics(labels: LabelSet, predicted: Sequence[Words], references: Sequence[Words]) -> Metrics:
    """The metrics of all words, and of spans where tags mark some."""
    flat = list(chain(*references))
    metrics: Metrics = {"words": len(flat), **label_metrics(list(chain(*predicted)), flat)}
    return {**metrics, **span_metrics(predicted, references)} if labels.spans else metrics


def tag_baselines(labels: LabelSet, examples: Source, train: Source | None) -> Metrics:
    """The accuracy of the most frequent tag overall, and of the most frequent tag of each word in training data."""
    references = [tag for _, tags in examples for tag in tags]
    metrics = majority_baseline(labels, references)
    if not metrics or train is None:
        return metrics
    baseline = MostFrequentTag(train)
    predicted = [baseline.tag(word) for words, _ in examples for word in words]
    accuracy = sum(map(str.__eq__, predicted, references)) / len(references)
    return metrics | {"most_frequent_tag": accuracy}


class MostFrequentTag:
    """The most frequent tag of each word; an unknown word gets that of words that occur once."""

    def __init__(self, train: Source) -> None:
        counts: dict[str, Counter[str]] = {}
        for words, tags in train:
            for word, tag in zip(words, tags, strict=True):
                counts.setdefault(word, Counter())[tag] += 1
        rare = Counter(next(iter(tag_counts)) for tag_counts in counts.values() if tag_counts.total() == 1)
        total = sum(counts.values(), Counter[str]())
        self.unknown = (rare or total).most_common(1)[0][0]
        self.known = {word: tag_counts.most_common(1)[0][0] for word, tag_counts in counts.items()}

    def tag(self, word: str) -> str:
        """The most frequent tag of a word."""
        return self.known.get(word, self.unknown)
