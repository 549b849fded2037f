"""Joint embeddings: images, recordings or texts and the texts that belong to them, in one space (2103.00020)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from ...config.data.base import DataFiles
from ...config.run import Run, change_settings, changed_decode
from ...config.types import Base
from ...data.datasets.contrastive import ContrastiveDataset, ItemSide, TextSide, content_number
from ...data.datasets.rows import max_text_tokens
from ...data.loading.loader import Loader
from ...data.loading.sampler import sorted_batches
from ...data.source import Source
from ...data.tables import columns
from ...device import resolve_device
from ...errors import UserError
from ...families.protocols import EmbeddingModel, as_module
from ...look import AttentionView, ViewAxis, Which, record_layers
from ...metrics.labels import label_metrics, paired_accuracy_bootstrap
from ...metrics.retrieval import retrieval_metrics
from ...processors.base import Processor
from ...processors.saved import load_processors
from ...processors.text.processor import TextProcessor
from ...processors.text.tokenizers import Tokenizer, train_tokenizer
from ..base import (
    Metrics,
    Processors,
    Record,
    TrainingJob,
    build_model,
    find_tokenizer,
    open_split,
    open_splits,
    require_tokenizer,
    view_title,
)
from ..label import encoder
from ..label.embedding import EmbeddingPredictor
from ..label.encoder import with_vocab
from ..notices import Notice, cut_text, require_finite, warn_once
from ..objectives import ContrastiveObjective, contrastive_loss
from ..records import label_record
from ..requests import ClassifyResult, ContrastiveRequest, LabelProbability
from ..task import TEXT as TOKENS
from ..task import Task, spec_of
from .settings import SLOT, ContrastiveDecode
from .sources import SOURCES, TEXT, ItemModality

TASK = Task("contrastive", TOKENS, "embedding", ContrastiveRequest, ClassifyResult)
VALID_PAIRS = 256  # of a step whose loss is computed on valid data, if train.batch does not say
CPU_BATCH_TOKENS = encoder.CPU_BATCH_TOKENS


class ContrastivePredictor(EmbeddingPredictor[Any, ContrastiveRequest, ClassifyResult]):
    """Vectors of texts, and of images or recordings; zero-shot labels.

    With labels, the result for an item is the label whose text is nearest to it.
    """

    model: EmbeddingModel
    fields, roles = 2, (columns.SOURCE, columns.TARGET)
    item_name = "item"
    paired_test = staticmethod(paired_accuracy_bootstrap)

    def __init__(
        self, run: Run, model: EmbeddingModel, source: Processor | None, tokenizer: Tokenizer, device: torch.device
    ) -> None:
        self.run, self.tokenizer, self.device = run, tokenizer, device
        self.source, self.modality = source, source_modality(run)
        self.model = model.to(device).eval()

    @cached_property
    def text_side(self) -> TextSide:
        return TextSide(self.tokenizer, max_text_tokens(self.model.context, self.run.data))

    @cached_property
    def source_side(self) -> ItemSide:
        return self.modality.side(self.source, self.text_side)

    @property
    def processors(self) -> dict[str, Processor]:
        text = TextProcessor(self.tokenizer)
        return {TEXT: text} if self.source is None else {self.modality.field: self.source, TEXT: text}

    # --- public methods ----------------------------------------------------------------------------------------

    def requests(self, items: Iterable[Any], details: bool = False, **decode: object) -> list[ContrastiveRequest]:
        if not decode:
            return [ContrastiveRequest(item) for item in items]
        settings = self.decode_settings(decode)
        return [ContrastiveRequest(item, settings.labels, settings.template, settings.top) for item in items]

    def predict_batch(self, requests: Sequence[ContrastiveRequest], batch: int | None = None) -> list[ClassifyResult]:
        vectors, notices = self.vectors([request.item for request in requests], batch)
        label_vectors: dict[tuple[tuple[str, ...], str], Tensor] = {}
        results = []
        for request, vector, notice in zip(requests, vectors, notices, strict=True):
            settings = self.request_settings(request)
            key = settings.labels, settings.template
            if key not in label_vectors:
                label_vectors[key] = self.label_vectors(settings)
            logprobs = (self.scale * (label_vectors[key] @ vector)).log_softmax(-1)
            require_finite([float(logprobs.sum())])
            ranked = rank_labels(settings.labels, logprobs, settings.top)
            results.append(ClassifyResult(ranked[0].label, ranked[0].probability, ranked, notices=notice))
        return results

    def record(self, request: ContrastiveRequest, result: ClassifyResult) -> Record:
        return label_record(result)

    def plain_result(self, request: ContrastiveRequest, result: ClassifyResult) -> str | list[tuple[str, float]]:
        pairs = [(label.label, label.probability) for label in result.top]
        return pairs if self.request_settings(request).top else result.label or ""

    def is_item(self, x: object) -> bool:
        return isinstance(x, str) or self.modality.is_one(x)

    def embed(self, items: Any, /, **decode: object) -> Tensor:
        """A vector for every item, (items, width); one item gives one vector. Texts and other items may be mixed.

        Vectors have length 1: `normalize` changes nothing.
        """
        if self.is_item(items):
            return self.embed([items], **decode)[0]
        settings, items = self.decode_settings(decode), [*items]
        vectors, notices = self.vectors(items, settings.batch)
        warn_once((notice for group in notices for notice in group), len(items))
        return vectors

    def look(self, text: Any, target: str | None = None, layer: Which = None) -> AttentionView:
        """The attention weights of the tower that reads this text, image or recording."""
        if target is not None:
            raise UserError("this model generates no text, so it takes no target; give the text alone")
        is_source = self.modality.is_source(text)
        side = self.source_side if is_source else self.text_side
        (row,) = side.encode_all([text if is_source else self.checked_text(text)])
        inputs = side.collate([row]).to(self.device)
        with record_layers(self.module, layer, self.model.reader(inputs.modality)) as recorder:
            encoded = self.model.encode(inputs)
        positions = encoded.states.size(1)
        tokens = ViewAxis.of_tokens("token", [] if is_source else self.tokenizer.tokens(row.tolist()))
        axis = self.modality.axis(self.source, text, positions) if is_source else tokens
        return AttentionView.recorded(recorder, {"source": axis}, view_title(self.run))

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

    # --- internals ---------------------------------------------------------------------------------------------

    @property
    def scale(self) -> float:
        return float(self.model.log_scale.detach().float().exp())

    def request_settings(self, request: ContrastiveRequest) -> ContrastiveDecode:
        """decode.*, with what the request changes. Without labels there is nothing to choose from."""
        fields = {name: getattr(request, name) for name in ("labels", "template", "top")}
        changes = {name: value for name, value in fields.items() if value is not None}
        settings = self.decode_settings(changes)
        if not settings.labels:
            raise UserError(
                'this run compares items with texts, and no text is given; add --labels "a dog,a cat", or use --embed '
                "or --similar FILE"
            )
        return settings

    def label_vectors(self, settings: ContrastiveDecode) -> Tensor:
        return self.vectors([settings.template.replace(SLOT, label) for label in settings.labels])[0]

    def vectors(self, items: Sequence[Any], batch: int | None = None) -> tuple[Tensor, list[tuple[Notice, ...]]]:
        """The vectors of items and texts in their order, (items, width), and the notices of each."""
        chosen = [index for index, item in enumerate(items) if self.modality.is_source(item)]
        text_indices = sorted({*range(len(items))}.difference(chosen))
        embedded = torch.zeros(len(items), self.run.model.width)
        notices: list[tuple[Notice, ...]] = [()] * len(items)
        size = batch or int(self.run.decode.batch)
        for first in range(0, len(chosen), size):
            batch_indices = chosen[first : first + size]
            embedded[batch_indices] = self._embed(
                self.source_side, self.source_side.encode_all([items[i] for i in batch_indices])
            )
        texts = self.tokenizer.encode([self.checked_text(items[index]) for index in text_indices])
        rows = self.text_side.encode_all([items[index] for index in text_indices]) if text_indices else []
        tokens = CPU_BATCH_TOKENS if self.device.type == "cpu" else 0
        for places in sorted_batches([len(row) for row in rows], tokens, size):
            embedded[[text_indices[place] for place in places]] = self._embed(self.text_side, [rows[i] for i in places])
        for index, ids in zip(text_indices, texts, strict=True):
            if len(ids) > self.text_side.room:
                notices[index] = (cut_text(self.text_side.room),)
        require_finite([float(embedded.sum())])
        return embedded, notices

    @torch.no_grad()
    def _embed(self, side: ItemSide, encoded: Sequence[Any]) -> Tensor:
        return self.model.vectors(side.collate(encoded).to(self.device)).float().cpu()

    def checked_text(self, text: str) -> str:
        if not text.strip():
            raise UserError("a text is empty and has no embedding; give at least one word")
        return text

    def embed_pairs(self, examples: Source) -> "EmbeddedPairs":
        """The vectors of the distinct items and texts of examples; each item is read once, batch by batch."""
        texts: dict[str, int] = {}
        items: dict[int, int] = {}  # numbers by content
        pairs, vectors, size = [], list[Tensor](), int(self.run.decode.batch)
        for first in range(0, len(examples), size):
            new = []
            for index in range(first, min(first + size, len(examples))):
                raw, text = examples[index]
                number = content_number(raw, index)
                if number not in items:
                    items[number] = len(items)
                    new.append(raw)
                pairs.append((items[number], texts.setdefault(" ".join(text.split()), len(texts))))
            if new:
                vectors.append(self._embed(self.source_side, self.source_side.encode_all(new)))
        return EmbeddedPairs(torch.cat(vectors), self.vectors([*texts])[0], [*texts], pairs)

    def label_names(self) -> dict[str, str]:
        """The labels by their names and by their texts: an example may have either."""
        settings: ContrastiveDecode = self.run.decode
        texts = {settings.template.replace(SLOT, label): label for label in settings.labels}
        return texts | {label: label for label in settings.labels}

    def choose_labels(self, examples: Source, pairs: "EmbeddedPairs") -> tuple[list[str], list[str]]:
        """The nearest label of every example, and its text, which is one of the labels or its text."""
        settings, names = self.run.decode, self.label_names()
        for index, (_, text) in enumerate(pairs.pairs):
            if pairs.texts[text] not in names:
                raise UserError(
                    f"{examples.location(index)} has the text {pairs.texts[text]!r}, which is none of decode.labels; "
                    "add it, or leave decode.labels out"
                )
        best = (pairs.items @ self.label_vectors(settings).T).argmax(1).tolist()
        labels = [settings.labels[best[item]] for item, _ in pairs.pairs]
        return labels, [names[pairs.texts[text]] for _, text in pairs.pairs]

    def decode_settings(self, decode: Mapping[str, object]) -> ContrastiveDecode:
        settings: ContrastiveDecode = changed_decode(self.run, decode)
        return settings


class MediaPredictor(ContrastivePredictor):
    """A predictor of images or recordings and texts, read from files. A .txt file has lines of text."""

    def open_items(self, name: str) -> Iterator[tuple[str, Any]]:
        if Path(name).suffix.lower() == ".txt" and Path(name).is_file():
            lines = Path(name).read_text(encoding="utf-8-sig").splitlines()
            return ((line, line) for line in lines if line.strip())
        return self.modality.open_items(name, self.run.data)

    def format_line(self, name: str, request: ContrastiveRequest, result: ClassifyResult) -> str:
        labels = result.top[: self.request_settings(request).top or 1]
        return "\t".join([name, *(f"{label.label}\t{label.probability:.4f}" for label in labels)])


class EmbeddedPairs:
    """Distinct items and texts with their vectors; `pairs` are the numbers of those of every example."""

    def __init__(self, items: Tensor, vectors: Tensor, texts: Sequence[str], pairs: Sequence[tuple[int, int]]) -> None:
        self.items, self.vectors, self.texts, self.pairs = items, vectors, texts, pairs

    def retrieval(self) -> dict[str, float]:
        return retrieval_metrics(self.items, self.vectors, self.pairs)

    def loss(self, scale: float, size: int) -> float:
        """Nats per pair, in steps of `size` pairs in their order."""
        total = 0.0
        numbers = torch.tensor(self.pairs)
        for step_pairs in torch.split(numbers, size):
            items, texts = step_pairs.unbind(1)
            scores = scale * (self.items[items] @ self.vectors[texts].T)
            positives = (items[:, None] == items) | (texts[:, None] == texts)
            total += float(contrastive_loss(scores, positives))
        return total / len(numbers)


class ContrastiveJob(TrainingJob):
    """Pairs; the loss is over all pairs of a step."""

    predictor: ContrastivePredictor
    splits: Mapping[str, Source]

    def __init__(self, predictor: ContrastivePredictor, splits: dict[str, Source]) -> None:
        self.predictor, self.run, self.splits = predictor, predictor.run, splits
        fields = predictor.source_side.field, predictor.text_side.field
        self.objective = ContrastiveObjective(as_module(predictor.model), fields)
        dataset = ContrastiveDataset(
            splits["train"], predictor.source_side, predictor.text_side, self.run.data, self.run.train
        )
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


def source_modality(run: Run) -> ItemModality:
    """The modality that the model of a run reads beside texts."""
    return SOURCES[spec_of(run.model.family).source(run.model)]


def prepare(run: Run, processors: Processors, device: torch.device, folder: Path | None = None) -> ContrastiveJob:
    """Open the data, train the tokenizer and measure frames, if they are not kept; writes no file."""
    splits, modality = open_splits(run, data_split), source_modality(run)
    text_fields = (0, 1) if modality is SOURCES["tokens"] else (1,)
    tokenizer = find_tokenizer(processors, TEXT) or train_tokenizer(run.tokenizer, splits["train"].texts(*text_fields))
    source = modality.new_processor(run, processors, splits["train"])
    run = with_vocab(run, tokenizer, head="none", **modality.model_settings(source))
    return ContrastiveJob(new_predictor(run, build_model(run), source, tokenizer, device), splits)


def new_predictor(
    run: Run, model: EmbeddingModel, source: Processor | None, tokenizer: Tokenizer, device: torch.device
) -> ContrastivePredictor:
    """A predictor of media, or one of texts if `source` is None."""
    predictor = ContrastivePredictor if source is None else MediaPredictor
    return predictor(run, model, source, tokenizer, device)


def restore(run: Run, folder: Path, device: torch.device) -> ContrastivePredictor:
    """The predictor of a run folder, without the weights."""
    processors, modality = load_processors(folder), source_modality(run)
    if modality is not SOURCES["tokens"] and modality.field not in processors:
        raise UserError(f"{folder} lacks its processor of {modality.noun}s; restore it, or train the run again")
    return new_predictor(
        run, build_model(run), processors.get(modality.field), require_tokenizer(processors, TEXT), device
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
    data, modality = run.data, source_modality(run)
    embedded = lambda: modality.embedded(data, split)  # noqa: E731
    return open_split(run, split, files, lambda files: modality.open(files, data), embedded, modality.example)


def rank_labels(labels: Sequence[str], logprobs: Tensor, top: int) -> tuple[LabelProbability, ...]:
    """The labels with their probabilities, the likeliest first; `top` of them, or all."""
    order = logprobs.exp().sort(descending=True, stable=True)
    chosen = slice(top or len(labels))
    names = [labels[number] for number in order.indices[chosen].tolist()]
    return tuple(map(LabelProbability, names, order.values[chosen].tolist()))
