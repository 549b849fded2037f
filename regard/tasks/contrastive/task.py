"""Joint embeddings: images, recordings or texts and the texts that belong to them, in one space (2103.00020)."""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, partial
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from ...config.data.base import DataFiles
from ...config.run import Run, change_settings, changed_decode
from ...config.types import Base
from ...data.datasets.contrastive import ContrastiveDataset, TextSide, content_number
from ...data.datasets.rows import max_text_tokens
from ...data.files.in_memory import type_name
from ...data.loading.loader import Loader
from ...data.source import Source
from ...data.tables import columns
from ...decode.engine.answer import Emit
from ...decode.engine.jobs import Forward, Head, Program, Read
from ...device import resolve_device
from ...errors import UserError
from ...families.protocols import EmbeddingModel, as_module
from ...look import AttentionView, ViewAxis, Which
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
from ..label.embedding import Embedded, EmbeddingPredictor, refuse_target
from ..label.encoder import with_vocab
from ..label.results import class_result
from ..label.texts import TextEncoder, item_texts
from ..notices import require_finite
from ..objectives import ContrastiveObjective
from ..task import TEXT as TOKENS
from ..task import Task, spec_of
from ..texts import as_text
from .settings import SLOT, ContrastiveDecode
from .sources import SOURCES, TEXT, PairSource
from .vectors import EmbeddedPairs, LabelVectors, item_vectors

TASK = Task("contrastive", TOKENS, "embedding", ContrastiveRequest, ClassifyResult)
VALID_PAIRS = 256  # of a step whose loss is computed on valid data, if train.batch does not say
MEDIA_WINDOW = 128  # images or recordings that are in memory at once


