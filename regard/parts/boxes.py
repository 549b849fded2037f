"""Boxes as (center x, center y, width, height): corners, overlap, and their matching to queries."""

from collections.abc import Sequence

import torch
from torch import Tensor

CLASS_COST, BOX_COST, OVERLAP_COST = 1.0, 5.0, 2.0


def corners(boxes: Tensor) -> Tensor:
    """(…, 4) center and size -> (…, 4) left, top, right, bottom."""
    center, size = boxes[..., :2], boxes[..., 2:]
    return torch.cat([center - size / 2, center + size / 2], -1)


def overlap(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Intersection over union, and its generalization GIoU (1902.09630), of corners (…, 4) that broadcast."""
    areas = [(each[..., 2] - each[..., 0]) * (each[..., 3] - each[..., 1]) for each in (first, second)]
    low, high = torch.maximum(first[..., :2], second[..., :2]), torch.minimum(first[..., 2:], second[..., 2:])
    shared = (high - low).clamp(min=0).prod(-1)
    union = areas[0] + areas[1] - shared
    low, high = torch.minimum(first[..., :2], second[..., :2]), torch.maximum(first[..., 2:], second[..., 2:])
    hull = (high - low).clamp(min=0).prod(-1)
    iou = shared / union.clamp(min=1e-12)
    return iou, iou - (hull - union) / hull.clamp(min=1e-12)


@torch.no_grad()
def match(
    logits: Tensor, boxes: Tensor, labels: Sequence[Tensor], wanted: Sequence[Tensor]
) -> list[tuple[Tensor, Tensor]]:
    """The best assignment of the objects of every image to queries: (queries, objects), each (objects,).

    `logits` (batch, queries, classes), `boxes` (batch, queries, 4); `labels` and `wanted` of each image.
    """
    from scipy.optimize import linear_sum_assignment

    sizes = [len(each) for each in labels]
    if not sum(sizes):
        none = torch.zeros(0, dtype=torch.long, device=logits.device)
        return [(none, none)] * len(sizes)
    target, target_labels = torch.cat(list(wanted)), torch.cat(list(labels))
    chances = logits.float().softmax(-1)[..., target_labels]  # (batch, queries, objects of all images)
    distance = torch.cdist(boxes.float().flatten(0, 1), target.float(), p=1).unflatten(0, boxes.shape[:2])  # type: ignore[no-untyped-call]
    _, giou = overlap(corners(boxes.float())[:, :, None], corners(target.float()))
    cost = BOX_COST * distance - CLASS_COST * chances - OVERLAP_COST * giou
    parts = cost.nan_to_num(1e6, 1e6, -1e6).cpu().split(sizes, -1)  # one transfer for the whole batch
    found = (linear_sum_assignment(part[image].numpy()) for image, part in enumerate(parts))
    return [tuple(torch.as_tensor(each, device=logits.device) for each in pair) for pair in found]  # type: ignore[misc]
