"""The loss of a training job on one batch, outside the loop."""

from typing import Any

from torch import Tensor

from regard.data.batch import Batch


def batch_loss(job: Any, batch: Batch) -> Tensor:
    """Summed over the batch, with the memory of the steps before."""
    loss: Tensor = job.objective(job.objective.bind(batch)).sum
    return loss
