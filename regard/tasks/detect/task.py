"""Detection: the objects in an image, each with a label, a score and a box."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...config.data.base import DataFiles
from ...config.data.images import DetectData, ImageData
from ...config.run import Run, change_settings, changed_decode
from ...data.datasets.boxes import BoxDataset
from ...data.loading.loader import Loader
from ...data.source import Source
from ...data.sources.boxes import Objects, box_source, boxed_images, label_counts, load_image
from ...data.sources.images import open_images
from ...device import resolve_device
from ...errors import UserError
from ...families.protocols import BoxModel, as_module
from ...files import json_line
from ...look import AttentionView, Which, record_layers
from ...metrics.detection import detection_metrics
from ...modalities.axes import image_axis, query_axis
from ...parts import Detections
from ...parts.media.boxes import corners
from ...processors.base import Processor
from ...processors.boxes import BoxProcessor
from ...processors.fields import Fields
from ...processors.image.box_window import BoxWindow
from ...processors.image.processor import ImageProcessor
from ...processors.image.read import RawImage, is_image
from ...processors.labels import LabelProcessor, LabelSet
from ...processors.saved import load_processors
from ...synthetic.scenes import make_scenes
from ..base import (
    Metrics,
    Processors,
    Record,
    TrainingJob,
    build_model,
    describe_labels,
    find_labels,
    open_split,
    open_splits,
    view_title,
    with_model_settings,
)
from ..classify_image.task import PretrainedImages
from ..notices import require_finite
from ..predictor import Predictor
from ..requests import DetectedObject, DetectRequest, DetectResult
from ..task import Task
from .objective import DetectionObjective, LossMeter
from .settings import DetectDecode

TASK = Task("detect", frozenset({"pixels"}), "boxes", DetectRequest, DetectResult)
IMAGE, BOXES, LABEL = "image", "boxes", "label"  # the fields of an example


class DetectPredictor(Predictor[RawImage, DetectRequest, DetectResult]):
    """The objects in every image: a path, bytes, a Pillow image, an array or a tensor."""

    model: BoxModel
    prints_records = True

    def __init__(
        self,
        run: Run,
        model: BoxModel,
        image: ImageProcessor,
        boxes: BoxProcessor,
        labels: LabelSet,
        device: torch.device,
    ) -> None:
        self.run, self.image, self.boxes, self.labels, self.device = run, image, boxes, labels, device
        self.model = model.to(device).eval()

    @property
    def processors(self) -> dict[str, Processor]:
        return {IMAGE: self.image, BOXES: self.boxes, LABEL: LabelProcessor(self.labels)}

    # --- public methods ----------------------------------------------------------------------------------------

    def requests(self, items: Iterable[RawImage], details: bool = False, **decode: object) -> list[DetectRequest]:
        settings = self.decode_settings(decode) if decode else None
        threshold, top = (settings.threshold, settings.top) if settings else (None, None)
        return [DetectRequest(image, threshold, top) for image in items]

    def predict_batch(self, requests: Sequence[DetectRequest], batch: int | None = None) -> list[DetectResult]:
        size, results = batch or self.run.decode.batch, list[DetectResult]()
        for first in range(0, len(requests), size):  # so that few images are in memory
            group = requests[first : first + size]
            images = [load_image(request.image) for request in group]
            for objects, image, request in zip(self.detect(images, size), images, group, strict=True):
                results.append(DetectResult(self._select_objects(objects, request), *image.size))
        return results

    def record(self, request: DetectRequest, result: DetectResult) -> Record:
        objects = [
            {"label": detected.label, "score": detected.score, "box": list(detected.box)} for detected in result.objects
        ]
        return {"width": result.width, "height": result.height, "objects": objects}

    def plain_result(self, request: DetectRequest, result: DetectResult) -> DetectResult:
        return result

    def is_item(self, x: object) -> bool:
        return is_image(x)

    def open_items(self, name: str) -> Iterator[tuple[str, RawImage]]:
        """The images in a file, a folder, an archive or a table of paths."""
        return open_images(name, ImageData(invalid=self.run.data.invalid))

    def format_line(self, name: str, request: DetectRequest, result: DetectResult) -> str:
        """The path and its objects, as JSON."""
        return json_line({"path": name, **self.record(request, result)})

    def look(self, text: RawImage, target: str | None = None, layer: Which = None) -> AttentionView:
        """The attention weights of the feature map and of the object queries."""
        if target is not None:
            raise UserError("this model generates no text, so it takes no target; give the image alone")
        pixels = self.image.encode_bytes(load_image(text))
        with record_layers(self.module, layer) as recorder:
            detections = self.model.detect(self.image.collate([pixels]).to(self.device))
        (objects,) = find_objects(detections, [(1, 1)], -1.0)  # boxes in shares of the image
        require_finite([float(objects.scores.sum()), float(objects.boxes.sum())])
        names = [self.labels.names[number] for number in objects.labels.tolist()]
        axes = {
            "source": image_axis(self.model, pixels, recorder.keys("cross")),
            "target": query_axis(pixels, names, objects.scores.tolist(), objects.boxes.clamp(0, 1).tolist()),
        }
        return AttentionView.recorded(recorder, axes, view_title(self.run))

    def evaluate_with_outputs(self, files: DataFiles | None = None) -> tuple[Metrics, None, list[Objects]]:
        """The metrics of `evaluate`, and the objects of the data."""
        examples = data_split(self.run, "test", files)
        examples.require_nonempty("data.test")
        meter, predictions, truths = self.loss_over(examples)
        metrics = {"examples": len(truths), "objects": sum(len(truth.labels) for truth in truths), "loss": meter.loss}
        unseen = Counter(label for truth in truths for label in truth.labels if label not in self.labels.ids)
        listed = ", ".join(f"{label} ({count})" for label, count in unseen.items())
        return (
            metrics | detection_metrics(truths, predictions) | ({"unseen_labels": listed} if listed else {}),
            None,
            truths,
        )

    # --- internals ---------------------------------------------------------------------------------------------

    def decode_settings(self, decode: Mapping[str, object]) -> DetectDecode:
        """The run's decode.*, changed by `decode`."""
        settings: DetectDecode = changed_decode(self.run, decode)
        return settings

    def _select_objects(self, objects: Sequence[DetectedObject], request: DetectRequest) -> tuple[DetectedObject, ...]:
        default = self.run.decode
        threshold = default.threshold if request.threshold is None else request.threshold
        top = default.top if request.top is None else request.top
        return tuple(detected for detected in objects[:top] if detected.score >= threshold)

    def detect(self, images: Sequence[Any], batch: int | None = None) -> list[list[DetectedObject]]:
        """All objects of upright images, with any score; the likeliest first."""
        predictions = list[list[DetectedObject]]()
        for first, arrays in self._batches(images, batch):
            sizes = [image.size for image in images[first : first + len(arrays)]]
            predictions += self._objects(self._run(arrays), sizes)
        return predictions

    def _batches(self, images: Sequence[Any], batch: int | None) -> Iterator[tuple[int, list[Any]]]:
        """The arrays of neighboring images of one size: padding would change features of frozen norms."""
        size, first, arrays = batch or self.run.decode.batch, 0, list[Any]()
        for number, image in enumerate(images):
            array = self.image.encode(image)
            if arrays and (len(arrays) == size or array.shape != arrays[0].shape):
                yield first, arrays
                first, arrays = number, []
            arrays.append(array)
        if arrays:
            yield first, arrays

    @torch.no_grad()
    def _run(self, arrays: Sequence[Any]) -> Any:
        return self.model.detect(self.image.collate(arrays).to(self.device))

    def _objects(self, detections: Any, sizes: Sequence[tuple[int, int]]) -> list[list[DetectedObject]]:
        predictions = []
        for image_objects, (width, height) in zip(find_objects(detections, sizes, -1.0), sizes, strict=True):
            require_finite([float(image_objects.scores.sum()), float(image_objects.boxes.sum())])
            limits = torch.tensor([width, height, width, height])
            order = image_objects.scores.sort(descending=True, stable=True).indices
            table = zip(
                image_objects.labels[order].tolist(),
                image_objects.scores[order].tolist(),
                image_objects.boxes.clamp(min=0).minimum(limits)[order].tolist(),
                strict=True,
            )
            predictions.append(
                [DetectedObject(self.labels.names[label], score, tuple(box)) for label, score, box in table]
            )
        return predictions

    def loss_over(self, examples: Source) -> tuple[LossMeter, list[list[DetectedObject]], list[Objects]]:
        """The loss, the 100 likeliest objects of each image, and the true ones."""
        meter, predictions, truths = LossMeter(self.labels), list[list[DetectedObject]](), list[Objects]()
        size = self.run.decode.batch
        for first in range(0, len(examples), size):
            rows = [examples[index] for index in range(first, min(first + size, len(examples)))]
            images, batch_truths = [load_image(raw) for raw, _ in rows], [objects for _, objects in rows]
            for start, arrays in self._batches(images, None):
                part = batch_truths[start : start + len(arrays)]
                detections = self._run(arrays)
                meter.add(detections, part)
                sizes = [image.size for image in images[start : start + len(arrays)]]
                predictions += [image_objects[:100] for image_objects in self._objects(detections, sizes)]
            truths += batch_truths
        return meter, predictions, truths


