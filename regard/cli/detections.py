"""Detections on the command line: the COCO result array, and drawings."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..files import atomic_write, json_line
from .files import Output, free_name
from .inputs import InputFile
from .writers import RecordWriter, ResultWriter, SeveralWriters, write_results

if TYPE_CHECKING:
    from ..formats.coco_results import Row
    from ..tasks.detect.task import DetectPredictor


def check_outputs(coco: Path | None, draw: Path | None) -> None:
    """Refuse paths that cannot be written, before any work."""
    if coco is not None and (coco.is_dir() or not coco.parent.is_dir() or coco.suffix != ".json"):
        raise UserError(f"--coco {coco} cannot be written; give a .json file in an existing folder")
    if draw is not None and (draw.is_file() or not draw.parent.is_dir()):
        raise UserError(f"--draw {draw} cannot be a folder for drawings; give a new folder in an existing one")


class CocoWriter(ResultWriter):
    """All objects as a COCO result array, in a file that appears when it is complete."""

    def __init__(self, predictor: "DetectPredictor", path: Path) -> None:
        self.predictor, self.path = predictor, path
        self.rows: list[Row] = []

    def write(self, output: Output) -> None:
        self.rows.append((output.entry.name, output.result))

    def end(self) -> None:
        from ..formats.coco_results import coco_results

        with atomic_write(self.path) as draft:
            draft.write_text(json_line(coco_results(self.rows, self.predictor, _report)) + "\n", encoding="utf-8")


class DrawingWriter(ResultWriter):
    """A drawing of every image with its objects, in a folder."""

    def __init__(self, predictor: "DetectPredictor", folder: Path) -> None:
        self.predictor, self.folder = predictor, folder
        self.names: set[str] = set()

    def write(self, output: Output) -> None:
        from ..data.sources.boxes import load_image
        from ..look.draw import draw_objects

        self.folder.mkdir(exist_ok=True)
        with atomic_write(self.folder / free_name(output.entry.name, self.names, ".png")) as draft:
            image = load_image(output.entry.item, self.predictor.image.background)
            draw_objects(image, output.result.objects, self.predictor.labels.names).save(draft, "PNG")


class LikelyObjects(SeveralWriters):
    """Writes the objects above a score alone."""

    def __init__(self, writers: Sequence[ResultWriter], threshold: float) -> None:
        super().__init__(writers)
        self.threshold = threshold

    def write(self, output: Output) -> None:
        objects = tuple(detected for detected in output.result.objects if detected.score >= self.threshold)
        super().write(output._replace(result=replace(output.result, objects=objects)))


def save_detections(
    predictor: Any, sources: Iterable[InputFile], threshold_given: bool, coco: Path | None, draw: Path | None
) -> None:
    """Print a JSON object for every image, write all objects to `coco` and draw those above decode.threshold.

    `coco` gets every object, whatever its score, as average precision needs them, unless decode.threshold is given.
    """
    if predictor.run.task != "detect":
        raise UserError(f"--coco and --draw are for runs of the task detect, and this one is of {predictor.run.task}")
    threshold = predictor.run.decode.threshold
    if coco is not None and not threshold_given:
        decode = predictor.run.decode.model_copy(update={"threshold": 0.0})
        predictor.run = predictor.run.model_copy(update={"decode": decode})
    drawings = [] if draw is None else [DrawingWriter(predictor, draw)]
    arrays = [] if coco is None else [CocoWriter(predictor, coco)]
    write_results(predictor, sources, SeveralWriters([LikelyObjects([RecordWriter(), *drawings], threshold), *arrays]))


def _report(line: str) -> None:
    print(f"regard: {line}", file=sys.stderr)
