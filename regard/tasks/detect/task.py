"""Detection: the objects in an image, each with a label, a score and a box."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from ...config.data.base import DataFiles
from ...config.data.images import DetectData, ImageData
from ...config.run import Run, change_settings, changed_decode
from ...data.datasets.boxes import BoxDataset, ObjectsField
from ...data.loading.loader import Loader
from ...data.source import Source
from ...data.sources.boxes import Objects, box_source, boxed_images, label_counts, load_image
from ...data.sources.images import LABELED_IMAGES
from ...decode.engine.answer import Emit
from ...decode.engine.jobs import Forward, Head, ModelCall, Program, Read
from ...device import resolve_device
from ...errors import UserError
from ...families.protocols import BoxModel, as_module
from ...look import AttentionView, Which, record_layers
from ...messages.labels import DetectedObject, DetectRequest, DetectResult
from ...messages.media import Image, Item
from ...metrics.detection import MOST, detection_metrics
from ...modalities.axes import image_axis, query_axis
from ...parts import Detections, Inputs
from ...processors.base import Processor
from ...processors.boxes import BoxProcessor
from ...processors.image.box_window import BoxWindow
from ...processors.image.processor import ImageProcessor
from ...processors.image.read import RawImage
from ...processors.labels import LabelProcessor, LabelSet
from ...processors.saved import load_processors
from ...synthetic.scenes import make_scenes
from ..base import (
    Metrics,
    Processors,
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
from ..label.embedding import refuse_target
from ..label.results import unseen_labels
from ..notices import require_finite, uniform_image
from ..predictor import Predictor
from ..reading import FileItems, ItemReader
from ..task import Task
from .objective import DetectionObjective, LossMeter
from .objects import FoundObjects, SizedImage, find_objects, image_detections, image_objects, stack_detections
from .settings import DetectDecode, DetectRun

TASK = Task("detect", frozenset({"pixels"}), "boxes")
IMAGE_WINDOW = 32  # images that are in memory at once: they are large
LOSS_IMAGES = 8  # whose loss is computed together
IMAGE, BOXES, LABEL = "image", "boxes", "label"  # the fields of an example

R = TypeVar("R")


class DetectPredictor(Predictor[RawImage, DetectRequest, DetectResult]):
    """The objects in every image: a path, bytes, a Pillow image, an array or a tensor."""

    run: DetectRun
    request_type, result_type = DetectRequest, DetectResult
    model: BoxModel

    def __init__(
        self,
        run: DetectRun,
        model: BoxModel,
        image: ImageProcessor,
        boxes: BoxProcessor,
        labels: LabelSet,
        device: torch.device,
    ) -> None:
        self.run, self.image, self.boxes, self.labels, self.device = run, image, boxes, labels, device
        self.model = model.to(device).eval()
        self.window = max(IMAGE_WINDOW, run.decode.batch)

    @cached_property
    def head(self) -> Head[FoundObjects]:
        """The pass for objects."""
        return self.image_head(image_objects)

    @cached_property
    def loss_head(self) -> Head[Detections]:
        """The pass for all that the queries answer."""
        return self.image_head(image_detections)

    def image_head(self, call: Callable[[BoxModel, Inputs], list[R]]) -> Head[R]:
        """A pass for images of one size: padding would change features of frozen norms."""
        return Head(self.image.collate, call, self.image.cost, equal_shapes=True, tokens=0)

    @property
    def processors(self) -> dict[str, Processor]:
        return {IMAGE: self.image, BOXES: self.boxes, LABEL: LabelProcessor(self.labels)}

    # --- requests ----------------------------------------------------------------------------------------------

    def requests(self, items: Iterable[RawImage], details: bool = False, **decode: object) -> list[DetectRequest]:
        settings = self.decode_settings(decode) if decode else None
        threshold, top = (settings.threshold, settings.top) if settings else (None, None)
        return [DetectRequest(Image(image), threshold, top) for image in items]

    async def answer(self, request: DetectRequest, emit: Emit | None = None) -> DetectResult:
        given = {name: getattr(request, name) for name in ("threshold", "top") if getattr(request, name) is not None}
        decode = self.decode_settings(given) if given else self.run.decode
        image: SizedImage = await Read(self.read_images, request.image.raw)
        objects = self.objects(await Forward(self.head, image.pixels), image, decode.top)
        likely = tuple(one for one in objects if one.score >= decode.threshold)
        notices = uniform_image(self.image.is_uniform(image.pixels))
        return DetectResult(image.width, image.height, likely, notices=notices)

    def read_images(self, images: Sequence[RawImage]) -> list[SizedImage]:
        """Upright images as pixels, with their original sizes."""
        opened = (load_image(image, self.image.background) for image in images)
        return [SizedImage(image.width, image.height, self.image.encode(image)) for image in opened]

    def objects(self, found: FoundObjects, image: SizedImage, top: int) -> list[DetectedObject]:
        """The `top` objects of an image, 0 for all, with any score, the likeliest first."""
        require_finite([float(found.scores.sum()), float(found.boxes.sum())])
        order = found.scores.sort(descending=True, stable=True).indices[: top or None]
        limits = torch.tensor([image.width, image.height] * 2, dtype=torch.float32)
        boxes = (found.boxes[order] * limits).clamp(min=0).minimum(limits)
        table = zip(found.labels[order].tolist(), found.scores[order].tolist(), boxes.tolist(), strict=True)
        return [DetectedObject(self.labels.names[label], score, tuple(box)) for label, score, box in table]

    def plain_result(self, request: DetectRequest, result: DetectResult) -> DetectResult:
        return result

    def is_item(self, x: object) -> bool:
        return Image.accepts(x)

    @property
    def item_reader(self) -> ItemReader:
        """Files of images; their objects are printed as records."""
        images = partial(LABELED_IMAGES.items, data=ImageData(invalid=self.run.data.invalid))
        return replace(super().item_reader, files=FileItems(images, as_records=True))

    def look_item(self, item: Item) -> Image:
        return item.value_as(Image)

    async def view(self, item: RawImage | Image, target: str | None = None, layer: Which = None) -> AttentionView:
        """The attention weights of the feature map and of the object queries."""
        refuse_target(target, "image")
        raw = item.raw if isinstance(item, Image) else item
        pixels = self.image.encode_bytes(load_image(raw, self.image.background))

        def record(model: Any) -> AttentionView:
            with record_layers(as_module(model), layer) as recorder:
                (found,) = image_objects(model, self.image.collate([pixels]).to(self.device))
            require_finite([float(found.scores.sum()), float(found.boxes.sum())])
            names = [self.labels.names[number] for number in found.labels.tolist()]
            axes = {
                "source": image_axis(model, pixels, recorder.keys("cross")),
                "target": query_axis(pixels, names, found.scores.tolist(), found.boxes.clamp(0, 1).tolist()),
            }
            return AttentionView.recorded(recorder, axes, view_title(self.run))

        call: ModelCall[AttentionView] = ModelCall(record)
        return await call

    def decode_settings(self, decode: Mapping[str, object]) -> DetectDecode:
        """The run's decode.*, changed by `decode`."""
        settings = changed_decode(self.run, decode)
        return settings

    # --- evaluation --------------------------------------------------------------------------------------------

    def evaluate_with_outputs(self, files: DataFiles | None = None) -> tuple[Metrics, None, list[Objects]]:
        """The metrics of `evaluate`, and the objects of the data."""
        examples = data_split(self.run, "test", files)
        examples.require_nonempty("data.test")
        meter, predictions, truths = self.loss_over(examples)
        metrics = {"examples": len(truths), "objects": sum(len(truth.labels) for truth in truths), "loss": meter.loss}
        unseen = unseen_labels(self.labels, [label for truth in truths for label in truth.labels])
        return metrics | detection_metrics(truths, predictions) | unseen, None, truths

    def loss_over(self, examples: Source) -> tuple[LossMeter, list[list[DetectedObject]], list[Objects]]:
        """The loss, the 100 likeliest objects of each image, and the true ones."""
        meter, truths = LossMeter(self.labels), list[Objects]()
        measured: list[tuple[Detections, Objects]] = []  # images whose loss is computed together

        def add_loss() -> None:
            if measured:
                detections, objects = zip(*measured, strict=True)
                meter.add(stack_detections(detections), objects)
                measured.clear()

        async def measure(raw: RawImage, truth: Objects) -> list[DetectedObject]:
            image = await Read(self.read_images, raw)
            detections = await Forward(self.loss_head, image.pixels)
            measured.append((detections, truth))
            if len(measured) == LOSS_IMAGES:
                add_loss()
            (found,) = find_objects(detections, [(1, 1)], -1.0)
            return self.objects(found, image, MOST)

        def programs() -> Iterator[Program[list[DetectedObject]]]:
            for index in range(len(examples)):
                raw, truth = examples[index]
                truths.append(truth)
                yield measure(raw, truth)

        predictions = self.run_programs(programs())
        add_loss()
        return meter, predictions, truths


