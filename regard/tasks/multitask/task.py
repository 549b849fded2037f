"""Texts, images and sound in one model: it writes a text for each input; a tag selects the task."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...config.data.base import DataFiles
from ...config.data.mixed import EMBEDDED
from ...data.datasets.fields import STRIDE
from ...data.datasets.multitask import MultitaskDataset, MultitaskSampler
from ...data.loading.loader import Loader
from ...data.source import Source
from ...data.sources.manifest import TEXT, open_manifests
from ...data.sources.task_mixture import TaskMixture
from ...decode import Suppress
from ...decode.engine.answer import Emit
from ...errors import UserError
from ...families.protocols import SpeechModel, as_module
from ...look import AttentionView, Which
from ...messages.media import Item, Media
from ...messages.texts import MultitaskRequest, MultitaskResult
from ...messages.verbs import ScoreRequest, ScoreResult
from ...metrics.labels import BootstrapResult
from ...metrics.text import paired_bootstrap
from ...metrics.tokenization import choose_tokenization
from ...modalities.base import Modality
from ...modalities.image import ImageModality
from ...modalities.sound import SoundModality
from ...modalities.text import TextModality
from ...parts.inputs import TensorKind
from ...processors.base import Processor
from ...processors.labels import LabelProcessor
from ...processors.saved import load_processors
from ...processors.text.processor import TextProcessor
from ...processors.text.tokenizers import Tokenizer, train_tokenizer
from ...synthetic.mixture import make_multitask
from ..base import (
    Metrics,
    Processors,
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
from ..generate.plans import best_text
from ..generate.predictor import TextPredictor, pair_requests, predict_lazily
from ..generate.writer import TextWriter, text_fields
from ..notices import uniform_image
from ..objectives import Seq2SeqCtcObjective
from ..reading import FileItems, ItemReader
from ..task import Task
from ..text2text.task import MetricsByTask
from .items import RawInput, as_item, input_of, is_single, new_item, new_request, open_items
from .settings import MultitaskRun
from .tags import TaggedTargets, TaskTags
from .training import TRAINING

TASK = Task("multitask", frozenset({"tokens", "pixels", "frames"}), "target")
TASK_FIELD = "task"  # the field of the tags


class InputTexts(TextModality):
    """Texts as tokens with END. Samples depend on the tokens."""

    key = Modality.key


class Modalities(dict[str, Modality[Any]]):
    """The modalities that a model reads, by name; others are refused."""

    def __missing__(self, name: str) -> Modality[Any]:
        raise UserError(f"this run reads {' and '.join(self)}, but an input is of kind {name}; leave it out")


class MultitaskPredictor(TextPredictor[RawInput, MultitaskRequest, MultitaskResult]):
    """The text for every input: a text, an image or a recording (see `items.as_item`)."""

    run: MultitaskRun
    request_type, result_type = MultitaskRequest, MultitaskResult
    window = 256  # inputs in memory

    def __init__(
        self,
        run: MultitaskRun,
        model: SpeechModel,
        processors: Mapping[str, Processor],
        tags: TaskTags,
        device: torch.device,
    ) -> None:
        """`processors` by the name of their modality, with the tokenizer as `text`."""
        self.run, self.tags, self.device = run, tags, device
        self.model = model.to(device).eval()
        self.target = require_tokenizer(processors, TEXT)
        self.modalities = new_modalities(run, processors)
        used = {name: processors[name] for name in (TEXT, *self.modalities)}
        self._processors = {**used, TASK_FIELD: LabelProcessor(tags.labels)}
        self.filters = (Suppress([self.target.pad, self.target.start, *tags.ids]),)

    @property
    def output_tokenizer(self) -> Tokenizer:
        return self.target

    @cached_property
    def writer(self) -> TextWriter:
        """Writes the texts, and scores known ones."""
        return TextWriter(self.engine.context)

    @property
    def processors(self) -> dict[str, Processor]:
        return self._processors

    def is_item(self, x: object) -> bool:
        return is_single(x)

    @property
    def item_reader(self) -> ItemReader:
        return replace(super().item_reader, files=FileItems(open_items, partial(new_item, TEXT)))

    def requests(self, items: Iterable[RawInput], details: bool = False, **decode: object) -> list[MultitaskRequest]:
        """`prefix`, `include` and `exclude` may be lists with one entry per input."""
        inputs = [as_item(item) for item in items]
        fields = self.plan.fields(MultitaskRequest, len(inputs), details, decode)
        return [new_request(item, named) for item, named in zip(inputs, fields, strict=True)]

    async def answer(self, request: MultitaskRequest, emit: Emit | None = None) -> MultitaskResult:
        plan, (name, value) = self.plan(request), input_of(request)
        if (modality := self.modalities[name]).is_empty(value):
            return MultitaskResult("", missing=tuple(plan.constraints.missing("")))
        task = self.tags.choose(name, plan.decode.task)
        written = await self.writer.write(modality, value, plan, request, emit, (self.tags.token(task),))
        fields = text_fields(written.texts, plan, request.details)
        fields["notices"] = (*uniform_image(modality.is_uniform(written.source.array)), *fields["notices"])
        return MultitaskResult(**fields, usage=written.usage, task=task)

    def _tagged(self, item: Item) -> tuple[Modality[Any], str | Media, tuple[int, ...]]:
        """The modality of an item, its value, and the token of its task."""
        name, value = input_of(item)
        modality = self.modalities[name]
        task = self.tags.choose(name, self.run.decode.task if item.task is None else item.task)
        return modality, value, (self.tags.token(task),)

    def score_requests(
        self, items: "RawInput | Iterable[RawInput]", targets: str | Iterable[str] | None
    ) -> tuple[list[ScoreRequest], bool]:
        nouns = "an input and its target", "inputs", "targets"
        pairs = pair_requests(items, targets, single := is_single(items), nouns)
        return [ScoreRequest(as_item(item), target) for item, target in pairs], single

    async def answer_score(self, request: ScoreRequest, emit: Emit | None = None) -> ScoreResult:
        modality, value, prompt = self._tagged(request.item)
        return await self.writer.score_text(modality, request, prompt)

    async def view(self, item: RawInput, target: str | None = None, layer: Which = None) -> AttentionView:
        modality, value, prompt = self._tagged(item := as_item(item))
        plan = self.plan(self.requests([item], strategy=best_text(self.run))[0])
        return await self.writer.look(modality, value, plan, target, layer, view_title(self.run), prompt)

    def look_item(self, item: Item) -> Item:
        return item

    def evaluate_with_outputs(self, files: DataFiles | None = None) -> tuple[Metrics, list[str], list[str]]:
        mixture = TaskMixture(data_split(self.run, "test", files))
        mixture.require_nonempty("data.test")
        return evaluate_mixture(self, mixture)

    def paired_test(
        self, outputs: Sequence[Sequence[str]], references: Sequence[str], /
    ) -> tuple[dict[str, str], list[BootstrapResult]]:
        correct = [[reference] for reference in references]
        return paired_bootstrap(outputs, correct, tokenization=choose_tokenization(correct, self.run.eval))


# --- metrics ---------------------------------------------------------------------------------------------------------


def evaluate_mixture(predictor: MultitaskPredictor, mixture: TaskMixture) -> tuple[Metrics, list[str], list[str]]:
    """The metrics of test data, the outputs and the references."""
    predictor.tags.require_known(mixture, "data.test")
    outputs, tasks = evaluate_tasks(predictor, mixture, {"strategy": best_text(predictor.run)})
    metrics: Metrics = {"examples": len(mixture), **mean_metrics(tasks), **losses(predictor, mixture)}
    references = [str(mixture.field(index, 2)) for index in range(len(mixture))]
    return metrics | {"tasks": MetricsByTask(tasks)}, outputs, references


def evaluate_tasks(
    predictor: MultitaskPredictor, mixture: TaskMixture, decode: Mapping[str, object]
) -> tuple[list[str], dict[str, dict[str, float | str]]]:
    """The output of every example, and the metrics of every task; one entry per modality if a task has several."""
    texts: list[str] = [""] * len(mixture)
    tasks: dict[str, dict[str, float | str]] = {}
    for tag in dict.fromkeys(mixture.tags):
        indices = [index for index, other in enumerate(mixture.tags) if other == tag]
        inputs = (new_item(tag.modality, mixture.field(index, 1), tag.task) for index in indices)
        outputs = predict_lazily(predictor, inputs, decode)
        references = [str(mixture.field(index, 2)) for index in indices]
        alone = sum(other.task == tag.task for other in predictor.tags.pairs) == 1
        name = tag.task if alone else f"{tag.task} ({tag.modality})"
        tasks[name] = {**TRAINING[tag.modality].metrics(outputs, references, predictor.run.eval)}
        for index, text in zip(indices, outputs, strict=True):
            texts[index] = text
    return texts, tasks


def losses(predictor: MultitaskPredictor, mixture: TaskMixture) -> dict[str, float]:
    """Nats per target token, END included, without label smoothing: overall and by modality; and perplexity."""
    nats, tokens = dict[str, float](), dict[str, int]()
    writer, tags = predictor.writer, predictor.tags
    for name in mixture.modalities:
        modality = predictor.modalities[name]
        rows = predictor.run_programs(
            writer.logprobs(modality, raw, target, (tags.token(target.task),))
            for raw, target in mixture.of_modality(name)
        )
        nats[name] = -sum(sum(logprobs) for _, logprobs in rows)
        tokens[name] = sum(len(logprobs) for _, logprobs in rows)
    loss = sum(nats.values()) / max(sum(tokens.values()), 1)
    by_modality = {f"{name}_loss": nats[name] / max(tokens[name], 1) for name in mixture.modalities}
    return {"loss": loss, "perplexity": float(np.exp(loss)), **by_modality}


def mean_metrics(tasks: Mapping[str, Mapping[str, float | str]]) -> dict[str, float]:
    """The mean over the tasks of the metric that all have."""
    return {"exact": sum(float(metrics["exact"]) for metrics in tasks.values()) / max(len(tasks), 1)}


class MultitaskJob(TrainingJob):
    """Inputs of several modalities with their targets."""

    run: MultitaskRun
    predictor: MultitaskPredictor
    splits: Mapping[str, TaskMixture]

    def __init__(self, predictor: MultitaskPredictor, splits: dict[str, TaskMixture]) -> None:
        self.predictor, self.run, self.splits = predictor, predictor.run, splits
        run, tags, tokenizer, train = self.run, predictor.tags, predictor.target, splits["train"]
        self.objective = Seq2SeqCtcObjective(as_module(predictor.model), run.train.objective, tokenizer.pad)
        targets = TaggedTargets(tokenizer, dict(zip(tags.tasks, tags.ids, strict=True)))
        members = {
            name: TRAINING[name].dataset(predictor.processors[name], train.of_modality(name), targets, run)
            for name in predictor.modalities
        }
        strides = {name: training.stride for name, training in TRAINING.items()}
        self.loader = Loader.of(MultitaskDataset(train, members, strides, run.data, run.train), MultitaskSampler)

    def validate(self) -> dict[str, float]:
        if "valid" not in self.splits:
            return {}
        valid = self.splits["valid"]
        metrics = losses(self.predictor, valid)
        if self.run.train.metric in metrics:
            return metrics
        _, tasks = evaluate_tasks(self.predictor, valid, self.predictor.writer.validation_decode)
        return metrics | mean_metrics(tasks) | {f"{task}_exact": float(each["exact"]) for task, each in tasks.items()}


# --- construction --------------------------------------------------------------------------------------------------


def new_modalities(run: MultitaskRun, processors: Mapping[str, Processor]) -> Modalities:
    """The modalities of a model."""
    makers: dict[TensorKind, Callable[[Any], Modality[Any]]] = {
        "tokens": lambda text: InputTexts(text.tokenizer),
        "pixels": ImageModality,
        "frames": lambda sound: SoundModality(sound, STRIDE, run.data.max_seconds),
    }
    kept = {processor.modality: processor for processor in processors.values()}
    if missing := {*run.model.inputs} - kept.keys():
        raise UserError(f"run.json lists no processor of {', '.join(missing)}; restore it, or train the run again")
    modalities = [make(kept[kind]) for kind, make in makers.items() if kind in run.model.inputs]
    return Modalities({modality.name: modality for modality in modalities})


def prepare(
    run: MultitaskRun, processors: Processors, device: torch.device, folder: Path | None = None
) -> MultitaskJob:
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
    kept = {**processors, TEXT: TextProcessor(tokenizer)}
    used = {name: TRAINING[name].new_processor(run, kept, train.of_modality(name)) for name in train.modalities}
    run = with_model_settings(run, vocab=tokenizer.size + len(tags.tasks), bins=run.data.bins)
    run = with_inputs(run, {processor.modality for processor in used.values()})
    return MultitaskJob(MultitaskPredictor(run, build_model(run), {**kept, **used}, tags, device), splits)


def restore(run: MultitaskRun, folder: Path, device: torch.device) -> MultitaskPredictor:
    """The predictor of a run folder, without the weights."""
    processors = load_processors(folder)
    labels = find_labels(processors, TASK_FIELD)
    if labels is None:
        raise UserError(f"{folder} lacks the tags of its tasks; restore them, or train the run again")
    tags = TaskTags(labels, require_tokenizer(processors, TEXT).size)
    return MultitaskPredictor(run, build_model(run), processors, tags, device)


def size_without_data(run: MultitaskRun) -> MultitaskRun:
    """The run with the sizes of a model without data."""
    return with_model_settings(run, vocab=max_vocab(run) + len(EMBEDDED), bins=run.data.bins)


def data_split(run: MultitaskRun, split: str, files: DataFiles | None = None) -> Source:
    """A split of the data; the embedded data are dates, scenes and Morse code."""
    data = run.data
    embedded = lambda: make_multitask(data, split)  # noqa: E731
    return open_split(run, split, files, lambda files: open_manifests(files, data), embedded, "test.jsonl")
