"""Classification of images: one label for an image."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from ...config.data.base import DataFiles
from ...config.data.images import SquareImages
from ...config.run import Run, change_settings, changed_decode
from ...config.types import Base
from ...data.datasets.mixed_images import MixedImages
from ...data.loading.loader import Loader
from ...data.source import Source
from ...data.sources.images import labeled_images, open_images
from ...device import resolve_device
from ...errors import UserError
from ...families.protocols import LabelModel, as_module
from ...look import AttentionView, Which, record_layers
from ...metrics.labels import label_metrics, paired_accuracy_bootstrap
from ...modalities.axes import image_axis
from ...parts import Encoded, Inputs
from ...parts.pooling import pool
from ...processors.base import Processor
from ...processors.fields import Fields
from ...processors.image.processor import ImageProcessor
from ...processors.image.read import RawImage, is_image
from ...processors.labels import LabelProcessor, LabelSet, collect_labels
from ...processors.saved import load_processors
from ...progress import track
from ...synthetic.digits import make_digits
from ..base import (
    Metrics,
    Processors,
    Record,
    build_model,
    find_labels,
    open_split,
    open_splits,
    view_title,
    with_model_settings,
)
from ..label.embedding import EmbeddingPredictor
from ..label.results import LabelJob, LabelSetMixin, example_labels, label_set
from ..notices import require_finite
from ..objectives import ImageObjective
from ..predictor import PlainResult
from ..records import label_record
from ..requests import ClassifyImageRequest, ClassifyResult
from ..task import Task
from .settings import ImageDecode

TASK = Task("classify-image", frozenset({"pixels"}), "label", ClassifyImageRequest, ClassifyResult)
IMAGE, LABEL = "image", "label"  # the fields of an example
ONE_LABEL = "give a folder with one folder for each class, or a table with the columns path and label"


class ClassifyImagePredictor(LabelSetMixin, EmbeddingPredictor[RawImage, ClassifyImageRequest, ClassifyResult]):
    """The label of every image: a path, bytes, a Pillow image or an array. decode.top gives that many labels."""

    model: LabelModel
    item_name = "image"
    paired_test = staticmethod(paired_accuracy_bootstrap)

    def __init__(
        self, run: Run, model: LabelModel, image: ImageProcessor, labels: LabelSet, device: torch.device
    ) -> None:
        self.run, self.image, self.labels, self.device = run, image, labels, device
        self.model = model.to(device).eval()

    @property
    def processors(self) -> dict[str, Processor]:
        return {IMAGE: self.image, LABEL: LabelProcessor(self.labels)}

    # --- public methods ----------------------------------------------------------------------------------------

    def requests(
        self, items: Iterable[RawImage], details: bool = False, **decode: object
    ) -> list[ClassifyImageRequest]:
        top = self.decode_settings(decode).top if decode else None
        return [ClassifyImageRequest(image, top) for image in items]

    def predict_batch(self, requests: Sequence[ClassifyImageRequest], batch: int | None = None) -> list[ClassifyResult]:
        logprobs = self.label_logprobs([request.image for request in requests], batch)
        require_finite([float(row.sum()) for row in logprobs])
        ranked = [self.ranked_labels(row, self.top(request)) for row, request in zip(logprobs, requests, strict=True)]
        return [ClassifyResult(labels[0].label, labels[0].probability, labels) for labels in ranked]

    def record(self, request: ClassifyImageRequest, result: ClassifyResult) -> Record:
        return label_record(result)

    def plain_result(self, request: ClassifyImageRequest, result: ClassifyResult) -> ClassifyResult:
        return result

    def is_item(self, x: object) -> bool:
        return is_image(x)

    def open_items(self, name: str) -> Iterator[tuple[str, RawImage]]:
        """The images in a file, a folder, an archive or a table of paths."""
        return open_images(name, self.run.data)

    def format_line(self, name: str, request: ClassifyImageRequest, result: ClassifyResult) -> str:
        """The path and its labels."""
        labels = result.top[: self.top(request) or 1]
        return "\t".join([name, *(f"{label.label}\t{label.probability:.4f}" for label in labels)])

    def embed(self, images: "RawImage | Iterable[RawImage]", /, **decode: object) -> Tensor:
        """A vector for every image, (images, width); one image gives one vector."""
        if is_image(images):
            return self.embed([images], **decode)[0]  # type: ignore[list-item]
        settings, pooling = self.decode_settings(decode), self.run.model.pool
        pooled = self.map_encoded([*images], lambda out: pool(out.states, out.valid, pooling, settings.normalize))  # type: ignore[misc]
        return torch.stack(pooled) if pooled else torch.zeros(0, self.run.model.width)

    def score(self, images: Any, labels: Any = None, details: bool = False) -> PlainResult:
        """ln P(label | image)"""
        if is_image(images) and isinstance(labels, str):
            return self.score([images], [labels], details)[0]
        if is_image(images) or isinstance(labels, str) or labels is None:
            raise UserError("score takes an image and its label, or a list of each, not one of both")
        images, labels = [*images], [*labels]
        if len(images) != len(labels):
            raise UserError(f"there are {len(images)} images and {len(labels)} labels; give a label for each image")
        ids = self.label_ids(labels)
        values = [float(row[number]) for row, number in zip(self.label_logprobs(images), ids, strict=True)]
        require_finite(values)
        return [{"score": value} for value in values] if details else values

    def state_inputs(self, items: Iterable[RawImage]) -> list[Inputs]:
        """The pixels of each image."""
        return [self.image.collate([array]) for array in self.image.encode_all([*items])]

    def look(self, text: RawImage, target: str | None = None, layer: Which = None) -> AttentionView:
        """The attention weights while the model reads an image."""
        if target is not None:
            raise UserError("this model generates no text, so it takes no target; give the image alone")
        pixels = self.image.encode_bytes(text)
        with record_layers(self.module, layer) as recorder:
            self.model.encode(self.image.collate([pixels]).to(self.device))
        source = image_axis(self.model, pixels, recorder.keys("encoder"))
        return AttentionView.recorded(recorder, {"source": source}, view_title(self.run))

    def evaluate_with_outputs(self, files: DataFiles | None = None) -> tuple[Metrics, list[str], list[str]]:
        """The metrics of `evaluate`, the predicted labels and the reference labels."""
        examples = data_split(self.run, "test", files)
        examples.require_nonempty("data.test")
        references = example_labels(examples)
        self.report_labels(examples, references)
        logprobs = self._logprobs(examples)
        predicted = self.best_labels(logprobs)
        metrics = label_metrics(predicted, references)
        first = {"examples": len(references), "accuracy": metrics["accuracy"], **self.top_k(logprobs, references)}
        metrics = first | metrics
        return metrics | self.majority_baseline(references) | self.unseen_labels(references), predicted, references

    # --- internals ---------------------------------------------------------------------------------------------

    def top(self, request: ClassifyImageRequest) -> int:
        """The number of labels that a request asks for; by default decode.top."""
        return int(self.run.decode.top) if request.top is None else request.top

    def loss_over(self, examples: Source) -> tuple[float, list[str], list[str]]:
        """Nats per image, predicted and reference labels; images with an unseen label are left out."""
        labels = example_labels(examples)
        known = [index for index, label in enumerate(labels) if label in self.labels.ids]
        logprobs, references = self._logprobs(examples, known), [labels[index] for index in known]
        targets = torch.tensor([self.labels.ids[label] for label in references], dtype=torch.long)
        nats = -float(logprobs.gather(1, targets[:, None]).sum())
        return nats / max(len(known), 1), self.best_labels(logprobs), references

    def _logprobs(self, examples: Source, chosen: Sequence[int] | None = None) -> Tensor:
        """(images, labels) of the examples, or of those that are chosen."""
        images = _Images(examples, range(len(examples)) if chosen is None else chosen)
        logprobs = torch.stack(self.label_logprobs(images)) if len(images) else torch.zeros(0, len(self.labels))
        require_finite([float(logprobs.sum())])
        return logprobs

    def label_logprobs(self, images: Sequence[RawImage], batch: int | None = None) -> list[Tensor]:
        """(labels,) of each image."""
        return self.map_encoded(images, lambda encoded: self.model.label_logits(encoded).float().log_softmax(-1), batch)

    @torch.no_grad()
    def map_encoded(
        self, images: Sequence[RawImage], function: Callable[[Encoded], Tensor], batch: int | None = None
    ) -> list[Tensor]:
        """Apply `function` to the encoder's output for each image, in order."""
        size, outputs = batch or self.run.decode.batch, list[Tensor]()
        for first in track(range(0, len(images), size), "batches of images", -(-len(images) // size)):
            arrays = self.image.encode_all(images[first : first + size])
            outputs += function(self.model.encode(self.image.collate(arrays).to(self.device))).float().cpu()
        return outputs

    def decode_settings(self, decode: Mapping[str, object]) -> ImageDecode:
        """The run's decode.*, changed by `decode`."""
        settings: ImageDecode = changed_decode(self.run, decode)
        return settings


class _Images(Sequence[Any]):
    """The images of examples, read when they are needed."""

    def __init__(self, examples: Source, chosen: Sequence[int]) -> None:
        self.examples, self.chosen = examples, chosen

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self.examples[i][0] for i in self.chosen[index]]
        return self.examples[self.chosen[index]][0]


class ClassifyImageJob(LabelJob):
    """Images with one label each."""

    predictor: ClassifyImagePredictor

    def __init__(self, predictor: ClassifyImagePredictor, splits: dict[str, Source]) -> None:
        self.predictor, self.run, self.splits = predictor, predictor.run, splits
        self.objective = ImageObjective(as_module(predictor.model), self.run.train.smoothing)
        self.static_shapes = True
        fields = Fields({IMAGE: predictor.image, LABEL: LabelProcessor(predictor.labels)})
        self.loader = Loader.of(MixedImages(splits["train"], fields, self.run.data, self.run.train))


# --- construction --------------------------------------------------------------------------------------------------


def prepare(run: Run, processors: Processors, device: torch.device, folder: Path | None = None) -> ClassifyImageJob:
    """Open the data and collect the labels; writes no file."""
    splits = open_splits(run, data_split)
    labels = label_set(run, collect_labels(splits["train"], ONE_LABEL), processors, LABEL, splits)
    image = processors.get(IMAGE)
    image = image_processor(run.data, run.model, image if isinstance(image, ImageProcessor) else None)
    run = with_model_settings(run, head="class", labels=len(labels))
    predictor = ClassifyImagePredictor(run, build_model(run), image, labels, device)
    return ClassifyImageJob(predictor, splits)


def image_processor(data: SquareImages, model: Any, start: ImageProcessor | None = None) -> ImageProcessor:
    """The processor of images: squares of data.size pixels, augmented in training by data.*.

    `start` is the processor of a start: its resizing and normalization stay, unless data.* changes them.
    """
    side, default = data.size or model.image, SquareImages()
    image = start or ImageProcessor(resize=side, crop=side)
    return replace(
        _resize_processor(image, side), mean=image.mean if start and data.mean == default.mean else data.mean,
        std=image.std if start and data.std == default.std else data.std, patch=model.patch, scale=(data.crop, 1.0),
        flip=data.flip, color=data.color, randaugment=data.randaugment, strength=data.strength, erase=data.erase,
    )  # fmt: skip


def _resize_processor(image: ImageProcessor, side: int) -> ImageProcessor:
    """The processor for squares of `side` pixels, which resizes and crops in the same proportion."""
    if image.crop:
        lengths = (image.resize,) if isinstance(image.resize, int) else image.resize
        scaled = tuple(round(length * side / image.crop) for length in lengths)
        return replace(image, resize=scaled[0] if isinstance(image.resize, int) else (scaled[0], scaled[1]), crop=side)
    return replace(image, resize=side if isinstance(image.resize, int) else (side, side))


def restore(run: Run, folder: Path, device: torch.device) -> ClassifyImagePredictor:
    """The predictor of a run folder, without the weights."""
    processors = load_processors(folder)
    image, labels = processors.get(IMAGE), find_labels(processors, LABEL)
    if not isinstance(image, ImageProcessor) or labels is None or len(labels) != run.model.labels:
        raise UserError(f"{folder} lacks its image processor or its labels; restore them, or train the run again")
    return ClassifyImagePredictor(run, build_model(run), image, labels, device)


def from_folder(folder: "PretrainedImages", overrides: Mapping[str, object]) -> ClassifyImagePredictor:
    """The predictor of a Hugging Face folder."""
    run = change_settings(Run(task="classify-image", model=folder.config), overrides)
    labels = LabelSet(dict.fromkeys(folder.labels, 0))
    return ClassifyImagePredictor(run, folder.model, folder.image, labels, resolve_device(run.device))


class PretrainedImages(Protocol):
    """The content of a Hugging Face folder with a model of images."""

    @property
    def config(self) -> Base:
        """The settings of the model."""

    @property
    def model(self) -> Any:
        """The model with its weights."""

    @property
    def image(self) -> ImageProcessor:
        """The processor of its images."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Its labels in order."""


def size_without_data(run: Run) -> Run:
    """The run with the sizes of a model without data."""
    return with_model_settings(run, head="class", labels=run.model.labels or 2)


def data_split(run: Run, split: str, files: DataFiles | None = None) -> Source:
    """A split of the data; the embedded data are digits."""
    data = run.data
    embedded = lambda: make_digits(data.examples)[split]  # noqa: E731
    return open_split(run, split, files, lambda files: labeled_images(files, data), embedded, "test/")
