"""Metrics of pairs: retrieval in both directions, and the accuracy of labels."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...data.datasets.contrastive import content_number
from ...data.source import Source
from ...decode.engine.jobs import Program
from ...errors import UserError
from ...messages.media import Item
from ...metrics.retrieval import retrieval_metrics
from ..label.embedding import Embedded
from ..notices import require_finite
from ..objectives import contrastive_loss
from .settings import SLOT, ContrastiveDecode

if TYPE_CHECKING:
    from .task import ContrastivePredictor


@dataclass(frozen=True, eq=False)
class EmbeddedPairs:
    """Distinct items and texts with their vectors; `pairs` are the numbers of those of every example."""

    items: Tensor
    vectors: Tensor
    texts: Sequence[str]
    pairs: Sequence[tuple[int, int]]

    def retrieval(self) -> dict[str, float]:
        """Recall in both directions."""
        return retrieval_metrics(self.items, self.vectors, self.pairs)

    def loss(self, scale: float, size: int) -> float:
        """Nats per pair, in steps of `size` pairs in their order."""
        total = 0.0
        numbers = torch.tensor(self.pairs)
        for step_pairs in torch.split(numbers, size):
            items, texts = step_pairs.unbind(1)
            scores = scale * (self.items[items] @ self.vectors[texts].T)
            positives = (items[:, None] == items) | (texts[:, None] == texts)
            total += float(contrastive_loss(scores, positives))
        return total / len(numbers)


def embed_pairs(predictor: "ContrastivePredictor", examples: Source) -> EmbeddedPairs:
    """The vectors of the distinct items and texts of examples; each item is read once, when its turn comes."""
    texts: dict[str, int] = {}
    items: dict[int, int] = {}  # numbers by content
    pairs: list[tuple[int, int]] = []
    towers = predictor.towers

    def distinct_items() -> Iterator[Program[Embedded]]:
        for index in range(len(examples)):
            raw, text = examples[index]
            number = content_number(raw, index)
            if new := number not in items:
                items[number] = len(items)
            pairs.append((items[number], texts.setdefault(" ".join(text.split()), len(texts))))
            if new:
                yield towers.vector(predictor.pairs.item(raw))

    item_rows = predictor.run_programs(distinct_items())
    text_rows = predictor.run_programs(towers.vector(Item(text)) for text in texts)
    first, second = (torch.stack([row.vector for row in rows]) for rows in (item_rows, text_rows))
    require_finite([float(second.sum())])
    return EmbeddedPairs(first, second, [*texts], pairs)


def labels_by_text(settings: ContrastiveDecode) -> dict[str, str]:
    """The labels by their names and by their texts: an example may have either."""
    texts = {settings.template.replace(SLOT, label): label for label in settings.labels}
    return texts | {label: label for label in settings.labels}


def choose_labels(
    predictor: "ContrastivePredictor", examples: Source, pairs: EmbeddedPairs
) -> tuple[list[str], list[str]]:
    """The nearest label of every example, and its text, which is one of the labels or its text."""
    settings: ContrastiveDecode = predictor.run.decode
    names = labels_by_text(settings)
    for index, (_, text) in enumerate(pairs.pairs):
        if pairs.texts[text] not in names:
            raise UserError(
                f"{examples.location(index)} has the text {pairs.texts[text]!r}, which is none of decode.labels; "
                "add it, or leave decode.labels out"
            )
    (vectors,) = predictor.run_programs([predictor.towers.label_vectors(settings)])
    best = (pairs.items @ vectors.T).argmax(1).tolist()
    labels = [settings.labels[best[item]] for item, _ in pairs.pairs]
    return labels, [names[pairs.texts[text]] for _, text in pairs.pairs]
