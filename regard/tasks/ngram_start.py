"""Counts the n-grams of training texts for models that have them (`parts/ngrams.py`)."""

from ..data.rows import LabeledTextDataset
from ..parts.ngrams import NGramCounts
from .objectives import LabelObjective

BATCH = 512  # texts that are counted together


def count_ngrams(ngrams: NGramCounts, dataset: LabeledTextDataset, objective: LabelObjective) -> None:
    """Count the n-grams of all training texts. The objective tells the labels of a batch."""
    examples, device = len(dataset.examples), ngrams.texts.device
    ngrams.cpu()
    for first in range(0, examples, BATCH):
        batch = dataset.collate(list(dataset.encode(list(range(first, min(first + BATCH, examples))))))
        ngrams.count(batch["text"], objective.own_labels(batch["label"].values))
    ngrams.to(device)
