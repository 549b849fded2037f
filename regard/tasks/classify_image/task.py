"""Classification of images: one label for an image."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from ...config.data.base import DataFiles
from ...config.data.images import SquareImages
from ...config.run import Run, change_settings, changed_decode
from ...config.types import Base
from ...data.datasets.mixed_images import MixedImages
from ...data.loading.loader import Loader
from ...data.source import Source
from ...data.sources.images import LABELED_IMAGES
from ...decode.engine.answer import Emit
from ...decode.engine.jobs import Forward, Head, Read
from ...device import resolve_device
from ...errors import UserError
from ...families.protocols import LabelModel, as_module
from ...look import AttentionView, Which
from ...messages.labels import ClassifyImageRequest, ClassifyResult
from ...messages.media import Image, Item, Media
from ...messages.verbs import EmbedRequest, ScoreRequest, ScoreResult
from ...metrics.labels import label_metrics, paired_accuracy_bootstrap
from ...modalities.image import ImageModality
from ...parts import Inputs
from ...processors.base import Array, Processor
from ...processors.image.processor import ImageProcessor
from ...processors.image.read import RawImage
from ...processors.labels import LabelProcessor, LabelSet, collect_labels
from ...processors.saved import load_processors
from ...synthetic.digits import make_digits
from ..base import Metrics, Processors, build_model, find_labels, open_split, open_splits, with_model_settings
from ..generate.predictor import pair_requests
from ..label.embedding import Embedded, EmbeddingPredictor, PoolingHeads, encoder_view, refuse_target
from ..label.encoder import label_logprobs
from ..label.results import (
    LabelJob,
    best_labels,
    class_result,
    example_labels,
    known_loss,
    label_ids,
    label_set,
    majority_baseline,
    report_labels,
    top_k,
    top_of,
    unseen_labels,
)
from ..notices import require_finite, uniform_image
from ..objectives import ImageObjective
from ..reading import FileItems, ItemReader
from ..task import Task
from .settings import ImageRun

TASK = Task("classify-image", frozenset({"pixels"}), "label")
IMAGE_WINDOW = 128  # images that are in memory at once
IMAGE, LABEL = "image", "label"  # the fields of an example
M = TypeVar("M", covariant=True)  # a model
ONE_LABEL = "give a folder with one folder for each class, or a table with the columns path and label"


class ClassifyImagePredictor(EmbeddingPredictor[RawImage, ClassifyImageRequest, ClassifyResult]):
    """The label of every image: a path, bytes, a Pillow image or an array. decode.top gives that many labels."""

    run: ImageRun
    request_type, result_type = ClassifyImageRequest, ClassifyResult
    model: LabelModel
    item_name = "image"
    paired_test = staticmethod(paired_accuracy_bootstrap)

    def __init__(
        self, run: ImageRun, model: LabelModel, image: ImageProcessor, labels: LabelSet, device: torch.device
    ) -> None:
        self.run, self.image, self.labels, self.device = run, image, labels, device
        self.model = model.to(device).eval()
        self.window = max(IMAGE_WINDOW, run.decode.batch)

    @cached_property
    def images(self) -> ImageModality:
        """How images are read."""
        return ImageModality(self.image)

    @cached_property
    def head(self) -> Head[Array]:
        """The pass for labels."""
        return Head(self.images.collate, label_logprobs, self.images.cost, tokens=0)

    @cached_property
    def pooling_heads(self) -> PoolingHeads:
        """The passes for embeddings."""
        return PoolingHeads((self.run.model.pool,), self.images.collate, self.images.cost, tokens=0)

    @property
    def processors(self) -> dict[str, Processor]:
        return {IMAGE: self.image, LABEL: LabelProcessor(self.labels)}

    # --- requests ----------------------------------------------------------------------------------------------

    def requests(
        self, items: Iterable[RawImage], details: bool = False, **decode: object
    ) -> list[ClassifyImageRequest]:
        top = changed_decode(self.run, decode).top if decode else None
        return [ClassifyImageRequest(Image(image), top) for image in items]

    async def answer(self, request: ClassifyImageRequest, emit: Emit | None = None) -> ClassifyResult:
        top = top_of(request, self.run.decode)
        pixels: Array = await Read(self.images.encode_all, request.image.raw)
        notices = uniform_image(self.image.is_uniform(pixels))
        return class_result(self.labels.names, await Forward(self.head, pixels), top, notices)

    async def logprobs(self, image: RawImage) -> Array:
        """(labels,) of an image."""
        logprobs: Array = await Forward(self.head, await Read(self.images.encode_all, image))
        return logprobs

    def plain_result(self, request: ClassifyImageRequest, result: ClassifyResult) -> ClassifyResult:
        return result

    def is_item(self, x: object) -> bool:
        return self.images.is_item(x)

    @property
    def item_reader(self) -> ItemReader:
        images = partial(LABELED_IMAGES.items, data=self.run.data)
        return replace(super().item_reader, files=FileItems(images, named=True))

    def format_line(self, name: str, request: ClassifyImageRequest, result: ClassifyResult) -> str:
        """The path and its labels."""
        labels = result.top[: top_of(request, self.run.decode) or 1]
        return "\t".join([name, *(f"{label.label}\t{label.probability:.4f}" for label in labels)])

    def embed_requests(self, items: Iterable[RawImage], **decode: object) -> list[EmbedRequest]:
        normalize = changed_decode(self.run, decode).normalize
        return [EmbedRequest(Item(image=Image(image)), normalize=normalize) for image in items]

    async def vector(self, request: EmbedRequest) -> Embedded:
        head = self.pooling_heads.of(request, self.run.model.pool, self.run.decode.normalize)
        return Embedded(await Forward(head, await Read(self.images.encode_all, request.item.value_as(Image).raw)))

    def score_requests(
        self, items: "RawImage | Iterable[RawImage]", targets: str | Iterable[str] | None
    ) -> tuple[list[ScoreRequest], bool]:
        single = self.is_item(items)
        pairs = pair_requests(items, targets, single, ("an image and its label", "images", "labels"))
        return [ScoreRequest(Item(image=Image(image)), label) for image, label in pairs], single

    async def answer_score(self, request: ScoreRequest, emit: Emit | None = None) -> ScoreResult:
        """ln P(label | image)"""
        (label,) = label_ids(self.labels, [str(request.target)])
        value = float((await self.logprobs(request.item.value_as(Image).raw))[label])
        require_finite([value])
        return ScoreResult(value)

    def look_item(self, item: Item) -> Image:
        return item.value_as(Image)

    async def view(self, item: "RawImage | Media", target: str | None = None, layer: Which = None) -> AttentionView:
        """The attention weights while the model reads an image."""
        refuse_target(target, "image")
        source = self.images.look_input(item)
        return await encoder_view(self, source.inputs, partial(self.images.axis, source, self.model), layer)

    def state_inputs(self, items: Iterable[RawImage]) -> list[Inputs]:
        """The pixels of each image."""
        return [self.image.collate([array]) for array in self.image.encode_all([*items])]

    # --- evaluation --------------------------------------------------------------------------------------------

    def evaluate_with_outputs(self, files: DataFiles | None = None) -> tuple[Metrics, list[str], list[str]]:
        """The metrics of `evaluate`, the predicted labels and the reference labels."""
        examples = data_split(self.run, "test", files)
        examples.require_nonempty("data.test")
        references = example_labels(examples)
        report_labels(examples, references)
        logprobs = self.example_logprobs(examples, range(len(examples)))
        predicted = best_labels(self.labels, logprobs)
        metrics = label_metrics(predicted, references)
        top = top_k(self.labels, logprobs, references)
        first = {"examples": len(references), "accuracy": metrics["accuracy"], **top}
        others = majority_baseline(self.labels, references) | unseen_labels(self.labels, references)
        return first | metrics | others, predicted, references

    def loss_over(self, examples: Source) -> tuple[float, list[str], list[str]]:
        """Nats per image, predicted and reference labels; images with an unseen label are left out."""
        labels = example_labels(examples)
        known = [index for index, label in enumerate(labels) if label in self.labels.ids]
        return known_loss(self.labels, self.example_logprobs(examples, known), [labels[index] for index in known])

    def example_logprobs(self, examples: Source, chosen: Sequence[int]) -> Tensor:
        """(images, labels) of the chosen examples, which are read when their turn comes."""
        rows = self.run_programs(self.logprobs(examples[index][0]) for index in chosen)
        logprobs = torch.from_numpy(np.stack(rows)) if rows else torch.zeros(0, len(self.labels))
        require_finite([float(logprobs.sum())])
        return logprobs


class ClassifyImageJob(LabelJob):
    """Images with one label each."""

    run: ImageRun
    predictor: ClassifyImagePredictor

    def __init__(self, predictor: ClassifyImagePredictor, splits: dict[str, Source]) -> None:
        self.predictor, self.run, self.splits = predictor, predictor.run, splits
        self.objective = ImageObjective(as_module(predictor.model), self.run.train.objective)
        self.static_shapes = True
        label = LabelProcessor(predictor.labels)
        self.loader = Loader.of(MixedImages(splits["train"], predictor.image, label, self.run.data, self.run.train))


# --- construction --------------------------------------------------------------------------------------------------


def prepare(
    run: ImageRun, processors: Processors, device: torch.device, folder: Path | None = None
) -> ClassifyImageJob:
    """Open the data and collect the labels; writes no file."""
    splits = open_splits(run, data_split)
    labels = label_set(run, collect_labels(splits["train"], ONE_LABEL), processors, LABEL, splits)
    image = image_processor(run.data, run.model, processors.get(IMAGE))
    run = with_model_settings(run, head="class", labels=len(labels))
    predictor = ClassifyImagePredictor(run, build_model(run), image, labels, device)
    return ClassifyImageJob(predictor, splits)


class PatchSettings(Protocol):
    """The settings of a model that reads images."""

    @property
    def image(self) -> int:
        """The side of its images."""

    @property
    def patch(self) -> int:
        """The side of a patch."""


def image_processor(data: SquareImages, model: PatchSettings, kept: Processor | None = None) -> ImageProcessor:
    """The processor of images: squares of data.size pixels, augmented in training by data.*.

    `kept` is the processor of a start: its resizing and normalization stay, unless data.* changes them.
    """
    side, default = data.size or model.image, SquareImages()
    start = kept if isinstance(kept, ImageProcessor) else None
    image = start or ImageProcessor(resize=side, crop=side)
    keeps_background = image.background != "none" and data.background == default.background
    return replace(
        _resize_processor(image, side), mean=image.mean if start and data.mean == default.mean else data.mean,
        std=image.std if start and data.std == default.std else data.std, patch=model.patch, scale=(data.crop, 1.0),
        flip=data.flip, color=data.color, randaugment=data.randaugment, strength=data.strength, erase=data.erase,
        background=image.background if keeps_background else data.background,
    )  # fmt: skip


def _resize_processor(image: ImageProcessor, side: int) -> ImageProcessor:
    """The processor for squares of `side` pixels, which resizes and crops in the same proportion."""
    if image.crop:
        lengths = (image.resize,) if isinstance(image.resize, int) else image.resize
        scaled = tuple(round(length * side / image.crop) for length in lengths)
        return replace(image, resize=scaled[0] if isinstance(image.resize, int) else (scaled[0], scaled[1]), crop=side)
    return replace(image, resize=side if isinstance(image.resize, int) else (side, side))


def restore(run: ImageRun, folder: Path, device: torch.device) -> ClassifyImagePredictor:
    """The predictor of a run folder, without the weights."""
    processors = load_processors(folder)
    image, labels = processors.get(IMAGE), find_labels(processors, LABEL)
    if not isinstance(image, ImageProcessor) or labels is None or len(labels) != run.model.labels:
        raise UserError(f"{folder} lacks its image processor or its labels; restore them, or train the run again")
    return ClassifyImagePredictor(run, build_model(run), image, labels, device)


def from_folder(folder: "PretrainedImages[LabelModel]", overrides: Mapping[str, object]) -> ClassifyImagePredictor:
    """The predictor of a Hugging Face folder."""
    run: ImageRun = change_settings(Run(task="classify-image", model=folder.config), overrides)
    labels = LabelSet(dict.fromkeys(folder.labels, 0))
    return ClassifyImagePredictor(run, folder.model, folder.image, labels, resolve_device(run.device))


class PretrainedImages(Protocol[M]):
    """The content of a Hugging Face folder with a model of images."""

    @property
    def config(self) -> Base:
        """The settings of the model."""

    @property
    def model(self) -> M:
        """The model with its weights."""

    @property
    def image(self) -> ImageProcessor:
        """The processor of its images."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Its labels in order."""


def size_without_data(run: ImageRun) -> ImageRun:
    """The run with the sizes of a model without data."""
    return with_model_settings(run, head="class", labels=run.model.labels or 2)


def data_split(run: ImageRun, split: str, files: DataFiles | None = None) -> Source:
    """A split of the data; the embedded data are digits."""
    data = run.data
    embedded = lambda: make_digits(data.examples)[split]  # noqa: E731
    return open_split(run, split, files, lambda files: LABELED_IMAGES.open(files, data), embedded, "test/")
