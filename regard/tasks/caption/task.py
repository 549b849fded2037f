"""Captions: a sentence for an image, by sequence-to-sequence models whose source is patches."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...config.data.base import DataFiles
from ...config.decode import Seq2SeqDecode
from ...config.run import Run
from ...data.datasets.captions import CaptionDataset
from ...data.loading.loader import Loader
from ...data.source import Source
from ...data.sources.captions import CaptionPairs, captioned_images, open_captioned
from ...data.sources.pairs import split_references
from ...decode import Filter, Suppress
from ...decode.search.constraints import ConstraintTokenizer, parse_constraints
from ...errors import UserError
from ...families.protocols import Seq2SeqModel, as_module
from ...look import AttentionView, Which
from ...metrics.captions import cider
from ...metrics.labels import BootstrapResult
from ...metrics.text import paired_bootstrap, signature, text_metrics
from ...metrics.tokenization import Tokenization, choose_tokenization
from ...modalities.axes import image_axis
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
    Record,
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
from ..generate.base import group_indices
from ..generate.results import changed_settings, constraints_of
from ..generate.seq2seq import NO_CONSTRAINTS
from ..generate.views import END, view_target
from ..generate.writer import VALIDATION_DECODE
from ..notices import require_finite
from ..objectives import Seq2SeqObjective
from ..predictor import PlainResult, Predictor
from ..records import caption_record
from ..requests import CaptionRequest, CaptionResult
from ..task import Task, spec_of
from .generation import ImageGeneration, caption_result

TASK = Task("caption", frozenset({"pixels"}), "target", CaptionRequest, CaptionResult)
IMAGE, TEXT = "image", "text"  # the fields of an example
REQUEST_SETTINGS = "max_tokens", "min_tokens", "repetition_penalty"  # fields of a request that are decode.*
CAPTION_METRICS = ("bleu", "chrf", "exact")  # beside CIDEr-D
CHUNK = 4  # batches of images in memory


class CaptionPredictor(ImageGeneration, Predictor[RawImage, CaptionRequest, CaptionResult]):
    """A caption for every image: a path, bytes, a Pillow image, an array or a tensor."""

    def __init__(
        self,
        run: Run,
        model: Seq2SeqModel,
        image: ImageProcessor,
        target: Tokenizer,
        device: torch.device,
        filters: tuple[Filter, ...] | None = None,
    ) -> None:
        self.run, self.image, self.target, self.device = run, image, target, device
        self.model = model.to(device).eval()
        self.filters = (Suppress([target.pad, target.start]),) if filters is None else filters
        self.constraint_tokenizer = ConstraintTokenizer(target)

    @property
    def processors(self) -> dict[str, Processor]:
        return {IMAGE: self.image, TEXT: TextProcessor(self.target)}

    # --- public methods ----------------------------------------------------------------------------------------

    def requests(self, items: Iterable[RawImage], details: bool = False, **decode: object) -> list[CaptionRequest]:
        """`prefix`, `include` and `exclude` may be lists with one entry per image."""
        items = list(items)
        if not decode:
            return [CaptionRequest(image, details=details) for image in items]
        constraints, settings = parse_constraints(len(items), decode, self.decode_settings)
        shared: dict[str, Any] = {name: getattr(settings, name) for name in REQUEST_SETTINGS}
        shared |= {"strategy": self.strategy(settings), "rules": self.rules(settings), "details": details}
        return [
            CaptionRequest(image, **shared, **constraint._asdict())
            for image, constraint in zip(items, constraints, strict=True)
        ]

    def predict_batch(self, requests: Sequence[CaptionRequest], batch: int | None = None) -> list[CaptionResult]:
        results: dict[int, CaptionResult] = {}
        for indices in group_indices(requests, attrgetter("strategy", "rules", *REQUEST_SETTINGS)):
            group = [requests[i] for i in indices]
            settings = self.decode_settings(changed_settings(group, self.run.decode, batch, REQUEST_SETTINGS))
            size = CHUNK * settings.batch
            chunks = (group[first : first + size] for first in range(0, len(group), size))
            results |= zip(
                indices, (result for chunk in chunks for result in self._predict(chunk, settings)), strict=True
            )
        return [results[i] for i in range(len(requests))]

    def record(self, request: CaptionRequest, result: CaptionResult) -> Record:
        return caption_record(result)

    def is_item(self, x: object) -> bool:
        return is_image(x)

    def open_items(self, name: str) -> Iterator[tuple[str, RawImage]]:
        return open_captioned(name, self.run.data)

    def format_line(self, name: str, request: CaptionRequest, result: CaptionResult) -> str:
        plain = self.plain_result(request, result)
        return "\t".join(" ".join(text.split()) for text in ([plain] if isinstance(plain, str) else plain))

    def score(self, images: Any, captions: Any = None, details: bool = False) -> PlainResult:
        """ln P(caption | image), END included; with details also per token."""
        if is_image(images) and isinstance(captions, str):
            return self.score([images], [captions], details)[0]
        if is_image(images) or isinstance(captions, str) or captions is None:
            raise UserError("score takes an image and its caption, or a list of each, not one of both")
        images, captions = [*images], [*captions]
        if len(images) != len(captions):
            raise UserError(
                f"there are {len(images)} images and {len(captions)} captions; give a caption for each image"
            )
        ids = self.target.encode(captions)
        logprobs = self.target_logprobs(images, ids)
        totals = [sum(tokens) for tokens in logprobs]
        require_finite(totals)
        if not details:
            return totals
        return [
            {"score": total, "pieces": [*self.target.tokens(row), END], "logprobs": tokens}
            for total, row, tokens in zip(totals, ids, logprobs, strict=True)
        ]

    def look(self, text: RawImage, target: str | None = None, layer: Which = None) -> AttentionView:
        """The attention weights while the model reads an image and writes `target`, or its own caption."""
        pixels = self.image.encode_bytes(text)
        if target is None:
            (hypotheses,) = self.search([pixels], self.decode_settings({"kind": "beam", "nbest": 1}))
            ids = hypotheses[0].tokens if hypotheses else []
        else:
            (ids,) = self.target.encode([target])
            self.refuse_long([ids])
        axis = lambda encoded: image_axis(self.model, pixels, encoded.states.size(1))  # noqa: E731
        source = self.image.collate([pixels]).to(self.device)
        return view_target(
            self.model, self.target, source, axis, ids, (self.target.start,), layer, view_title(self.run)
        )

    def evaluate_with_outputs(self, files: DataFiles | None = None) -> tuple[Metrics, list[str], list[list[str]]]:
        """The metrics of images with one or more references each, the captions and the references."""
        examples = data_split(self.run, "test", files)
        examples.require_nonempty("data.test")
        references = reference_lists(examples)
        tokenization = choose_tokenization(references, self.run.eval)  # first: it may raise UserError
        captions = self.captions_of(examples, {"nbest": 1})
        metrics: Metrics = {"examples": len(examples)} | caption_metrics(captions, references, tokenization)
        metrics |= self.loss_metrics(examples, references)
        names = ("bleu", "chrf")
        return (
            metrics | {f"{name} signature": signature(name, references, tokenization) for name in names},
            captions,
            references,
        )

    def paired_test(
        self, outputs: Sequence[Sequence[str]], references: Any, /
    ) -> tuple[dict[str, str], list[BootstrapResult]]:
        tokenization = choose_tokenization(references, self.run.eval)
        return paired_bootstrap(outputs, references, ("bleu", "chrf"), tokenization)

    # --- internals ---------------------------------------------------------------------------------------------

    def _predict(self, requests: Sequence[CaptionRequest], settings: Seq2SeqDecode) -> list[CaptionResult]:
        pixels = self.image.encode_all([request.image for request in requests])
        constraints = self.constraints([constraints_of(request, self.run.decode) for request in requests], settings)
        results = []
        for i, best in enumerate(self.generate(pixels, settings, constraints)):
            traces = self.traces(pixels[i], [hypothesis.tokens for hypothesis in best]) if requests[i].details else []
            constraint = constraints[i] if constraints else NO_CONSTRAINTS
            results.append(caption_result(self.target_texts(best), best, traces, constraint))
        return results

    def captions_of(self, examples: Source, decode: Mapping[str, Any]) -> list[str]:
        """The captions of examples; few images are in memory at a time."""
        size, captions = CHUNK * self.run.decode.batch, list[str]()
        for first in range(0, len(examples), size):
            captions += self.predict([image for image, _ in examples[first : first + size]], **decode)
        return captions

    def loss_metrics(self, examples: Source, references: Sequence[Sequence[str]]) -> dict[str, float]:
        """Nats per token of the first reference, END included, without label smoothing, and perplexity."""
        ids = self.target.encode([texts[0] for texts in references])
        logprobs = self.target_logprobs((image for image, _ in examples), ids)
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

    predictor: CaptionPredictor
    splits: Mapping[str, Source]
    tokenization: Tokenization | None = None  # of BLEU on the validation split

    def __init__(self, predictor: CaptionPredictor, splits: dict[str, Source]) -> None:
        self.predictor, self.run, self.splits = predictor, predictor.run, splits
        self.objective = Seq2SeqObjective(as_module(predictor.model), self.run.train.smoothing)
        max_tokens = min(self.run.data.max_tokens, predictor.context or self.run.data.max_tokens)
        dataset = CaptionDataset(
            splits["train"], predictor.image, predictor.target, self.run.data, self.run.train, max_tokens
        )
        self.loader = Loader.of(dataset)
        if "valid" in splits:  # fail before training, not at the first validation
            references = reference_lists(splits["valid"])
            predictor.refuse_long(
                predictor.target.encode([texts[0] for texts in references]), "a caption of data.valid"
            )
            self.tokenization = choose_tokenization(references, self.run.eval)

    def validate(self) -> dict[str, float]:
        if "valid" not in self.splits:
            return {}
        examples = self.splits["valid"]
        references = reference_lists(examples)
        metrics = self.predictor.loss_metrics(examples, references)
        if self.run.train.metric in metrics:
            return metrics
        captions = self.predictor.captions_of(examples, VALIDATION_DECODE)
        return metrics | caption_metrics(captions, references, self.tokenization)


# --- construction --------------------------------------------------------------------------------------------------


def prepare(run: Run, processors: Processors, device: torch.device, folder: Path | None = None) -> CaptionJob:
    """Open the data and train the tokenizer, if it is not kept; writes no file."""
    splits = open_splits(run, data_split)
    target, image = find_tokenizer(processors, TEXT), processors.get(IMAGE)
    if target is None:
        target = train_tokenizer(run.tokenizer, splits["train"].texts(1))
    squares = spec_of(run.model.family).image(run.model)
    image = image_processor(run.data, squares, image if isinstance(image, ImageProcessor) else None)
    run = with_inputs(with_model_settings(run, vocab=vocab_size(run, target)), TASK.reads)
    return CaptionJob(CaptionPredictor(run, build_model(run), image, target, device), splits)


def restore(run: Run, folder: Path, device: torch.device) -> CaptionPredictor:
    """The predictor of a run folder, without the weights."""
    processors = load_processors(folder)
    image, target = processors.get(IMAGE), require_tokenizer(processors, TEXT)
    if not isinstance(image, ImageProcessor):
        raise UserError(f"{folder} lacks its image processor; restore it, or train the run again")
    return CaptionPredictor(run, build_model(run), image, target, device)


def size_without_data(run: Run) -> Run:
    """The run with the sizes of a model without data."""
    return with_inputs(with_model_settings(run, vocab=max_vocab(run)), TASK.reads)


def data_split(run: Run, split: str, files: DataFiles | None = None) -> Source:
    """A split of the data; the embedded data are scenes of shapes. Training reads every caption of an image."""
    data = run.data
    embedded = lambda: make_captions(data.examples, data.shapes)[split]  # noqa: E731
    read = lambda files: captioned_images(files, data)  # noqa: E731
    examples = open_split(run, split, files, read, embedded, "images/,captions.tsv")
    return CaptionPairs(examples) if split == "train" else examples
