"""Captions: a sentence for an image, by sequence-to-sequence models whose source is patches."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch

from ...config.data.base import DataFiles
from ...config.strategies import beam_for_one_text
from ...data.datasets.fields import ImageField
from ...data.datasets.source_target import SourceTargetDataset
from ...data.datasets.targets import PlainTargets, TargetField
from ...data.loading.loader import Loader
from ...data.source import Source
from ...data.sources.captions import CAPTIONED_IMAGES, CaptionPairs
from ...data.sources.pairs import split_references
from ...decode import Filter, Suppress
from ...decode.engine.answer import Emit
from ...errors import UserError
from ...families.protocols import Seq2SeqModel, as_module
from ...look import AttentionView, Which
from ...messages.media import Image, Item
from ...messages.texts import CaptionRequest, TextResult
from ...messages.verbs import ScoreRequest, ScoreResult
from ...metrics.captions import cider
from ...metrics.labels import BootstrapResult
from ...metrics.text import paired_bootstrap, signature, text_metrics
from ...metrics.tokenization import Tokenization, choose_tokenization
from ...modalities.image import ImageModality
from ...processors.base import Processor
from ...processors.image.processor import ImageProcessor
from ...processors.image.read import RawImage, is_image
from ...processors.saved import load_processors
from ...processors.text.processor import TextProcessor
from ...processors.text.tokenizers import Tokenizer, train_tokenizer
from ...synthetic.captions import make_captions
from ..base import (
    Metrics,
    Processors,
    TrainingJob,
    build_model,
    find_tokenizer,
    max_vocab,
    open_split,
    open_splits,
    require_tokenizer,
    view_title,
    vocab_size,
    with_inputs,
    with_model_settings,
)
from ..classify_image.task import image_processor
from ..generate.plans import best_text
from ..generate.predictor import TextPredictor, pair_requests, predict_lazily
from ..generate.writer import TextWriter, text_fields
from ..notices import Notice, uniform_image
from ..objectives import Seq2SeqObjective
from ..reading import FileItems, ItemReader
from ..task import Task, spec_of
from .settings import CaptionRun

TASK = Task("caption", frozenset({"pixels"}), "target")
IMAGE, TEXT = "image", "text"  # the fields of an example
CAPTION_METRICS = ("bleu", "chrf", "exact")  # beside CIDEr-D


class CaptionPredictor(TextPredictor[RawImage, CaptionRequest, TextResult]):
    """A caption for every image: a path, bytes, a Pillow image, an array or a tensor."""

    run: CaptionRun
    request_type, result_type = CaptionRequest, TextResult
    window = 256  # images in memory

    def __init__(
        self,
        run: CaptionRun,
        model: Seq2SeqModel,
        image: ImageProcessor,
        target: Tokenizer,
        device: torch.device,
        filters: tuple[Filter, ...] | None = None,
    ) -> None:
        self.run, self.image, self.target, self.device = run, image, target, device
        self.model = model.to(device).eval()
        self.filters = (Suppress([target.pad, target.start]),) if filters is None else filters
        self.modality = ImageModality(image)

    @property
    def output_tokenizer(self) -> Tokenizer:
        return self.target

    @cached_property
    def writer(self) -> TextWriter:
        """Writes captions, and scores known ones."""
        return TextWriter(self.engine.context, noun="a caption")

    @property
    def processors(self) -> dict[str, Processor]:
        return {IMAGE: self.image, TEXT: TextProcessor(self.target)}

    def is_item(self, x: object) -> bool:
        return is_image(x)

    @property
    def item_reader(self) -> ItemReader:
        return replace(super().item_reader, files=FileItems(partial(CAPTIONED_IMAGES.items, data=self.run.data)))

    def requests(self, items: Iterable[RawImage], details: bool = False, **decode: object) -> list[CaptionRequest]:
        """`prefix`, `include` and `exclude` may be lists with one entry per image."""
        images = [Image(image) for image in items]
        fields = self.plan.fields(CaptionRequest, len(images), details, decode)
        return [CaptionRequest(image, **named) for image, named in zip(images, fields, strict=True)]

    async def answer(self, request: CaptionRequest, emit: Emit | None = None) -> TextResult:
        plan = self.plan(request)
        written = await self.writer.write(self.modality, request.image, plan, request, emit)
        fields = text_fields(written.texts, plan, request.details)
        uniform = uniform_image(self.modality.is_uniform(written.source.array))
        fields["notices"] = uniform + (fields["notices"] if written.texts else (no_text(),))
        return TextResult(**fields, usage=written.usage)

    def score_requests(
        self, items: "RawImage | Iterable[RawImage]", targets: str | Iterable[str] | None
    ) -> tuple[list[ScoreRequest], bool]:
        nouns = "an image and its caption", "images", "captions"
        pairs = pair_requests(items, targets, single := is_image(items), nouns)
        return [ScoreRequest(Item(image=Image(image)), caption) for image, caption in pairs], single

    async def answer_score(self, request: ScoreRequest, emit: Emit | None = None) -> ScoreResult:
        return await self.writer.score_text(self.modality, request)

    def look_item(self, item: Item) -> RawImage:
        return item.value_as(Image).raw

    async def view(self, item: RawImage, target: str | None = None, layer: Which = None) -> AttentionView:
        plan = self.plan(self.requests([item], strategy=beam_for_one_text(self.run.decode.strategy))[0])
        return await self.writer.look(self.modality, item, plan, target, layer, view_title(self.run))

    def evaluate_with_outputs(self, files: DataFiles | None = None) -> tuple[Metrics, list[str], list[list[str]]]:
        """The metrics of images with one or more references each, the captions and the references."""
        examples = data_split(self.run, "test", files)
        examples.require_nonempty("data.test")
        references = reference_lists(examples)
        tokenization = choose_tokenization(references, self.run.eval)  # first: it may raise UserError
        captions = predict_lazily(self, (image for image, _ in examples), {"strategy": best_text(self.run)})
        metrics: Metrics = {"examples": len(examples)} | caption_metrics(captions, references, tokenization)
        metrics |= loss_metrics(self, examples, references)
        metrics |= {f"{name} signature": signature(name, references, tokenization) for name in ("bleu", "chrf")}
        return metrics, captions, references

    def paired_test(
        self, outputs: Sequence[Sequence[str]], references: Sequence[Sequence[str]], /
    ) -> tuple[dict[str, str], list[BootstrapResult]]:
        tokenization = choose_tokenization(references, self.run.eval)
        return paired_bootstrap(outputs, references, ("bleu", "chrf"), tokenization)


def no_text() -> Notice:
    """The notice for an image for which no text satisfies decode.*."""
    return Notice(
        "no text satisfies decode.* for the image",
        lambda count, total: f"no text satisfies decode.* for {count} of {total} images",
    )


def loss_metrics(
    predictor: CaptionPredictor, examples: Source, references: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Nats per token of the first reference, END included, without label smoothing, and perplexity."""
    writer, modality = predictor.writer, predictor.modality
    pairs = ((example[0], texts[0]) for example, texts in zip(examples, references, strict=True))
    logprobs = [row for _, row in predictor.run_programs(writer.logprobs(modality, *pair) for pair in pairs)]
    loss = -sum(map(sum, logprobs)) / max(sum(map(len, logprobs)), 1)
    return {"loss": loss, "perplexity": float(np.exp(loss))}


