"""The loss of detection: queries are matched to objects, then their classes and boxes are compared."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ...parts import Detections
from ...parts.media.boxes import corners, match, overlap

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


def detection_loss(found: Detections, true: TrueObjects, no_object: float = NO_OBJECT) -> DetectionLoss:
    """Every layer is matched on its own, as the auxiliary losses of DETR are."""
    layer, image, query, object_ = match(found.logits, found.boxes, true.labels, true.boxes, true.valid)
    none = found.logits.size(-1) - 1
    target = torch.full(found.logits.shape[:3], none, dtype=torch.long, device=found.logits.device)
    target[layer, image, query] = true.labels[image, object_]
    weight = torch.ones(none + 1, device=found.logits.device)
    weight[-1] = no_object
    classes = F.cross_entropy(found.logits.float().flatten(0, 2), target.flatten(), weight, reduction="sum")
    return DetectionLoss(classes, box_loss(found.boxes[layer, image, query], true.boxes[image, object_]))


def box_loss(found: Tensor, true: Tensor, valid: Tensor | None = None) -> Tensor:
    """Summed over boxes (…, 4) that belong together; those that are not `valid` (…) count for nothing."""
    found, true = found.float(), true.float()
    _, giou = overlap(corners(found), corners(true))
    loss = BOX * (found - true).abs().sum(-1) + OVERLAP * (1 - giou)
    return (loss if valid is None else loss * valid).sum()
