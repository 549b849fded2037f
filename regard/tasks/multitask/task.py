"""Texts, images and sound in one model: it writes a text for each input; a tag selects the task."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...config.data.base import DataFiles
from ...config.data.mixed import EMBEDDED
from ...config.decode import NEUTRAL_SAMPLING
from ...config.run import Run
from ...data.datasets.multitask import MultitaskDataset, MultitaskSampler
from ...data.loading.loader import Loader
from ...data.source import Source
from ...data.sources.manifest import open_manifests
from ...data.sources.task_mixture import TaskMixture
from ...decode import Hypothesis, Suppress
from ...decode.search.constraints import Constraints, ConstraintTokenizer, parse_constraints
from ...errors import UserError
from ...families.protocols import SpeechModel, as_module
from ...look import AttentionView, ViewAxis, Which
from ...metrics.labels import BootstrapResult
from ...metrics.text import paired_bootstrap
from ...metrics.tokenization import choose_tokenization
from ...processors.base import Processor
from ...processors.labels import LabelProcessor
from ...processors.saved import load_processors
from ...processors.text.processor import TextProcessor
from ...processors.text.tokenizers import Tokenizer, train_tokenizer
from ...synthetic.mixture import make_multitask
from ..base import (
    Metrics,
    Processors,
    Record,
    TrainingJob,
    build_model,
    find_labels,
    find_tokenizer,
    max_vocab,
    open_split,
    open_splits,
    require_tokenizer,
    view_title,
    with_inputs,
    with_model_settings,
)
from ..generate.base import group_indices
from ..generate.results import changed_settings, constraints_of, make_translation
from ..generate.seq2seq import NO_CONSTRAINTS, SourceGeneration, SourceInputs
from ..generate.views import known_logprobs, trace_target, view_target
from ..notices import require_finite
from ..objectives import Seq2SeqCtcObjective
from ..predictor import PlainResult, Predictor
from ..records import multitask_record
from ..requests import MultitaskRequest, MultitaskResult, Translation
from ..task import Task
from ..text2text.task import MetricsByTask
from .items import Item, as_item, is_single, open_items
from .modalities import Modality, new_modalities, restored_modalities
from .settings import MultitaskDecode
from .tags import TaggedTargets, TaskTags

TASK = Task(
    "multitask", frozenset({"tokens", "pixels", "frames"}), "target", MultitaskRequest, MultitaskResult
)  # fmt: skip
TEXT, TASK_FIELD = "text", "task"  # fields of the tokenizer and of the tags
REQUEST_SETTINGS = "max_tokens", "min_tokens", "repetition_penalty", "task"  # fields of a request that are decode.*
VALIDATION_DECODE: dict[str, Any] = {"kind": "greedy", "nbest": 1, "include": (), **NEUTRAL_SAMPLING}
CHUNK = 16  # batches of inputs in memory


class MultitaskPredictor(SourceGeneration[SourceInputs], Predictor[Any, MultitaskRequest, MultitaskResult]):
    """The text for every input: a text, an image or a recording (see `items.as_item`)."""

    model: SpeechModel

    def __init__(
        self,
        run: Run,
        model: SpeechModel,
        modalities: Mapping[str, Modality],
        tokenizer: Tokenizer,
        tags: TaskTags,
        device: torch.device,
    ) -> None:
        self.run, self.modalities, self.target, self.tags, self.device = run, modalities, tokenizer, tags, device
        self.model = model.to(device).eval()
        self.filters = (Suppress([tokenizer.pad, tokenizer.start, *tags.ids]),)
        self.constraint_tokenizer = ConstraintTokenizer(tokenizer)

    @property
    def processors(self) -> dict[str, Processor]:
        media = {name: modality.processor for name, modality in self.modalities.items() if name != TEXT}
        return {TEXT: TextProcessor(self.target), **media, TASK_FIELD: LabelProcessor(self.tags.labels)}

    # --- public methods ----------------------------------------------------------------------------------------

    def requests(self, items: Iterable[Any], details: bool = False, **decode: object) -> list[MultitaskRequest]:
        """`prefix`, `include` and `exclude` may be lists with one entry per input."""
        inputs = [as_item(item) for item in items]
        constraints, settings = parse_constraints(len(inputs), decode, self.decode_settings)
        shared: dict[str, Any] = {"details": details}
        if decode:
            shared |= {name: getattr(settings, name) for name in REQUEST_SETTINGS}
            shared |= {"strategy": self.strategy(settings), "rules": self.rules(settings)}
        requests = []
        for item, constraint in zip(inputs, constraints, strict=True):
            task = {} if item.task is None else {"task": item.task}
            fields = constraint._asdict() if decode else {}
            requests.append(MultitaskRequest(item.modality, item.value, **{**shared, **fields, **task}))  # type: ignore[arg-type]
        return requests

    def predict_batch(self, requests: Sequence[MultitaskRequest], batch: int | None = None) -> list[MultitaskResult]:
        results: dict[int, MultitaskResult] = {}
        for indices in group_indices(requests, attrgetter("strategy", "rules", *REQUEST_SETTINGS)):
            settings = self.decode_settings(
                changed_settings([requests[i] for i in indices], self.run.decode, batch, REQUEST_SETTINGS)
            )
            size = CHUNK * settings.batch
            for group in (indices[first : first + size] for first in range(0, len(indices), size)):
                results |= zip(group, self._predict([requests[i] for i in group], settings), strict=True)
        return [results[i] for i in range(len(requests))]

    def record(self, request: MultitaskRequest, result: MultitaskResult) -> Record:
        return multitask_record(result)

    def is_item(self, x: object) -> bool:
        return is_single(x)

    def open_items(self, name: str) -> Iterator[tuple[str, Any]]:
        return open_items(name)

    def text_item(self, line: str) -> dict[str, str]:
        """A line of stdin as an item."""
        return {TEXT: line}

    def format_line(self, name: str, request: MultitaskRequest, result: MultitaskResult) -> str:
        plain = self.plain_result(request, result)
        return (
            " ".join(plain.split()) if isinstance(plain, str) else "\t".join(" ".join(text.split()) for text in plain)
        )

    def score(self, texts: Any, targets: Any = None, details: bool = False) -> PlainResult:
        """ln P(target | input), END included; with details also per token."""
        if is_single(texts) and isinstance(targets, str):
            return self.score([texts], [targets], details)[0]
        if is_single(texts) or isinstance(targets, str) or targets is None:
            raise UserError("score takes an input and its target, or a list of each, not one of both")
        items, expected = [as_item(item) for item in texts], [*targets]
        if len(items) != len(expected):
            raise UserError(f"there are {len(items)} inputs and {len(expected)} targets; give a target for each input")
        ids = self.target.encode(expected)
        logprobs = [
            self._logprobs(item.modality, [item.value], [self._task(item)], [row])[0]
            for item, row in zip(items, ids, strict=True)
        ]
        totals = [sum(tokens) for tokens in logprobs]
        require_finite(totals)
        if not details:
            return totals
        return [
            {"score": total, "pieces": [*self.target.tokens(row), "■"], "logprobs": tokens}
            for total, row, tokens in zip(totals, ids, logprobs, strict=True)
        ]

    def look(self, text: Any, target: str | None = None, layer: Which = None) -> AttentionView:
        """The attention weights while the model reads an input and writes `target`, or its own output."""
        item = as_item(text)
        source = self._source(item)
        if target is None:
            (hypotheses,) = self.search([source], self.decode_settings({"nbest": 1}))
            tokens = hypotheses[0].tokens if hypotheses else []
        else:
            (tokens,) = self.target.encode([target])
        prompt = (self.target.start, *source.prompt)
        axis = lambda encoded: self.modalities[item.modality].axis(item.value, encoded.states.size(1))  # noqa: E731
        inputs = source.inputs.to(self.device)
        return view_target(self.model, self.target, inputs, axis, tokens, prompt, layer, view_title(self.run))

    def evaluate_with_outputs(self, files: DataFiles | None = None) -> tuple[Metrics, list[str], list[str]]:
        """The metrics of `evaluate`, the outputs and the references."""
        mixture = TaskMixture(data_split(self.run, "test", files))
        mixture.require_nonempty("data.test")
        self.tags.require_known(mixture, "data.test")
        outputs, tasks = self.evaluate_tasks(mixture, {"nbest": 1})
        losses = self.losses(mixture)
        metrics: Metrics = {"examples": len(mixture), **mean_metrics(tasks), **losses}
        references = [str(mixture.field(index, 2)) for index in range(len(mixture))]
        return metrics | {"tasks": MetricsByTask(tasks)}, outputs, references

    def paired_test(
        self, outputs: Sequence[Sequence[str]], references: Any, /
    ) -> tuple[dict[str, str], list[BootstrapResult]]:
        correct = [[reference] for reference in references]
        return paired_bootstrap(outputs, correct, tokenization=choose_tokenization(correct, self.run.eval))

    # --- metrics -----------------------------------------------------------------------------------------------

    def evaluate_tasks(
        self, mixture: TaskMixture, decode: Mapping[str, Any]
    ) -> tuple[list[str], dict[str, dict[str, Any]]]:
        """The output of every example, and the metrics of every task; one entry per modality if a task has several."""
        texts: list[str] = [""] * len(mixture)
        tasks: dict[str, dict[str, Any]] = {}
        for indices in group_indices(mixture.tags, lambda tag: tag):
            tag = mixture.tags[indices[0]]
            inputs = ({tag.modality: mixture.field(index, 1)} for index in indices)
            outputs = self.predict(inputs, **{**decode, "task": tag.task})
            references = [str(mixture.field(index, 2)) for index in indices]
            alone = sum(other.task == tag.task for other in self.tags.pairs) == 1
            name = tag.task if alone else f"{tag.task} ({tag.modality})"
            tasks[name] = self.modalities[tag.modality].metrics(outputs, references, self.run.eval)
            for index, text in zip(indices, outputs, strict=True):
                texts[index] = text
        return texts, tasks

    def losses(self, mixture: TaskMixture) -> dict[str, float]:
        """Nats per target token, END included, without label smoothing: overall and by modality; and perplexity."""
        nats, tokens = dict[str, float](), dict[str, int]()
        for modality in mixture.modalities:
            examples, size = mixture.of_modality(modality), self.run.decode.batch
            nats[modality], tokens[modality] = 0.0, 0
            for first in range(0, len(examples), size):
                raws, targets = zip(*examples[first : first + size], strict=True)
                rows = self.target.encode(list(targets))
                logprobs = self._logprobs(modality, raws, [target.task for target in targets], rows)
                nats[modality] -= sum(map(sum, logprobs))
                tokens[modality] += sum(map(len, logprobs))
        loss = sum(nats.values()) / max(sum(tokens.values()), 1)
        by_modality = {f"{modality}_loss": nats[modality] / max(tokens[modality], 1) for modality in mixture.modalities}
        return {"loss": loss, "perplexity": float(np.exp(loss)), **by_modality}

    @torch.no_grad()
    def _logprobs(
        self, name: str, raws: Sequence[Any], tasks: Sequence[str], targets: Sequence[list[int]]
    ) -> list[list[float]]:
        modality = self._modality(name)
        inputs = modality.processor.collate([modality.encode(raw) for raw in raws]).to(self.device)
        prompts = [(self.target.start, self.tags.token(task)) for task in tasks]
        return known_logprobs(self.model, self.model.encode(inputs), prompts, targets, self.target)

    # --- internals ---------------------------------------------------------------------------------------------

    def _modality(self, name: str) -> Modality:
        if name not in self.modalities:
            known = " and ".join(self.modalities)
            raise UserError(f"this run reads {known}, but an input is of kind {name}; leave it out")
        return self.modalities[name]

    def _task(self, item: Item) -> str:
        self._modality(item.modality)  # refuses one that the run cannot read
        return self.tags.choose(item.modality, self.run.decode.task if item.task is None else item.task)

    def _source(self, item: Item) -> SourceInputs:
        return self._modality(item.modality).source(item.value, (self.tags.token(self._task(item)),))

    def sources(self, items: Sequence[SourceInputs]) -> list[SourceInputs]:
        return list(items)

    def _predict(self, requests: Sequence[MultitaskRequest], settings: MultitaskDecode) -> list[MultitaskResult]:
        items = [
            Item(request.kind, request.value, settings.task if request.task is None else request.task)
            for request in requests
        ]
        filled = [i for i, item in enumerate(items) if not (isinstance(item.value, str) and not item.value.strip())]
        sources = {i: self._source(items[i]) for i in filled}
        requested = [constraints_of(requests[i], self.run.decode) for i in filled]
        constraints = self.constraints(requested, settings)
        hypotheses = dict(zip(filled, self.generate([*sources.values()], settings, constraints), strict=True))
        constraint_of = dict(zip(filled, constraints or [NO_CONSTRAINTS] * len(filled), strict=True))
        return [
            self._result(
                item, sources.get(i), hypotheses.get(i, []), constraint_of.get(i, NO_CONSTRAINTS), requests[i].details
            )
            for i, item in enumerate(items)
        ]

    @torch.no_grad()
    def _result(
        self,
        item: Item,
        source: SourceInputs | None,
        hypotheses: list[Hypothesis],
        constraints: Constraints,
        details: bool,
    ) -> MultitaskResult:
        texts = self.target_texts(hypotheses)
        nbest = [
            make_translation(text, hypothesis, constraints) for text, hypothesis in zip(texts, hypotheses, strict=True)
        ]
        positions: tuple[str, ...] = ()
        if details and source is not None:
            for number, hypothesis in enumerate(hypotheses):
                logprobs, view = self._trace(item.modality, source, hypothesis.tokens)
                positions = tuple(view.source)
                nbest[number] = replace(
                    nbest[number],
                    pieces=tuple(view.target[:-1]),
                    logprobs=tuple(logprobs[: len(hypothesis.tokens) + hypothesis.ended]),
                    alignment=tuple(view.cross()[: len(hypothesis.tokens)].argmax(1).tolist()),
                )
        best = nbest[0] if nbest else Translation("", missing=tuple(constraints.missing("")))
        task = self._task(item) if source is not None else ""
        return MultitaskResult(**vars(best), kind=item.modality, task=task, positions=positions, nbest=tuple(nbest))

    def _trace(self, modality: str, source: SourceInputs, tokens: Sequence[int]) -> tuple[list[float], AttentionView]:
        encoded = self.model.encode(source.inputs.to(self.device))
        names = self.modalities[modality].positions(source.inputs, encoded.states.size(1))
        axis = ViewAxis.of_tokens("source", names)
        return trace_target(self.model, self.target, encoded, axis, tokens, (self.target.start, *source.prompt))

    def decode_settings(self, decode: Mapping[str, object]) -> MultitaskDecode:
        settings = super().decode_settings(decode)
        assert isinstance(settings, MultitaskDecode)
        return settings


def mean_metrics(tasks: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """The mean over the tasks of the metric that all have."""
    return {"exact": sum(metrics["exact"] for metrics in tasks.values()) / max(len(tasks), 1)}


class MultitaskJob(TrainingJob):
    """Inputs of several modalities with their targets."""

    predictor: MultitaskPredictor
    splits: Mapping[str, TaskMixture]

    def __init__(self, predictor: MultitaskPredictor, splits: dict[str, TaskMixture]) -> None:
        self.predictor, self.run, self.splits = predictor, predictor.run, splits
        run, tags, tokenizer, train = self.run, predictor.tags, predictor.target, splits["train"]
        self.objective = Seq2SeqCtcObjective(as_module(predictor.model), run.train.smoothing, tokenizer.pad)
        targets = TaggedTargets(tokenizer, dict(zip(tags.tasks, tags.ids, strict=True)))
        members = {
            name: modality.dataset(train.of_modality(name), targets, tokenizer.pad, run)
            for name, modality in predictor.modalities.items()
        }
        strides = {name: modality.stride for name, modality in predictor.modalities.items()}
        self.loader = Loader.of(MultitaskDataset(train, members, strides, run.data, run.train), MultitaskSampler)

    def validate(self) -> dict[str, float]:
        if "valid" not in self.splits:
            return {}
        valid = self.splits["valid"]
        metrics = self.predictor.losses(valid)
        if self.run.train.metric in metrics:
            return metrics
        _, tasks = self.predictor.evaluate_tasks(valid, VALIDATION_DECODE)
        return metrics | mean_metrics(tasks) | {f"{task}_exact": scores["exact"] for task, scores in tasks.items()}


# --- construction --------------------------------------------------------------------------------------------------


def prepare(run: Run, processors: Processors, device: torch.device, folder: Path | None = None) -> MultitaskJob:
    """Open the data, train the tokenizer and measure the frames, if they are not kept; writes no file."""
    sources = open_splits(run, data_split)
    splits = {
        name: TaskMixture(source, run.data.task_weights if name == "train" else None)
        for name, source in sources.items()
    }
    train = splits["train"]
    tokenizer = find_tokenizer(processors, TEXT) or train_tokenizer(run.tokenizer, train.texts_to_learn())
    labels = find_labels(processors, TASK_FIELD)
    tags = TaskTags.of(train, tokenizer.size) if labels is None else TaskTags(labels, tokenizer.size)
    tags.require_known(train, "data.train")
    if "valid" in splits:
        tags.require_known(splits["valid"], "data.valid")
        tags.require_modalities(splits["valid"], "data.valid")
    modalities = new_modalities(
        run, processors, tokenizer, {name: train.of_modality(name) for name in train.modalities}
    )
    run = with_model_settings(run, vocab=tokenizer.size + len(tags.tasks), bins=run.data.bins)
    run = with_inputs(run, {modality.tensor_kind for modality in modalities.values()})
    return MultitaskJob(MultitaskPredictor(run, build_model(run), modalities, tokenizer, tags, device), splits)


def restore(run: Run, folder: Path, device: torch.device) -> MultitaskPredictor:
    """The predictor of a run folder, without the weights."""
    processors = load_processors(folder)
    tokenizer, labels = require_tokenizer(processors, TEXT), find_labels(processors, TASK_FIELD)
    if labels is None:
        raise UserError(f"{folder} lacks the tags of its tasks; restore them, or train the run again")
    modalities, tags = restored_modalities(run, processors, tokenizer), TaskTags(labels, tokenizer.size)
    return MultitaskPredictor(run, build_model(run), modalities, tokenizer, tags, device)


def size_without_data(run: Run) -> Run:
    """The run with the sizes of a model without data."""
    return with_model_settings(run, vocab=max_vocab(run) + len(EMBEDDED), bins=run.data.bins)


def data_split(run: Run, split: str, files: DataFiles | None = None) -> Source:
    """A split of the data; the embedded data are dates, scenes and Morse code."""
    data = run.data
    embedded = lambda: make_multitask(data, split)  # noqa: E731
    return open_split(run, split, files, lambda files: open_manifests(files, data), embedded, "test.jsonl")
