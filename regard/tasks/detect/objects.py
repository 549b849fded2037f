"""The objects that a detector finds in images."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ...families.protocols import BoxModel
from ...parts import Detections, Inputs
from ...parts.media.boxes import corners
from ...processors.base import Array


class SizedImage(NamedTuple):
    """An image as pixels, and the size of the original."""

    width: int
    height: int
    pixels: Array


@dataclass(frozen=True, eq=False)
class FoundObjects:
    """The objects of one image, in the order of the queries that found them."""

    labels: Tensor  # (objects,)
    scores: Tensor  # (objects,)
    boxes: Tensor  # (objects, 4): left, top, right, bottom in pixels


def find_objects(
    detections: Detections, sizes: Sequence[tuple[int, int]], threshold: float = 0.5
) -> list[FoundObjects]:
    """The objects with a score above the threshold; `sizes` are the (width, height) of the original images.

    The score is the probability of the most likely class other than "no object". Everything is on the CPU.
    """
    scores, labels = detections.logits[-1].float().softmax(-1)[..., :-1].max(-1)
    shares = corners(detections.boxes[-1].float())
    table = torch.cat([labels[..., None].float(), scores[..., None], shares], -1).cpu()  # one transfer
    pixels = torch.tensor([[*size, *size] for size in sizes], dtype=torch.float32)[:, None]
    boxes = table[..., 2:] * pixels
    above = table[..., 1] > threshold
    return [
        FoundObjects(row[keep, 0].long(), row[keep, 1], box[keep])
        for row, box, keep in zip(table, boxes, above, strict=True)
    ]


def image_objects(model: BoxModel, inputs: Inputs) -> list[FoundObjects]:
    """The objects of every image, with any score; boxes are shares of the image."""
    return find_objects(model.detect(inputs), [(1, 1)] * len(inputs), -1.0)


def image_detections(model: BoxModel, inputs: Inputs) -> list[Detections]:
    """What the queries answer for every image, on the CPU."""
    found = model.detect(inputs)
    logits, boxes = (torch.split(tensor.float().cpu(), 1, 1) for tensor in (found.logits, found.boxes))
    return [Detections(*row) for row in zip(logits, boxes, strict=True)]


def stack_detections(images: Sequence[Detections]) -> Detections:
    """The detections of several images as those of a batch."""
    return Detections(torch.cat([one.logits for one in images], 1), torch.cat([one.boxes for one in images], 1))
