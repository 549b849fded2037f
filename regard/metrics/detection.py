"""Metrics of detection, as COCO defines them: average precision and recall over overlaps, sizes and classes."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ..errors import UserError

NAMES = (
    "ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large", "ar_1", "ar_10", "ar_100", "ar_small", "ar_medium",
    "ar_large",
)  # fmt: skip
MOST = 100  # detections of an image that count


class Detection(Protocol):
    """A detected object."""

    @property
    def label(self) -> str: ...
    @property
    def score(self) -> float: ...
    @property
    def box(self) -> Sequence[float]: ...  # left, top, right, bottom in pixels


class Truth(Protocol):
    """The objects of an image."""

    @property
    def boxes(self) -> np.ndarray: ...  # (objects, 4) corners
    @property
    def labels(self) -> Sequence[str]: ...
    @property
    def crowd(self) -> np.ndarray: ...  # (objects,) bool
    @property
    def areas(self) -> np.ndarray: ...  # (objects,)


def detection_metrics(truths: Sequence[Truth], detections: Sequence[Sequence[Detection]]) -> dict[str, Any]:
    """The twelve numbers of COCO, and a table by class.

    A metric of a size that no object has is missing. Detections of classes that the data do not have are ignored.
    """
    coco, evaluation_type = _import_coco()
    labels = sorted({label for truth in truths for label in truth.labels})
    ids = {label: number + 1 for number, label in enumerate(labels)}
    truth_index = coco(_truth_table(truths, ids))
    rows = [
        {"image_id": image + 1, "category_id": ids[one.label], "score": float(one.score), "bbox": _origin_size(one.box)}
        for image, objects in enumerate(detections)
        for one in objects
        if one.label in ids
    ]
    results = truth_index.loadRes(rows)
    evaluation = evaluation_type(truth_index, results, "bbox", print_function=lambda *_: None)
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    numbers = {name: float(value) for name, value in zip(NAMES, evaluation.stats, strict=False) if value >= 0}
    return numbers | {"classes": ClassTable(_by_class(evaluation.eval, truths, labels))}


class ClassTable(dict[str, dict[str, float]]):
    """label -> ap, ap50, ap75, ar 100 and its number of objects."""

    def __str__(self) -> str:
        widest = max(map(len, self), default=0)
        lines = [f"  {'':{widest}}      ap    ap50    ap75  ar 100   count"]
        for label, row in self.items():
            numbers = "  ".join(f"{row[name]:.4f}" for name in ("ap", "ap50", "ap75", "ar_100"))
            lines.append(f"  {label:{widest}}  {numbers}  {row['count']:6d}")
        return "\n" + "\n".join(lines)


def _by_class(table: Mapping[str, Any], truths: Sequence[Truth], labels: Sequence[str]) -> dict[str, dict[str, float]]:
    """`precision` is (overlaps, recalls, classes, sizes, limits), `recall` (overlaps, classes, sizes, limits)."""
    precision, recall = table["precision"][:, :, :, 0, -1], table["recall"][:, :, 0, -1]
    rows = {}
    for number, label in enumerate(labels):
        class_precision = precision[:, :, number]
        if (class_precision < 0).all():  # only crowds
            continue
        count = sum(
            name == label and not crowd
            for truth in truths
            for name, crowd in zip(truth.labels, truth.crowd, strict=True)
        )
        rows[label] = {
            "ap": float(class_precision.mean()), "ap50": float(class_precision[0].mean()),
            "ap75": float(class_precision[5].mean()),
            "ar_100": float(recall[:, number].mean()), "count": count,
        }  # fmt: skip
    return rows


def _truth_table(truths: Sequence[Truth], ids: Mapping[str, int]) -> dict[str, Any]:
    """The objects as a COCO annotation file."""
    objects = [
        {
            "image_id": image + 1,
            "category_id": ids[label],
            "bbox": _origin_size(box),
            "area": float(area),
            "iscrowd": int(crowd),
        }
        for image, truth in enumerate(truths)
        for label, box, area, crowd in zip(truth.labels, truth.boxes, truth.areas, truth.crowd, strict=True)
    ]
    return {
        "images": [{"id": image + 1} for image in range(len(truths))],
        "annotations": [{"id": number + 1, **entry} for number, entry in enumerate(objects)],
        "categories": [{"id": number, "name": label} for label, number in ids.items()],
    }


def _origin_size(box: Sequence[float] | np.ndarray) -> list[float]:
    """Corners as x, y, width, height."""
    left, top, right, bottom = map(float, box)
    return [left, top, right - left, bottom - top]


def _import_coco() -> tuple[Any, Any]:
    try:
        from faster_coco_eval import COCO, COCOeval_faster
    except ImportError as error:
        raise UserError(
            "average precision needs faster-coco-eval, which is not installed; pip install 'regard[vision]', or choose "
            "train.metric=loss"
        ) from error
    return COCO, COCOeval_faster