class DetectJob(TrainingJob):
    """Images with boxes."""

    run: DetectRun
    predictor: DetectPredictor
    splits: Mapping[str, Source]

    def __init__(self, predictor: DetectPredictor, splits: dict[str, Source]) -> None:
        self.predictor, self.run, self.splits = predictor, predictor.run, splits
        data: DetectData = self.run.data
        self.objective = DetectionObjective(as_module(predictor.model), len(predictor.labels))
        window = BoxWindow(predictor.image, data.scale, data.stretch, data.visible, data.flip, data.upside)
        target, queries = ObjectsField(predictor.boxes, LabelProcessor(predictor.labels)), self.run.model.queries
        self.loader = Loader.of(BoxDataset(splits["train"], window, target, data, self.run.train, queries))

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
        limits = f"the shorter side with {image.resize} pixels and the longer with at most {image.max_size}"
        size = limits if image.resize else "in their own size"
        return [f"images: read as by the start, {size}; data.size, data.max_size, data.mean and data.std are not used"]


# --- construction --------------------------------------------------------------------------------------------------


def prepare(run: DetectRun, processors: Processors, device: torch.device, folder: Path | None = None) -> DetectJob:
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
    image = (
        replace(image, color=new.color, erase=new.erase, background=new.background)
        if isinstance(image, ImageProcessor)
        else new
    )
    boxes = BoxProcessor(categories=tuple(source.categories[label] for label in labels))
    run = with_model_settings(run, labels=len(labels))
    predictor = DetectPredictor(run, build_model(run), image, boxes, labels, device)
    return DetectJob(predictor, splits)


