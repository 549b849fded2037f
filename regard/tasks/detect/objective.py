"""The loss of detection, of denoising beside it (DN-DETR, 2203.01305), and the objective over both.

Queries are matched to objects, then their classes and boxes are compared. Denoising also asks for the true boxes behind
noised ones, without any matching.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...data.batch import Batch
from ...data.datasets.boxes import TENTHS
from ...data.datasets.collate import IGNORED
from ...families.protocols import BoxModel
from ...parts import Detections
from ...parts.inputs import Inputs
from ...parts.media.anchors import NoisedBoxes
from ...parts.media.boxes import corners, match, overlap
from ...processors.labels import LabelSet
from ...training.objective import LossSum, Objective

NO_OBJECT, BOX, OVERLAP = 0.1, 5.0, 2.0  # weights of the class "no object", of L1 and of GIoU


@dataclass(frozen=True, eq=False)
class TrueObjects:
    """The objects of a batch. `valid` is False for padding, which comes last."""

    labels: Tensor  # (batch, objects)
    boxes: Tensor  # (batch, objects, 4): center x, center y, width, height, as shares of the image
    valid: Tensor  # (batch, objects) bool


@dataclass(frozen=True, eq=False)
class DetectionLoss:
    """Sums over all decoder layers. Classes are divided by the summed class weights, boxes by the number of objects."""

    classes: Tensor
    boxes: Tensor


def detection_loss(detections: Detections, true: TrueObjects, no_object: float = NO_OBJECT) -> DetectionLoss:
    """Every layer is matched on its own, as the auxiliary losses of DETR are."""
    layer, image, query, object_ = match(detections.logits, detections.boxes, true.labels, true.boxes, true.valid)
    none = detections.logits.size(-1) - 1
    target = torch.full(detections.logits.shape[:3], none, dtype=torch.long, device=detections.logits.device)
    target[layer, image, query] = true.labels[image, object_]
    weight = torch.ones(none + 1, device=detections.logits.device)
    weight[-1] = no_object
    classes = F.cross_entropy(detections.logits.float().flatten(0, 2), target.flatten(), weight, reduction="sum")
    return DetectionLoss(classes, box_loss(detections.boxes[layer, image, query], true.boxes[image, object_]))


def box_loss(predicted: Tensor, true: Tensor, valid: Tensor | None = None) -> Tensor:
    """Summed over boxes (…, 4) that belong together; those that are not `valid` (…) count for nothing."""
    predicted, true = predicted.float(), true.float()
    _, giou = overlap(corners(predicted), corners(true))
    loss = BOX * (predicted - true).abs().sum(-1) + OVERLAP * (1 - giou)
    return (loss if valid is None else loss * valid).sum()


BOX_NOISE = 0.4  # centers move by up to this share of half the size, sizes change by up to this share
LABEL_NOISE = 0.2  # share of the labels that are drawn at random


@torch.compiler.disable  # type: ignore[untyped-decorator]  # shapes follow the objects
def add_box_noise(true: TrueObjects, groups: int, labels: int) -> NoisedBoxes:
    """Every object once in each of `groups`, with its own noise."""
    count = true.labels.size(1)
    boxes, chosen = true.boxes.repeat(1, groups, 1), true.labels.clamp(min=0).repeat(1, groups)
    shift, change = (torch.rand_like(boxes[..., :2]) * 2 - 1 for _ in range(2))
    center = boxes[..., :2] + shift * boxes[..., 2:] * (BOX_NOISE / 2)
    size = boxes[..., 2:] * (1 + change * BOX_NOISE)
    other = torch.randint_like(chosen, labels)
    chosen = torch.where(torch.rand_like(boxes[..., 0]) < LABEL_NOISE, other, chosen)
    numbers = torch.arange(groups, device=boxes.device).repeat_interleave(count)
    return NoisedBoxes(chosen, torch.cat([center, size], -1).clamp(0, 1), true.valid.repeat(1, groups), numbers)


def denoising_loss(detections: Detections, true: TrueObjects, groups: int) -> Tensor:
    """Summed over layers and objects, the mean of the groups: class and box of the object that a box was made from."""
    layers, shape = len(detections.logits), detections.logits.shape[:3]
    labels = true.labels.masked_fill(~true.valid, IGNORED).repeat(layers, 1, groups).view(shape)
    boxes, valid = true.boxes.repeat(1, groups, 1), true.valid.repeat(1, groups)
    classes = F.cross_entropy(
        detections.logits.float().flatten(0, 2), labels.flatten(), ignore_index=IGNORED, reduction="sum"
    )
    return (classes + box_loss(detections.boxes, boxes, valid)) / groups


class DetectionObjective(Objective):
    """The class loss is divided by the class weights of the step, the loss of the boxes by their number."""

    def __init__(self, model: nn.Module, labels: int) -> None:
        super().__init__()
        self.model, self.labels = model, labels

    def forward(self, batch: Batch) -> LossSum:
        model, true = cast(BoxModel, self.model), true_objects(batch["label"], batch["boxes"])
        noised = add_box_noise(true, model.denoising, self.labels) if model.denoising else None
        loss = training_loss(model.detect(batch["image"], noised), true, model.denoising)
        return LossSum(TENTHS * loss.classes, {"boxes": loss.boxes})


@torch.compiler.disable  # type: ignore[untyped-decorator]  # matching waits for the device, and shapes follow the objects
def training_loss(detections: Detections, true: TrueObjects, groups: int) -> DetectionLoss:
    """The loss of the queries, of the places that propose them and of the noised boxes in `groups`."""
    loss = detection_loss(detections, true)
    classes, boxes = loss.classes, loss.boxes
    if detections.proposed is not None:  # all places together have the class weight of the queries
        share = detections.logits.size(2) / detections.proposed.logits.size(2)
        proposed = detection_loss(detections.proposed, true, share * NO_OBJECT)
        classes, boxes = classes + proposed.classes, boxes + proposed.boxes
    if detections.denoised is not None:
        boxes = boxes + denoising_loss(detections.denoised, true, groups)
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

    def add(self, detections: Detections, truths: Sequence[TruthBoxes]) -> None:
        """Add the losses of a batch."""
        rows = [self._known(truth.trained) for truth in truths]
        most = max(len(labels) for labels, _ in rows)
        labels, boxes = torch.zeros(len(rows), most, dtype=torch.long), torch.zeros(len(rows), most, 4)
        valid = torch.zeros(len(rows), most, dtype=torch.bool)
        for row, (ids, truth_boxes) in enumerate(rows):
            labels[row, : len(ids)], valid[row, : len(ids)] = torch.tensor(ids, dtype=torch.long), True
            boxes[row, : len(ids)] = torch.from_numpy(truth_boxes)
        device, queries = detections.logits.device, detections.logits.size(2)
        loss = detection_loss(detections, TrueObjects(labels.to(device), boxes.to(device), valid.to(device)))
        matched = sum(min(len(ids), queries) for ids, _ in rows)
        self.classes, self.boxes = self.classes + float(loss.classes), self.boxes + float(loss.boxes)
        self.weights += matched + NO_OBJECT * (len(rows) * queries - matched)
        self.objects += sum(len(ids) for ids, _ in rows)

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
