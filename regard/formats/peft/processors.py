"""The processors of a PEFT folder: the image processor and labels of its run, and the labels of its base.

A label that was renamed in the base since the export (id2label in config.json) is detected and not silently undone.
"""

from pathlib import Path

from ...config.run_folder import is_run
from ...errors import UserError
from ...files import read_json, write_json
from ...processors.image.processor import ImageProcessor
from ...processors.labels import LabelSet
from ...processors.saved import export_processors, imported_labels, imported_processor, load_processors, saved_labels
from ...tasks.caption.task import CaptionPredictor
from ...tasks.classify.task import ClassifyPredictor, MultiLabelPredictor
from ...tasks.classify_image.task import ClassifyImagePredictor
from ...tasks.contrastive.task import ContrastivePredictor
from ...tasks.detect.task import DetectPredictor
from ...tasks.predictor import AnyPredictor
from ...tasks.tag.task import TagPredictor
from ..huggingface.folder import folder_config, format_of_config
from ..huggingface.labels import label_names

BASE_LABELS = "base_labels.json"
WITH_LABELS = ClassifyPredictor, MultiLabelPredictor, TagPredictor, ClassifyImagePredictor, DetectPredictor


def restore_processors(predictor: AnyPredictor, folder: Path) -> None:
    """Give the predictor of a base the labels and the image processor of an adapter, if its folder has them."""
    if isinstance(predictor, WITH_LABELS):
        predictor.labels = adapter_labels(folder, predictor.labels)
    image = imported_processor(folder, ImageProcessor.kind)
    if not isinstance(image, ImageProcessor):
        return
    if isinstance(predictor, ContrastivePredictor):
        predictor.source, predictor.media = image, predictor.pairs.modality(image)
    elif isinstance(predictor, CaptionPredictor | ClassifyImagePredictor | DetectPredictor):
        predictor.image = image


def write_processors(predictor: AnyPredictor, folder: Path) -> None:
    """Write the processors of a run, and the labels of its base if it has any and is still there."""
    export_processors(folder, predictor.processors)
    if isinstance(predictor, WITH_LABELS) and (names := base_labels(Path(predictor.run.start))):
        write_json(folder / BASE_LABELS, names)


def base_labels(base: Path) -> list[str]:
    """The labels of the base of an adapter."""
    if is_run(base):
        labels = saved_labels(load_processors(base).values())
        return labels.names if labels else []
    if not (base / "config.json").is_file() or not getattr(c := folder_config(base), "labels", 0):
        return []
    read = getattr(format_of_config(c).processors, "labels", label_names)  # a DETR has ids without a name
    return list(read(read_json(base / "config.json")))


def adapter_labels(folder: Path, base: LabelSet) -> LabelSet:
    """The labels of an adapter over a base that has these. Labels that the base renamed keep their new names."""
    labels = imported_labels(folder)
    if labels is None or len(labels) != len(base):
        return base
    base_names = read_json(folder / BASE_LABELS, list) if (folder / BASE_LABELS).is_file() else base.names
    if base.names in (labels.names, base_names):
        return labels
    if labels.names == base_names:
        return base
    raise UserError(
        f"the base names its labels {', '.join(base.names)} (before: {', '.join(map(str, base_names))}) and {folder} "
        f"names them {', '.join(labels.names)}; use the same names in both, or remove {folder / BASE_LABELS}"
    )