def image_processor(data: DetectData) -> ImageProcessor:
    """The processor of images: the shorter side has data.size pixels, unless the longer one exceeds data.max_size."""
    return ImageProcessor(
        resize=data.size, crop=0, max_size=data.max_size, resample="bilinear", mean=data.mean, std=data.std, patch=1,
        scale=(1.0, 1.0), flip=False, color=data.color, erase=data.erase,
        background=data.background,
    )  # fmt: skip


def restore(run: DetectRun, folder: Path, device: torch.device) -> DetectPredictor:
    """The predictor of a run folder, without the weights."""
    processors = load_processors(folder)
    image, boxes, labels = processors.get(IMAGE), processors.get(BOXES), find_labels(processors, LABEL)
    if not isinstance(image, ImageProcessor) or not isinstance(boxes, BoxProcessor) or labels is None:
        raise UserError(f"{folder} lacks its processor of images, boxes or labels; restore it, or train the run again")
    return DetectPredictor(run, build_model(run), image, boxes, labels, device)


def from_folder(folder: PretrainedImages[BoxModel], overrides: Mapping[str, object]) -> DetectPredictor:
    """The predictor of a Hugging Face folder."""
    run: DetectRun = change_settings(Run(task="detect", model=folder.config), overrides)
    labels = LabelSet(dict.fromkeys(folder.labels, 0))
    return DetectPredictor(run, folder.model, folder.image, BoxProcessor(), labels, resolve_device(run.device))


def size_without_data(run: DetectRun) -> DetectRun:
    """The run with the sizes of a model without data."""
    return with_model_settings(run, labels=run.model.labels or 2)


def data_split(run: DetectRun, split: str, files: DataFiles | None = None) -> Source:
    """A split of the data; the embedded data are scenes of shapes."""
    data = run.data
    embedded = lambda: make_scenes(data.examples)[split]  # noqa: E731
    return open_split(run, split, files, lambda files: boxed_images(files, data), embedded, "images/,test.json")