class DetectJob(TrainingJob):
    """Images with boxes."""

    predictor: DetectPredictor
    splits: Mapping[str, Source]

    def __init__(self, predictor: DetectPredictor, splits: dict[str, Source]) -> None:
        self.predictor, self.run, self.splits = predictor, predictor.run, splits
        data: DetectData = self.run.data
        self.objective = DetectionObjective(as_module(predictor.model), len(predictor.labels))
        window = BoxWindow(predictor.image, data.scale, data.stretch, data.visible, data.flip, data.upside)
        fields = Fields(predictor.processors, window)
        self.loader = Loader.of(BoxDataset(splits["train"], fields, data, self.run.train, self.run.model.queries))

    def validate(self) -> dict[str, float]:
        if "valid" not in self.splits:
            return {}
        meter, predictions, truths = self.predictor.loss_over(self.splits["valid"])
        metrics = detection_metrics(truths, predictions)
        return {"loss": meter.loss, "ap": metrics.get("ap", 0.0), "ap50": metrics.get("ap50", 0.0)}

    def describe_data(self) -> list[str]:
        labels = (f"{name}: {describe_labels(label_counts(examples))}" for name, examples in self.splits.items())
        return [*super().describe_data(), *labels, *self._size_fact()]

    def _size_fact(self) -> list[str]:
        """A fact about the image size of a start, if it differs from data.size."""
        image, data = self.predictor.image, self.run.data
        if (image.resize, image.max_size) == (data.size, data.max_size):
            return []
        return [
            f"images: read as by the start, the shorter side with {image.resize} pixels and the longer with at most "
            f"{image.max_size}; data.size, data.max_size, data.mean and data.std are not used"
        ]


