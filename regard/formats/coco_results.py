"""The objects of images as COCO's result array, which evaluation tools read."""

from collections.abc import Callable, Iterable
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, TypeAlias

from ..config.data.images import DetectData
from ..data.sources.annotations import image_numbers

if TYPE_CHECKING:
    from ..messages.labels import DetectResult
    from ..tasks.detect.task import DetectPredictor


Row: TypeAlias = tuple[str, "DetectResult"]  # the name of an image, and its objects


FIRST = "test", "valid", "train"  # splits whose annotations may know the ids of images


def coco_results(
    rows: Iterable[Row], predictor: "DetectPredictor", report: Callable[[str], None] = lambda line: None
) -> list[dict[str, int | float | list[float]]]:
    """The objects as COCO's result array: x, y, width, height in pixels."""
    rows = list(rows)
    ids, categories = image_ids([name for name, _ in rows], predictor.run.data, report), predictor.boxes.categories
    found: list[dict[str, int | float | list[float]]] = []
    for number, (_, result) in zip(ids, rows, strict=True):
        for detected in result.objects:
            place, (left, top, right, bottom) = predictor.labels.ids[detected.label], detected.box
            category = categories[place] if categories else place
            box = [left, top, right - left, bottom - top]
            found.append({"image_id": number, "category_id": category, "bbox": box, "score": detected.score})
    return found


def image_ids(names: list[str], data: DetectData, report: Callable[[str], None]) -> list[int]:
    """The ids of images: of the run's annotations, the numbers that are their names, or their order from 1."""
    bases = [PurePosixPath(name).name for name in names]
    for split in FIRST:
        known = image_numbers(getattr(data, split))
        if bases and all(base in known for base in bases):
            return [known[base] for base in bases]
    stems = [PurePosixPath(base).stem for base in bases]
    if all(stem.isdecimal() for stem in stems) and len({*map(int, stems)}) == len(stems):
        return [int(stem) for stem in stems]
    report("no annotation knows these images; their ids are their order from 1 (--coco)")
    return list(range(1, len(names) + 1))
