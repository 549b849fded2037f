"""The objective of detection, and its loss over a whole data set."""

from collections.abc import Sequence
from typing import Protocol, cast

import numpy as np
import torch
from torch import nn

from ...data.batch import Batch
from ...data.datasets.boxes import TENTHS
from ...families.protocols import BoxModel
from ...parts import Detections
from ...parts.inputs import Inputs
from ...processors.labels import LabelSet
from ...training.objective import LossSum, Objective
from .denoising import add_noise, denoising_loss
from .loss import NO_OBJECT, DetectionLoss, TrueObjects, detection_loss


class DetectionObjective(Objective):
    """The class loss is divided by the class weights of the step, the loss of the boxes by their number."""

    def __init__(self, model: nn.Module, labels: int) -> None:
        super().__init__()
        self.model, self.labels = model, labels

    def forward(self, batch: Batch) -> LossSum:
        model, true = cast(BoxModel, self.model), true_objects(batch["label"], batch["boxes"])
        noised = add_noise(true, model.denoising, self.labels) if model.denoising else None
        loss = training_loss(model.detect(batch["image"], noised), true, model.denoising)
        return LossSum(TENTHS * loss.classes, {"boxes": loss.boxes})


@torch.compiler.disable  # type: ignore[untyped-decorator]  # matching waits for the device, and shapes follow the objects
def training_loss(found: Detections, true: TrueObjects, groups: int) -> DetectionLoss:
    """The loss of the queries, of the places that propose them and of the noised boxes in `groups`."""
    loss = detection_loss(found, true)
    classes, boxes = loss.classes, loss.boxes
    if found.proposed is not None:  # all places together have the class weight of the queries
        share = found.logits.size(2) / found.proposed.logits.size(2)
        proposed = detection_loss(found.proposed, true, share * NO_OBJECT)
        classes, boxes = classes + proposed.classes, boxes + proposed.boxes
    if found.denoised is not None:
        boxes = boxes + denoising_loss(found.denoised, true, groups)
    return DetectionLoss(classes, boxes)


def true_objects(labels: Inputs, boxes: Inputs) -> TrueObjects:
    """The objects of a batch, image by image."""
    valid = torch.ones_like(labels.values, dtype=torch.bool) if labels.valid is None else labels.valid
    return TrueObjects(labels.values, boxes.values, valid)


class TruthBoxes(Protocol):
    """The objects of an image: corners in pixels."""

    @property
    def trained(self) -> "TruthBoxes":
        """The objects that training reads, without crowds."""

    @property
    def boxes(self) -> np.ndarray:
        """The boxes of the objects."""

    @property
    def labels(self) -> Sequence[str]:
        """The labels of the objects."""

    @property
    def width(self) -> int:
        """The width of the image."""

    @property
    def height(self) -> int:
        """The height of the image."""


class LossMeter:
    """Adds up the loss over batches. Objects with a label that training never had are left out."""

    def __init__(self, labels: LabelSet) -> None:
        self.labels = labels
        self.classes = self.boxes = self.weights = 0.0
        self.objects = 0

    def add(self, found: Detections, truths: Sequence[TruthBoxes]) -> None:
        """Add the losses of a batch."""
        rows = [self._known(each.trained) for each in truths]
        most = max(len(labels) for labels, _ in rows)
        labels, boxes = torch.zeros(len(rows), most, dtype=torch.long), torch.zeros(len(rows), most, 4)
        valid = torch.zeros(len(rows), most, dtype=torch.bool)
        for row, (own, places) in enumerate(rows):
            labels[row, : len(own)], valid[row, : len(own)] = torch.tensor(own, dtype=torch.long), True
            boxes[row, : len(own)] = torch.from_numpy(places)
        device, queries = found.logits.device, found.logits.size(2)
        loss = detection_loss(found, TrueObjects(labels.to(device), boxes.to(device), valid.to(device)))
        matched = sum(min(len(own), queries) for own, _ in rows)
        self.classes, self.boxes = self.classes + float(loss.classes), self.boxes + float(loss.boxes)
        self.weights += matched + NO_OBJECT * (len(rows) * queries - matched)
        self.objects += sum(len(own) for own, _ in rows)

    def _known(self, truth: TruthBoxes) -> tuple[list[int], np.ndarray]:
        """The ids and boxes, as center and size in shares of the image, of the objects with a known label."""
        known = [place for place, label in enumerate(truth.labels) if label in self.labels.ids]
        low, high = truth.boxes[known, :2], truth.boxes[known, 2:]
        shares = np.concatenate([(low + high) / 2, high - low], 1) / ([truth.width, truth.height] * 2)
        return [self.labels.ids[truth.labels[place]] for place in known], shares

    @property
    def loss(self) -> float:
        """The mean of all losses so far."""
        return self.classes / max(self.weights, 1e-9) + self.boxes / max(self.objects, 1)