class ContrastivePredictor(EmbeddingPredictor[Any, ContrastiveRequest, ClassifyResult]):
    """Vectors of texts, and of images or recordings; zero-shot labels.

    With labels, the result for an item is the label whose text is nearest to it.
    """

    request_type, result_type = ContrastiveRequest, ClassifyResult
    model: EmbeddingModel
    fields, roles = 2, (columns.SOURCE, columns.TARGET)
    item_name = "item"
    window = MEDIA_WINDOW
    paired_test = staticmethod(paired_accuracy_bootstrap)

    def __init__(
        self, run: Run, model: EmbeddingModel, source: Processor | None, tokenizer: Tokenizer, device: torch.device
    ) -> None:
        self.run, self.tokenizer, self.device = run, tokenizer, device
        self.source, self.pairs = source, pair_source(run)
        self.media = self.pairs.modality(source)
        self.model = model.to(device).eval()
        self.window = max(self.window, run.decode.batch)

    @cached_property
    def texts(self) -> TextEncoder:
        """How texts are read."""
        return TextEncoder(self.tokenizer, max_text_tokens(self.model.context, self.run.data))

    @cached_property
    def text_head(self) -> Head[Tensor]:
        """The pass for texts."""
        return Head(self.texts.collate, item_vectors)

    @cached_property
    def media_head(self) -> Head[Tensor]:
        """The pass for images or recordings."""
        assert self.media is not None
        return Head(self.media.collate, item_vectors, self.media.cost, tokens=0)

    @property
    def processors(self) -> dict[str, Processor]:
        text = TextProcessor(self.tokenizer)
        return {TEXT: text} if self.source is None else {self.pairs.field: self.source, TEXT: text}

    # --- items -------------------------------------------------------------------------------------------------

    def is_item(self, x: object) -> bool:
        if self.media is None:
            return not isinstance(x, list | tuple) and not hasattr(x, "__next__")
        return isinstance(x, str) or self.media.is_item(x)

    def to_item(self, raw: Any) -> Item:
        """A text, or the image or recording of a file."""
        if isinstance(raw, str) and not self.pairs.is_name(raw):
            return Item(raw)
        return self.source_item(raw)

    def source_item(self, raw: Any) -> Item:
        """The item of an example."""
        media = self.media
        if media is not None and media.media is not None:
            return Item(**{media.name: media.media(raw)})
        if isinstance(raw, str):
            return Item(raw)
        name = f"the file {raw}" if isinstance(raw, PathLike) else f"a value of type {type_name(raw)}"
        raise UserError(f"this run compares texts and was given {name}; give texts, or use a run of images")

    async def item_vector(self, item: Item) -> Embedded:
        """The vector of an item."""
        value = item.value
        if isinstance(value, str):
            if not value.strip():
                raise UserError("a text is empty and has no embedding; give at least one word")
            text = await Read(self.texts.read, item_texts(item))
            return Embedded(await Forward(self.text_head, text.row), text.notices)
        if self.media is None or type(value) is not self.media.media:
            known = "texts" if self.media is None else f"texts and {self.pairs.noun}s"
            raise UserError(f"this run compares {known} and was given {value.noun}; give one of those")
        return Embedded(await Forward(self.media_head, await Read(self.media.encode_all, value.raw)))

    # --- requests ----------------------------------------------------------------------------------------------

    def embed_requests(self, items: Iterable[Any], **decode: object) -> list[EmbedRequest]:
        """Texts and other items may be mixed. Vectors have length 1: `normalize` changes nothing."""
        self.decode_settings(decode)
        return [EmbedRequest(self.to_item(item)) for item in items]

    async def vector(self, request: EmbedRequest) -> Embedded:
        return await self.item_vector(request.item)

    def requests(self, items: Iterable[Any], details: bool = False, **decode: object) -> list[ContrastiveRequest]:
        if not decode:
            return [ContrastiveRequest(self.to_item(item)) for item in items]
        settings = self.decode_settings(decode)
        return [
            ContrastiveRequest(self.to_item(item), settings.labels, settings.template, settings.top) for item in items
        ]

    async def answer(self, request: ContrastiveRequest, emit: Emit | None = None) -> ClassifyResult:
        settings = self.request_settings(request)
        vector, notices = await self.item_vector(request.item)
        labels = await self.label_vectors(settings)
        logprobs = (self.scale * (labels @ vector)).log_softmax(-1)
        return class_result(settings.labels, logprobs.numpy(), settings.top, notices)

    def label_vectors(self, settings: ContrastiveDecode) -> LabelVectors:
        """The pass for the vectors of the labels."""
        texts = tuple(settings.template.replace(SLOT, label) for label in settings.labels)
        return LabelVectors(self.texts, self.text_head, texts)

    def plain_result(self, request: ContrastiveRequest, result: ClassifyResult) -> str | list[tuple[str, float]]:
        pairs = [(label.label, label.probability) for label in result.top]
        return pairs if self.request_settings(request).top else result.label or ""

    async def view(self, item: Any, target: str | None = None, layer: Which = None) -> AttentionView:
        """The attention weights of the tower that reads this text, image or recording."""
        refuse_target(target)
        media, value = self.media, self.to_item(item).value
        if media is None or isinstance(value, str):
            (row,) = self.texts.rows([as_text(value)])
            tokens, inputs = ViewAxis.of_tokens("token", self.tokenizer.tokens(row.tolist())), self.texts.collate([row])
            return await self.encoder_view(inputs, lambda _: tokens, layer, self.model.reader(inputs.modality))
        source = media.look_input(value.raw)
        axis = partial(media.axis, source, None)
        return await self.encoder_view(source.inputs, axis, layer, self.model.reader(source.inputs.modality))

    @property
    def scale(self) -> float:
        """The factor of the cosines."""
        return float(self.model.log_scale.detach().float().exp())

    def request_settings(self, request: ContrastiveRequest) -> ContrastiveDecode:
        """decode.*, with what the request changes. Without labels there is nothing to choose from."""
        fields = {name: getattr(request, name) for name in ("labels", "template", "top")}
        settings = self.decode_settings({name: value for name, value in fields.items() if value is not None})
        if not settings.labels:
            raise UserError(
                'this run compares items with texts, and no text is given; add --labels "a dog,a cat", or use --embed '
                "or --similar FILE"
            )
        return settings

    def decode_settings(self, decode: Mapping[str, object]) -> ContrastiveDecode:
        settings: ContrastiveDecode = changed_decode(self.run, decode)
        return settings

    # --- evaluation --------------------------------------------------------------------------------------------

    def evaluate_with_outputs(self, files: DataFiles | None = None) -> tuple[Metrics, list[str] | None, object]:
        """Retrieval in both directions; with decode.labels also the accuracy of the labels."""
        examples = data_split(self.run, "test", files)
        examples.require_nonempty("data.test")
        pairs = self.embed_pairs(examples)
        metrics: Metrics = {"examples": len(examples), "texts": len(pairs.texts), **pairs.retrieval()}
        if not self.run.decode.labels:
            return metrics, None, None
        labels, references = self.choose_labels(examples, pairs)
        return metrics | label_metrics(labels, references), labels, references

    def embed_pairs(self, examples: Source) -> EmbeddedPairs:
        """The vectors of the distinct items and texts of examples; each item is read once, when its turn comes."""
        texts: dict[str, int] = {}
        items: dict[int, int] = {}  # numbers by content
        pairs: list[tuple[int, int]] = []

        def distinct_items() -> Iterator[Program[Embedded]]:
            for index in range(len(examples)):
                raw, text = examples[index]
                number = content_number(raw, index)
                if new := number not in items:
                    items[number] = len(items)
                pairs.append((items[number], texts.setdefault(" ".join(text.split()), len(texts))))
                if new:
                    yield self.item_vector(self.source_item(raw))

        item_rows = self.run_programs(distinct_items())
        text_rows = self.run_programs(self.item_vector(Item(text)) for text in texts)
        first, second = (torch.stack([row.vector for row in rows]) for rows in (item_rows, text_rows))
        require_finite([float(second.sum())])
        return EmbeddedPairs(first, second, [*texts], pairs)

    def label_names(self) -> dict[str, str]:
        """The labels by their names and by their texts: an example may have either."""
        settings: ContrastiveDecode = self.run.decode
        texts = {settings.template.replace(SLOT, label): label for label in settings.labels}
        return texts | {label: label for label in settings.labels}

    def choose_labels(self, examples: Source, pairs: EmbeddedPairs) -> tuple[list[str], list[str]]:
        """The nearest label of every example, and its text, which is one of the labels or its text."""
        settings, names = self.run.decode, self.label_names()
        for index, (_, text) in enumerate(pairs.pairs):
            if pairs.texts[text] not in names:
                raise UserError(
                    f"{examples.location(index)} has the text {pairs.texts[text]!r}, which is none of decode.labels; "
                    "add it, or leave decode.labels out"
                )

        async def label_vectors() -> Tensor:
            return await self.label_vectors(settings)

        (vectors,) = self.run_programs([label_vectors()])
        best = (pairs.items @ vectors.T).argmax(1).tolist()
        labels = [settings.labels[best[item]] for item, _ in pairs.pairs]
        return labels, [names[pairs.texts[text]] for _, text in pairs.pairs]


