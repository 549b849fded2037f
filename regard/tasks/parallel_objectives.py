"""The objectives of models that write all tokens at once."""

from typing import cast

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..data.batch import Batch
from ..data.collate import IGNORED
from ..families.protocols import FertilityModel, InfillModel, ParallelModel
from ..parts import Encoded, Inputs
from ..parts.losses import smoothed_cross_entropy
from ..training.objective import LossSum, Objective


class FertilityObjective(Objective):
    """Summed over the target tokens, which the copies of known fertilities predict; and over the fertilities."""

    def __init__(self, model: nn.Module, smoothing: float) -> None:
        super().__init__()
        self.model, self.smoothing = model, smoothing

    def forward(self, batch: Batch) -> LossSum:
        model = cast(FertilityModel, self.model)
        encoded = model.encode(batch["source"])
        loss = token_loss(model, batch["copies"], encoded, batch["labels"], self.smoothing)
        wanted = batch["fertility"].values.flatten()
        found = model.fertility_logits(encoded).float().flatten(0, 1)
        return LossSum(loss, {"fertility": cross_entropy(found, wanted, reduction="sum", ignore_index=IGNORED)})


class InfillObjective(Objective):
    """Summed over the masked tokens; and over the lengths of the targets."""

    def __init__(self, model: nn.Module, smoothing: float) -> None:
        super().__init__()
        self.model, self.smoothing = model, smoothing

    def forward(self, batch: Batch) -> LossSum:
        model = cast(InfillModel, self.model)
        encoded = model.encode(batch["source"])
        loss = token_loss(model, batch["target"], encoded, batch["labels"], self.smoothing)
        lengths = cross_entropy(model.length_logits(encoded).float(), batch["length"].values, reduction="sum")
        return LossSum(loss, {"length": lengths})


def token_loss(model: ParallelModel, target: Inputs, encoded: Encoded, labels: Inputs, smoothing: float) -> Tensor:
    """Of the labels alone, which say where they are in the flattened target."""
    assert labels.positions is not None
    states = model.decode(target, encoded).flatten(0, 1)[labels.positions]
    return smoothed_cross_entropy(model.logits(states), labels.values, smoothing=smoothing)
