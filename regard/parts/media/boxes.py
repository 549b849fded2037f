"""Boxes as (center x, center y, width, height): corners, overlap, and their matching to queries."""

import torch
from torch import Tensor

CLASS_COST, BOX_COST, OVERLAP_COST = 1.0, 5.0, 2.0


def corners(boxes: Tensor) -> Tensor:
    """(…, 4) center and size -> (…, 4) left, top, right, bottom."""
    center, size = boxes[..., :2], boxes[..., 2:]
    return torch.cat([center - size / 2, center + size / 2], -1)


def overlap(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Intersection over union, and its generalization GIoU (1902.09630), of corners (…, 4) that broadcast."""
    areas = [(box[..., 2] - box[..., 0]) * (box[..., 3] - box[..., 1]) for box in (first, second)]
    low, high = torch.maximum(first[..., :2], second[..., :2]), torch.minimum(first[..., 2:], second[..., 2:])
    shared = (high - low).clamp(min=0).prod(-1)
    union = areas[0] + areas[1] - shared
    low, high = torch.minimum(first[..., :2], second[..., :2]), torch.maximum(first[..., 2:], second[..., 2:])
    hull = (high - low).clamp(min=0).prod(-1)
    iou = shared / union.clamp(min=1e-12)
    return iou, iou - (hull - union) / hull.clamp(min=1e-12)


@torch.no_grad()
def match(logits: Tensor, boxes: Tensor, labels: Tensor, true_boxes: Tensor, valid: Tensor) -> Tensor:
    """The best assignment of objects to queries: (4, pairs), the layer, image, query and object of every pair.

    `logits` (layers, batch, queries, classes), `boxes` (layers, batch, queries, 4); `labels` (batch, objects),
    `true_boxes` (batch, objects, 4) and `valid` (batch, objects). Every layer and image is matched separately, with one
    transfer from the device and one to it for all of them.
    """
    from scipy.optimize import linear_sum_assignment

    layers, batch, queries, _ = logits.shape
    if not labels.size(1):
        return torch.zeros(4, 0, dtype=torch.long, device=logits.device)
    index = labels.clamp(min=0)[None, :, None].expand(layers, batch, queries, -1)
    chances = logits.float().softmax(-1).gather(-1, index)  # (layers, batch, queries, objects)
    predicted, target = boxes.float()[..., None, :], true_boxes.float()[:, None]
    distance = (predicted - target).abs().sum(-1)
    _, giou = overlap(corners(predicted), corners(target))
    cost = (BOX_COST * distance - CLASS_COST * chances - OVERLAP_COST * giou).nan_to_num(1e6, 1e6, -1e6)
    table = cost.masked_fill(~valid[:, None], torch.inf).cpu().numpy()
    pairs = []
    for layer, images in enumerate(table):
        for image, costs in enumerate(images):
            chosen, objects = linear_sum_assignment(costs[:, costs[0] < torch.inf])
            pairs += [
                (layer, image, query, target) for query, target in zip(chosen.tolist(), objects.tolist(), strict=True)
            ]
    return torch.tensor(pairs, dtype=torch.long).reshape(-1, 4).T.to(logits.device, non_blocking=True)
