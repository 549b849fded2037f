"""The objects that a model finds in images: labels, scores and boxes in pixels of the original image."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...parts import Detections
from ...parts.media.boxes import corners


@dataclass(frozen=True, eq=False)
class FoundObjects:
    """The objects of one image, in the order of the queries that found them."""

    labels: Tensor  # (objects,)
    scores: Tensor  # (objects,)
    boxes: Tensor  # (objects, 4): left, top, right, bottom in pixels


def find_objects(found: Detections, sizes: Sequence[tuple[int, int]], threshold: float = 0.5) -> list[FoundObjects]:
    """The objects with a score above the threshold; `sizes` are the (width, height) of the original images.

    The score is the probability of the most likely class other than "no object". Everything is on the CPU.
    """
    scores, labels = found.logits[-1].float().softmax(-1)[..., :-1].max(-1)
    shares = corners(found.boxes[-1].float())
    table = torch.cat([labels[..., None].float(), scores[..., None], shares], -1).cpu()  # one transfer
    pixels = torch.tensor([[*size, *size] for size in sizes], dtype=torch.float32)[:, None]
    boxes = table[..., 2:] * pixels
    kept = table[..., 1] > threshold
    return [
        FoundObjects(row[keep, 0].long(), row[keep, 1], box[keep])
        for row, box, keep in zip(table, boxes, kept, strict=True)
    ]