class MediaPredictor(ContrastivePredictor):
    """A predictor of images or recordings and texts, read from files. A .txt file has lines of text."""

    def open_items(self, name: str) -> Iterator[tuple[str, Any]]:
        if Path(name).suffix.lower() == ".txt" and Path(name).is_file():
            lines = Path(name).read_text(encoding="utf-8-sig").splitlines()
            return ((line, line) for line in lines if line.strip())
        return self.pairs.open_items(name, self.run.data)

    def format_line(self, name: str, request: ContrastiveRequest, result: ClassifyResult) -> str:
        labels = result.top[: self.request_settings(request).top or 1]
        return "\t".join([name, *(f"{label.label}\t{label.probability:.4f}" for label in labels)])


class ContrastiveJob(TrainingJob):
    """Pairs; the loss is over all pairs of a step."""

    predictor: ContrastivePredictor
    splits: Mapping[str, Source]

    def __init__(self, predictor: ContrastivePredictor, splits: dict[str, Source]) -> None:
        self.predictor, self.run, self.splits = predictor, predictor.run, splits
        text = TextSide(predictor.tokenizer, predictor.texts.room)
        source = predictor.pairs.side(predictor.source, text)
        self.objective = ContrastiveObjective(as_module(predictor.model), (source.field, text.field))
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
        pairs = self.predictor.embed_pairs(self.splits["valid"])
        with torch.autocast("cpu", enabled=False):  # cosines of bf16 would be equal where they are not
            return self.valid_metrics(pairs)

    def valid_metrics(self, pairs: EmbeddedPairs) -> dict[str, float]:
        metrics = pairs.retrieval()
        loss = pairs.loss(self.predictor.scale, self.run.train.batch or VALID_PAIRS)
        recall = {name: metrics[name] for name in ("r1", "item_to_text_r1", "text_to_item_r1")}
        metrics = {"loss": loss, **recall, "scale": self.predictor.scale}
        if not {*pairs.texts} <= self.predictor.label_names().keys():  # the texts are no labels
            return metrics
        labels, references = self.predictor.choose_labels(self.splits["valid"], pairs)
        return metrics | {"accuracy": label_metrics(labels, references)["accuracy"]}


# --- construction --------------------------------------------------------------------------------------------------


def pair_source(run: Run) -> PairSource:
    """The items that the model of a run compares with texts."""
    return SOURCES[spec_of(run.model.family).source(run.model)]


def prepare(run: Run, processors: Processors, device: torch.device, folder: Path | None = None) -> ContrastiveJob:
    """Open the data, train the tokenizer and measure frames, if they are not kept; writes no file."""
    splits, pairs = open_splits(run, data_split), pair_source(run)
    text_fields = (0, 1) if pairs is SOURCES["tokens"] else (1,)
    tokenizer = find_tokenizer(processors, TEXT) or train_tokenizer(run.tokenizer, splits["train"].texts(*text_fields))
    source = pairs.new_processor(run, processors, splits["train"])
    run = with_vocab(run, tokenizer, head="none", **pairs.model_settings(source))
    return ContrastiveJob(new_predictor(run, build_model(run), source, tokenizer, device), splits)


def new_predictor(
    run: Run, model: EmbeddingModel, source: Processor | None, tokenizer: Tokenizer, device: torch.device
) -> ContrastivePredictor:
    """A predictor of media, or one of texts if `source` is None."""
    predictor = ContrastivePredictor if source is None else MediaPredictor
    return predictor(run, model, source, tokenizer, device)


def restore(run: Run, folder: Path, device: torch.device) -> ContrastivePredictor:
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
    run = change_settings(Run(task="contrastive", model=folder.config), overrides)
    return new_predictor(run, folder.model, folder.source, folder.tokenizer, resolve_device(run.device))


def size_without_data(run: Run) -> Run:
    """The run with the sizes of a model without data."""
    return encoder.size_without_data(run, head="none")


def data_split(run: Run, split: str, files: DataFiles | None = None) -> Source:
    """A split of the data; the embedded data are scenes with captions, Morse code or dates."""
    data, pairs = run.data, pair_source(run)
    embedded = lambda: pairs.embedded(data, split)  # noqa: E731
    return open_split(run, split, files, lambda files: pairs.open(files, data), embedded, pairs.example)