# --- construction --------------------------------------------------------------------------------------------------


def prepare(run: Run, processors: Processors, device: torch.device, folder: Path | None = None) -> DetectJob:
    """Open the data and collect the labels; writes no file."""
    splits = open_splits(run, data_split)
    source = box_source(splits["train"])
    labels = source.labels
    if not len(labels):
        raise UserError(f"data.train: {source.name} has no box to learn from; give images with boxes")
    saved_labels = find_labels(processors, LABEL)
    labels = labels.in_order_of(saved_labels) if saved_labels else labels
    image = processors.get(IMAGE)
    new = image_processor(run.data)
    image = replace(image, color=new.color, erase=new.erase) if isinstance(image, ImageProcessor) else new
    boxes = BoxProcessor(categories=tuple(source.categories[label] for label in labels))
    run = with_model_settings(run, labels=len(labels))
    predictor = DetectPredictor(run, build_model(run), image, boxes, labels, device)
    return DetectJob(predictor, splits)


def image_processor(data: DetectData) -> ImageProcessor:
    """The processor of images: the shorter side has data.size pixels, unless the longer one exceeds data.max_size."""
    return ImageProcessor(
        resize=data.size, crop=0, max_size=data.max_size, resample="bilinear", mean=data.mean, std=data.std, patch=1,
        scale=(1.0, 1.0), flip=False, color=data.color, erase=data.erase,
    )  # fmt: skip


def restore(run: Run, folder: Path, device: torch.device) -> DetectPredictor:
    """The predictor of a run folder, without the weights."""
    processors = load_processors(folder)
    image, boxes, labels = processors.get(IMAGE), processors.get(BOXES), find_labels(processors, LABEL)
    if not isinstance(image, ImageProcessor) or not isinstance(boxes, BoxProcessor) or labels is None:
        raise UserError(f"{folder} lacks its processor of images, boxes or labels; restore it, or train the run again")
    return DetectPredictor(run, build_model(run), image, boxes, labels, device)


def from_folder(folder: PretrainedImages, overrides: Mapping[str, object]) -> DetectPredictor:
    """The predictor of a Hugging Face folder."""
    run = change_settings(Run(task="detect", model=folder.config), overrides)
    labels = LabelSet(dict.fromkeys(folder.labels, 0))
    return DetectPredictor(run, folder.model, folder.image, BoxProcessor(), labels, resolve_device(run.device))


def size_without_data(run: Run) -> Run:
    """The run with the sizes of a model without data."""
    return with_model_settings(run, labels=run.model.labels or 2)


def data_split(run: Run, split: str, files: DataFiles | None = None) -> Source:
    """A split of the data; the embedded data are scenes of shapes."""
    data = run.data
    embedded = lambda: make_scenes(data.examples)[split]  # noqa: E731
    return open_split(run, split, files, lambda files: boxed_images(files, data), embedded, "images/,test.json")


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
