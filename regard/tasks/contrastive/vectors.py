"""Vectors of texts that many requests share, and of the pairs of evaluation data."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...data.loading.sampler import sorted_batches
from ...decode.engine.jobs import Forward, Head, Job, ModelContext
from ...families.protocols import EmbeddingModel
from ...metrics.retrieval import retrieval_metrics
from ...parts import Inputs
from ..label.texts import TextEncoder
from ..objectives import contrastive_loss


def item_vectors(model: EmbeddingModel, inputs: Inputs) -> Iterable[Tensor]:
    """The vector of every item."""
    return model.vectors(inputs).float().cpu()


@dataclass(frozen=True, eq=False)
class LabelVectors(Job[Tensor]):
    """(texts, width): the vectors of the texts of labels, computed once for all requests that wait for them."""

    encoder: TextEncoder
    head: Head[Tensor]
    texts: tuple[str, ...]
    stage: ClassVar[int] = 8  # after the items, so that requests gather

    def group(self) -> Hashable:
        return type(self), self.texts

    def limits(self, context: ModelContext, batch: int) -> tuple[int, int]:
        return 0, 0

    def run(self, jobs: Sequence["LabelVectors"], context: ModelContext) -> list[Tensor]:
        passes = [Forward(self.head, text.row) for text in self.encoder.read([(text,) for text in self.texts])]
        vectors: dict[int, Tensor] = {}
        tokens, rows = passes[0].limits(context, context.batch)
        for indices in sorted_batches([one.cost for one in passes], tokens, rows):
            batch = [passes[index] for index in indices]
            vectors |= zip(indices, batch[0].run(batch, context), strict=True)
        return [torch.stack([vectors[index] for index in range(len(passes))])] * len(jobs)


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
