"""The loss of a training job on one batch, outside the loop."""

from typing import Any

from torch import Tensor

from regard.data.batch import Batch


def batch_loss(job: Any, batch: Batch) -> Tensor:
    """The mean loss of the batch times its count, with the memory of the steps before."""
    found = job.objective(job.objective.bind(batch))
    loss: Tensor = found.sum
    for name, term in found.terms.items():
        loss = loss + batch.count * term / batch.counts[name]
    return loss