def reference_lists(examples: Source) -> list[list[str]]:
    """The references of every image."""
    return [split_references(examples.text(index, 1)) for index in range(len(examples))]


def caption_metrics(
    captions: Sequence[str], references: Sequence[Sequence[str]], tokenization: Tokenization | None
) -> dict[str, float]:
    """The text metrics of captions, with CIDEr-D."""
    metrics = text_metrics(captions, references, CAPTION_METRICS, tokenization)
    return metrics | {"cider": cider(captions, references)}


class CaptionJob(TrainingJob):
    """Images with a caption each; for validation, images with all their captions."""

    run: CaptionRun
    predictor: CaptionPredictor
    splits: Mapping[str, Source]
    tokenization: Tokenization | None = None  # of BLEU on the validation split

    def __init__(self, predictor: CaptionPredictor, splits: dict[str, Source]) -> None:
        self.predictor, self.run, self.splits = predictor, predictor.run, splits
        self.objective = Seq2SeqObjective(as_module(predictor.model), self.run.train.objective)
        data, text = self.run.data, predictor.target
        target = TargetField(PlainTargets(text), text.pad, data.max_tokens, predictor.context, "caption")
        source = ImageField("source", predictor.image)
        self.loader = Loader.of(SourceTargetDataset(splits["train"], source, target, data, self.run.train))
        if "valid" in splits:  # fail before training, not at the first validation
            references = reference_lists(splits["valid"])
            rows = predictor.target.encode([texts[0] for texts in references])
            predictor.writer.refuse_long(max(map(len, rows)) + 1, "a caption of data.valid")
            self.tokenization = choose_tokenization(references, self.run.eval)

    def validate(self) -> dict[str, float]:
        if "valid" not in self.splits:
            return {}
        examples = self.splits["valid"]
        references = reference_lists(examples)
        metrics = loss_metrics(self.predictor, examples, references)
        if self.run.train.metric in metrics:
            return metrics
        images = (image for image, _ in examples)
        captions = predict_lazily(self.predictor, images, self.predictor.writer.validation_decode)
        return metrics | caption_metrics(captions, references, self.tokenization)


# --- construction --------------------------------------------------------------------------------------------------


def prepare(run: CaptionRun, processors: Processors, device: torch.device, folder: Path | None = None) -> CaptionJob:
    """Open the data and train the tokenizer, if it is not kept; writes no file."""
    splits = open_splits(run, data_split)
    target = find_tokenizer(processors, TEXT)
    if target is None:
        target = train_tokenizer(run.tokenizer, splits["train"].texts(1))
    squares = spec_of(run.model.family).image(run.model)
    image = image_processor(run.data, squares, processors.get(IMAGE))
    run = with_inputs(with_model_settings(run, vocab=vocab_size(run, target)), TASK.reads)
    return CaptionJob(CaptionPredictor(run, build_model(run), image, target, device), splits)


def restore(run: CaptionRun, folder: Path, device: torch.device) -> CaptionPredictor:
    """The predictor of a run folder, without the weights."""
    processors = load_processors(folder)
    image, target = processors.get(IMAGE), require_tokenizer(processors, TEXT)
    if not isinstance(image, ImageProcessor):
        raise UserError(f"{folder} lacks its image processor; restore it, or train the run again")
    return CaptionPredictor(run, build_model(run), image, target, device)


def size_without_data(run: CaptionRun) -> CaptionRun:
    """The run with the sizes of a model without data."""
    return with_inputs(with_model_settings(run, vocab=max_vocab(run)), TASK.reads)


def data_split(run: CaptionRun, split: str, files: DataFiles | None = None) -> Source:
    """A split of the data; the embedded data are scenes of shapes. Training reads every caption of an image."""
    data = run.data
    embedded = lambda: make_captions(data.examples, data.shapes)[split]  # noqa: E731
    read = lambda files: CAPTIONED_IMAGES.open(files, data)  # noqa: E731
    examples = open_split(run, split, files, read, embedded, "images/,captions.tsv")
    return CaptionPairs(examples) if split == "train" else examples
