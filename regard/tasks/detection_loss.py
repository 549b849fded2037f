"""The loss of detection: queries are matched to objects, then their classes and boxes are compared."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ..parts import Detections
from ..parts.boxes import corners, match, overlap

NO_OBJECT, BOX, OVERLAP = 0.1, 5.0, 2.0  # weights of the class "no object", of L1 and of GIoU


@dataclass(frozen=True, eq=False)
class DetectionLoss:
    """Sums over all decoder layers. Classes are divided by the summed class weights, boxes by the number of objects."""

    classes: Tensor
    boxes: Tensor


def detection_loss(found: Detections, labels: Sequence[Tensor], boxes: Sequence[Tensor]) -> DetectionLoss:
    """`labels` and `boxes` are the objects of each image. Every layer is matched on its own."""
    layers = [_layer_loss(*each, labels, boxes) for each in zip(found.logits, found.boxes, strict=True)]
    return DetectionLoss(*(torch.stack(each).sum() for each in zip(*layers, strict=True)))


def _layer_loss(
    logits: Tensor, predicted: Tensor, labels: Sequence[Tensor], boxes: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    pairs = match(logits, predicted, labels, boxes)
    none = logits.size(-1) - 1
    target = torch.full(logits.shape[:2], none, dtype=torch.long, device=logits.device)
    rows = torch.cat([torch.full_like(queries, row) for row, (queries, _) in enumerate(pairs)])
    chosen = torch.cat([queries for queries, _ in pairs])
    target[rows, chosen] = torch.cat([own[objects] for own, (_, objects) in zip(labels, pairs, strict=True)])
    weight = torch.ones(none + 1, device=logits.device)
    weight[-1] = NO_OBJECT
    classes = F.cross_entropy(logits.float().flatten(0, 1), target.flatten(), weight, reduction="sum")
    wanted = torch.cat([own[objects] for own, (_, objects) in zip(boxes, pairs, strict=True)])
    given = predicted[rows, chosen].float()
    _, giou = overlap(corners(given), corners(wanted))
    return classes, BOX * (given - wanted).abs().sum() + OVERLAP * (1 - giou).sum()


def class_weight_sum(images: int, queries: int, objects: int) -> float:
    """The summed class weights of a batch: what the class loss is divided by."""
    return objects + NO_OBJECT * (images * queries - objects)
