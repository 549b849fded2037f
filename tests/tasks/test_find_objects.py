"""From the answers of object queries to objects, beside the post-processing of transformers."""

from types import SimpleNamespace

import torch
from transformers import DetrImageProcessorPil

from regard.parts import Detections
from regard.tasks.detect.objects import find_objects


def test_objects_agree_with_transformers():
    torch.manual_seed(1)
    logits, boxes = 3 * torch.randn(2, 3, 9, 6), torch.rand(2, 3, 9, 4)
    logits[:, 2, :, -1] += 99  # an image without objects
    sizes = [(640, 480), (333, 500), (64, 64)]  # width, height
    for threshold in (0.01, 0.5, 0.7):
        found = find_objects(Detections(logits, boxes), sizes, threshold)
        wanted = DetrImageProcessorPil().post_process_object_detection(
            SimpleNamespace(logits=logits[-1], pred_boxes=boxes[-1]), threshold, [size[::-1] for size in sizes]
        )
        for ours, theirs in zip(found, wanted, strict=True):
            assert torch.equal(ours.labels, theirs["labels"])
            assert torch.equal(ours.scores, theirs["scores"])
            assert torch.allclose(ours.boxes, theirs["boxes"], rtol=0, atol=1e-4)
        assert len(found[2].labels) == 0 < len(found[0].labels)
