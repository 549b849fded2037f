"""Joint embeddings: images, recordings or texts and the texts that belong to them, in one space (2103.00020)."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import torch

from ...config.data.base import DataFiles
from ...config.run import Run, change_settings, changed_decode
from ...config.types import Base
from ...data.datasets.contrastive import ContrastiveDataset, RowField
from ...data.datasets.rows import max_text_tokens
from ...data.loading.loader import Loader
from ...data.source import Source
from ...data.sources.media import RawValue
from ...data.tables import columns
from ...decode.engine.answer import Emit
from ...device import resolve_device
from ...errors import UserError
from ...families.protocols import EmbeddingModel, as_module
from ...look import AttentionView, Which
from ...messages.labels import ClassifyResult, ContrastiveRequest
from ...messages.media import Item
from ...messages.verbs import EmbedRequest
from ...metrics.labels import label_metrics, paired_accuracy_bootstrap
from ...processors.base import Processor
from ...processors.saved import load_processors
from ...processors.text.processor import TextProcessor
from ...processors.text.tokenizers import Tokenizer, train_tokenizer
from ..base import (
    Metrics,
    Processors,
    TrainingJob,
    build_model,
    find_tokenizer,
    open_split,
    open_splits,
    require_tokenizer,
)
from ..label import encoder
from ..label.embedding import Embedded, EmbeddingPredictor, encoder_view, refuse_target, text_view
from ..label.encoder import with_vocab
from ..label.results import class_result
from ..label.texts import TextEncoder
from ..objectives import ContrastiveObjective
from ..reading import FileItems, ItemReader, reader_of
from ..task import TEXT as TOKENS
from ..task import Task, spec_of
from .evaluation import EmbeddedPairs, choose_labels, embed_pairs, labels_by_text
from .settings import ContrastiveDecode, ContrastiveRun
from .sources import SOURCES, TEXT, AnyPairs
from .towers import Towers

TASK = Task("contrastive", TOKENS, "embedding")
VALID_PAIRS = 256  # of a step whose loss is computed on valid data, if train.batch does not say
MEDIA_WINDOW = 128  # images or recordings that are in memory at once


class ContrastivePredictor(EmbeddingPredictor[RawValue, ContrastiveRequest, ClassifyResult]):
    """Vectors of texts, and of images or recordings; zero-shot labels.

    With labels, the result for an item is the label whose text is nearest to it.
    """

    run: ContrastiveRun
    request_type, result_type = ContrastiveRequest, ClassifyResult
    model: EmbeddingModel
    item_name = "item"
    paired_test = staticmethod(paired_accuracy_bootstrap)

    def __init__(
        self,
        run: ContrastiveRun,
        model: EmbeddingModel,
        source: Processor | None,
        tokenizer: Tokenizer,
        device: torch.device,
    ) -> None:
        self.run, self.tokenizer, self.device = run, tokenizer, device
        self.source, self.pairs = source, pair_source(run)
        self.media = self.pairs.modality(source)
        self.model = model.to(device).eval()
        if self.media is not None:
            self.window = max(MEDIA_WINDOW, run.decode.batch)

    @cached_property
    def texts(self) -> TextEncoder:
        """How texts are read."""
        return TextEncoder(self.tokenizer, max_text_tokens(self.model.context, self.run.data))

    @cached_property
    def towers(self) -> Towers:
        """How items become vectors."""
        return Towers(self.pairs, self.media, self.texts)

    @property
    def processors(self) -> dict[str, Processor]:
        text = TextProcessor(self.tokenizer)
        return {TEXT: text} if self.source is None else {self.pairs.field: self.source, TEXT: text}

    @property
    def item_reader(self) -> ItemReader:
        return reader_of(self.run, columns.SOURCE, columns.TARGET)

    def is_item(self, x: object) -> bool:
        if self.media is None:
            return not isinstance(x, list | tuple) and not hasattr(x, "__next__")
        return isinstance(x, str) or self.media.is_item(x)

    # --- requests ----------------------------------------------------------------------------------------------

    def embed_requests(self, items: Iterable[RawValue], **decode: object) -> list[EmbedRequest]:
        """Texts and other items may be mixed. Vectors have length 1."""
        changed_decode(self.run, decode)
        return [EmbedRequest(self.towers.item(item)) for item in items]

    async def vector(self, request: EmbedRequest) -> Embedded:
        if request.pooling is not None:
            raise UserError(f"a request has pooling={request.pooling!r}; leave it out: this model pools in one way")
        if request.normalize is False:
            raise UserError("a request has normalize=False; leave it out: vectors of this model have length 1")
        return await self.towers.vector(request.item)

    def requests(self, items: Iterable[RawValue], details: bool = False, **decode: object) -> list[ContrastiveRequest]:
        if not decode:
            return [ContrastiveRequest(self.towers.item(item)) for item in items]
        settings = changed_decode(self.run, decode)
        return [
            ContrastiveRequest(self.towers.item(item), settings.labels, settings.template, settings.top)
            for item in items
        ]

    async def answer(self, request: ContrastiveRequest, emit: Emit | None = None) -> ClassifyResult:
        settings = self.request_settings(request)
        vector, notices = await self.towers.vector(request.item)
        labels = await self.towers.label_vectors(settings)
        logprobs = (self.scale * (labels @ vector)).log_softmax(-1)
        return class_result(settings.labels, logprobs.numpy(), settings.top, notices)

    def plain_result(self, request: ContrastiveRequest, result: ClassifyResult) -> str | list[tuple[str, float]]:
        pairs = [(label.label, label.probability) for label in result.top]
        return pairs if self.request_settings(request).top else result.label or ""

    def look_item(self, item: Item) -> Item:
        return item

    async def view(self, item: RawValue | Item, target: str | None = None, layer: Which = None) -> AttentionView:
        """The attention weights of the tower that reads this text, image or recording."""
        refuse_target(target)
        media = self.media
        value = self.towers.value(item if isinstance(item, Item) else self.towers.item(item))
        if media is None or isinstance(value, str):
            return await text_view(self, self.texts, str(value), layer, self.model.reader("tokens"))
        source = media.look_input(value.raw)
        part = self.model.reader(source.inputs.modality)
        return await encoder_view(self, source.inputs, partial(media.axis, source, None), layer, part)

    @property
    def scale(self) -> float:
        """The factor of the cosines."""
        return float(self.model.log_scale.detach().float().exp())

    def request_settings(self, request: ContrastiveRequest) -> ContrastiveDecode:
        """decode.*, with what the request changes. Without labels there is nothing to choose from."""
        fields = {name: getattr(request, name) for name in ("labels", "template", "top")}
        changes = {name: value for name, value in fields.items() if value is not None}
        settings = changed_decode(self.run, changes)
        if not settings.labels:
            raise UserError(
                'this run compares items with texts, and no text is given; add --labels "a dog,a cat", or use --embed '
                "or --similar FILE"
            )
        return settings

    def evaluate_with_outputs(self, files: DataFiles | None = None) -> tuple[Metrics, list[str] | None, object]:
        """Retrieval in both directions; with decode.labels also the accuracy of the labels."""
        examples = data_split(self.run, "test", files)
        examples.require_nonempty("data.test")
        pairs = embed_pairs(self, examples)
        metrics: Metrics = {"examples": len(examples), "texts": len(pairs.texts), **pairs.retrieval()}
        if not self.run.decode.labels:
            return metrics, None, None
        labels, references = choose_labels(self, examples, pairs)
        return metrics | label_metrics(labels, references), labels, references


class MediaPredictor(ContrastivePredictor):
    """A predictor of images or recordings and texts, read from files. A .txt file has lines of text."""

    @property
    def item_reader(self) -> ItemReader:
        return replace(super().item_reader, files=FileItems(self.open_items, named=True))

    def open_items(self, name: str) -> Iterator[tuple[str, RawValue]]:
        """The items in a file, a folder, an archive or a table of paths."""
        if Path(name).suffix.lower() == ".txt" and Path(name).is_file():
            lines = Path(name).read_text(encoding="utf-8-sig").splitlines()
            return ((line, line) for line in lines if line.strip())
        return self.pairs.open_items(name, self.run.data)

    def format_line(self, name: str, request: ContrastiveRequest, result: ClassifyResult) -> str:
        labels = result.top[: self.request_settings(request).top or 1]
        return "\t".join([name, *(f"{label.label}\t{label.probability:.4f}" for label in labels)])


class ContrastiveJob(TrainingJob):
    """Pairs; the loss is over all pairs of a step."""

    run: ContrastiveRun
    predictor: ContrastivePredictor
    splits: Mapping[str, Source]

    def __init__(self, predictor: ContrastivePredictor, splits: dict[str, Source]) -> None:
        self.predictor, self.run, self.splits = predictor, predictor.run, splits
        text = RowField(predictor.tokenizer, predictor.texts.room)
        source = predictor.pairs.training_field(predictor.source, text)
        self.objective = ContrastiveObjective(as_module(predictor.model), (predictor.pairs.field, TEXT))
        dataset = ContrastiveDataset(splits["train"], source, text, self.run.data, self.run.train)
        self.loader = Loader.of(dataset)
        if self.run.train.batch == 1 or self.loader.planned_steps(1) >= len(splits["train"]):
            raise UserError(
                f"every step has a single pair and no negatives to tell it from; raise train.batch (now "
                f"{self.run.train.batch}) or train.tokens, or give more than {len(splits['train'])} pairs"
            )

    def validate(self) -> dict[str, float]:
        if "valid" not in self.splits:
            return {}
        pairs = embed_pairs(self.predictor, self.splits["valid"])
        with torch.autocast("cpu", enabled=False):  # cosines of bf16 would be equal where they are not
            return self.valid_metrics(pairs)

    def valid_metrics(self, pairs: EmbeddedPairs) -> dict[str, float]:
        metrics = pairs.retrieval()
        loss = pairs.loss(self.predictor.scale, self.run.train.batch or VALID_PAIRS)
        recall = {name: metrics[name] for name in ("r1", "item_to_text_r1", "text_to_item_r1")}
        metrics = {"loss": loss, **recall, "scale": self.predictor.scale}
        if not {*pairs.texts} <= labels_by_text(self.run.decode).keys():  # the texts are no labels
            return metrics
        labels, references = choose_labels(self.predictor, self.splits["valid"], pairs)
        return metrics | {"accuracy": label_metrics(labels, references)["accuracy"]}


# --- construction --------------------------------------------------------------------------------------------------


def pair_source(run: ContrastiveRun) -> AnyPairs:
    """The items that the model of a run compares with texts."""
    return SOURCES[spec_of(run.model.family).source(run.model)]


def prepare(
    run: ContrastiveRun, processors: Processors, device: torch.device, folder: Path | None = None
) -> ContrastiveJob:
    """Open the data, train the tokenizer and measure frames, if they are not kept; writes no file."""
    splits, pairs = open_splits(run, data_split), pair_source(run)
    text_fields = (0, 1) if pairs is SOURCES["tokens"] else (1,)
    tokenizer = find_tokenizer(processors, TEXT) or train_tokenizer(run.tokenizer, splits["train"].texts(*text_fields))
    source = pairs.new_processor(run, processors, splits["train"])
    run = with_vocab(run, tokenizer, head="none", **pairs.model_settings(source))
    return ContrastiveJob(new_predictor(run, build_model(run), source, tokenizer, device), splits)


def new_predictor(
    run: ContrastiveRun, model: EmbeddingModel, source: Processor | None, tokenizer: Tokenizer, device: torch.device
) -> ContrastivePredictor:
    """A predictor of media, or one of texts if `source` is None."""
    predictor = ContrastivePredictor if source is None else MediaPredictor
    return predictor(run, model, source, tokenizer, device)


def restore(run: ContrastiveRun, folder: Path, device: torch.device) -> ContrastivePredictor:
    """The predictor of a run folder, without the weights."""
    processors, pairs = load_processors(folder), pair_source(run)
    if pairs is not SOURCES["tokens"] and pairs.field not in processors:
        raise UserError(f"{folder} lacks its processor of {pairs.noun}s; restore it, or train the run again")
    return new_predictor(
        run, build_model(run), processors.get(pairs.field), require_tokenizer(processors, TEXT), device
    )


class PretrainedTowers(Protocol):
    """The content of a Hugging Face folder with two towers."""

    config: Base
    model: Any
    source: Processor
    tokenizer: Tokenizer


def from_folder(folder: PretrainedTowers, overrides: Mapping[str, object]) -> ContrastivePredictor:
    """The predictor of a Hugging Face folder."""
    run: ContrastiveRun = change_settings(Run(task="contrastive", model=folder.config), overrides)
    return new_predictor(run, folder.model, folder.source, folder.tokenizer, resolve_device(run.device))


def size_without_data(run: ContrastiveRun) -> ContrastiveRun:
    """The run with the sizes of a model without data."""
    return encoder.size_without_data(run, head="none")


def data_split(run: ContrastiveRun, split: str, files: DataFiles | None = None) -> Source:
    """A split of the data; the embedded data are scenes with captions, Morse code or dates."""
    data, pairs = run.data, pair_source(run)
    embedded = lambda: pairs.embedded(data, split)  # noqa: E731
    return open_split(run, split, files, lambda files: pairs.open(files, data), embedded, pairs.example)
