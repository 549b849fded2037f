"""Denoising (DN-DETR, 2203.01305): training also asks for the true boxes behind noised ones, without any matching."""

import torch
from torch import Tensor
from torch.nn import functional as F

from ...data.datasets.collate import IGNORED
from ...parts import Detections
from ...parts.media.anchors import NoisedBoxes
from .loss import TrueObjects, box_loss

BOX_NOISE = 0.4  # centers move by up to this share of half the size, sizes change by up to this share
LABEL_NOISE = 0.2  # share of the labels that are drawn at random


@torch.compiler.disable  # type: ignore[untyped-decorator]  # shapes follow the objects
def add_noise(true: TrueObjects, groups: int, labels: int) -> NoisedBoxes:
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


def denoising_loss(found: Detections, true: TrueObjects, groups: int) -> Tensor:
    """Summed over layers and objects, the mean of the groups: class and box of the object that a box was made from."""
    layers, shape = len(found.logits), found.logits.shape[:3]
    labels = true.labels.masked_fill(~true.valid, IGNORED).repeat(layers, 1, groups).view(shape)
    boxes, valid = true.boxes.repeat(1, groups, 1), true.valid.repeat(1, groups)
    classes = F.cross_entropy(
        found.logits.float().flatten(0, 2), labels.flatten(), ignore_index=IGNORED, reduction="sum"
    )
    return (classes + box_loss(found.boxes, boxes, valid)) / groups
