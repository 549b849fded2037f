"""Detections on the command line: the COCO result array, and drawings."""

import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..files import atomic_write, json_line
from ..messages.base import to_json
from .files import file_results, free_name
from .inputs import InputFile

if TYPE_CHECKING:
    from ..formats.coco_results import Row
    from ..messages.labels import DetectResult
    from ..tasks.detect.task import DetectPredictor


def check_outputs(coco: Path | None, draw: Path | None) -> None:
    """Refuse paths that cannot be written, before any work."""
    if coco is not None and (coco.is_dir() or not coco.parent.is_dir() or coco.suffix != ".json"):
        raise UserError(f"--coco {coco} cannot be written; give a .json file in an existing folder")
    if draw is not None and (draw.is_file() or not draw.parent.is_dir()):
        raise UserError(f"--draw {draw} cannot be a folder for drawings; give a new folder in an existing one")


def save_detections(
    predictor: Any, sources: Iterable[InputFile], threshold_given: bool, coco: Path | None, draw: Path | None
) -> None:
    """Print a JSON object for every image, write all objects to `coco` and draw those above decode.threshold.

    `coco` gets every object, whatever its score, as average precision needs them, unless decode.threshold is given.
    """
    from ..formats.coco_results import coco_results

    if predictor.run.task != "detect":
        raise UserError(f"--coco and --draw are for runs of the task detect, and this one is of {predictor.run.task}")
    threshold = predictor.run.decode.threshold
    if coco is not None and not threshold_given:
        decode = predictor.run.decode.model_copy(update={"threshold": 0.0})
        predictor.run = predictor.run.model_copy(update={"decode": decode})
    rows: list[Row] = []
    names: set[str] = set()
    for entry, _, result in file_results(predictor, sources):
        if isinstance(result, UserError):
            print(f"regard: {result}", file=sys.stderr)
            print(json_line({"path": entry.name, "error": str(result)}), flush=True)
            continue
        rows.append((entry.name, result))
        visible = replace(result, objects=tuple(detected for detected in result.objects if detected.score >= threshold))
        print(json_line({"path": entry.name, **to_json(visible)}), flush=True)
        if draw is not None:
            _save_drawing(draw / free_name(entry.name, names, ".png"), entry.item, visible, predictor)
    if coco is not None:
        with atomic_write(coco) as draft:
            draft.write_text(json_line(coco_results(rows, predictor, _report)) + "\n", encoding="utf-8")


def _save_drawing(path: Path, raw: Any, result: "DetectResult", predictor: "DetectPredictor") -> None:
    from ..data.sources.boxes import load_image
    from ..look.draw import draw_objects

    path.parent.mkdir(exist_ok=True)
    with atomic_write(path) as draft:
        drawn = draw_objects(load_image(raw), result.objects, predictor.labels.names)
        drawn.save(draft, "PNG")


def _report(line: str) -> None:
    print(f"regard: {line}", file=sys.stderr)
