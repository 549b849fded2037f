"""Tagging: a tag for every word of a sentence."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch

from ...config.data.base import DataFiles
from ...config.run import changed_decode
from ...data.datasets.rows import SentenceRows, TaggedDataset, encode_sentence
from ...data.loading.loader import Loader
from ...data.source import Source
from ...data.sources.tagged import SentenceBlock, column_count, tag_columns, tagged_sentences
from ...decode.engine.answer import Emit
from ...decode.engine.jobs import Forward, Gather, Head, Read
from ...errors import UserError
from ...families.protocols import LabelModel, as_module
from ...look import AttentionView, Which
from ...messages.labels import TagRequest, TagResult
from ...metrics.labels import paired_accuracy_bootstrap
from ...processors.base import Array, Processor
from ...processors.labels import LabelSet, TagProcessor, collect_tags
from ...processors.saved import load_processors
from ...processors.text.processor import encode_words
from ...processors.text.tokenizers import Tokenizer
from ...synthetic.python_tags import make_python_tags
from ..base import Metrics, Processors, build_model, open_split, open_splits, require_tokenizer
from ..label import encoder
from ..label.baselines import WANTED
from ..label.encoder import (
    EncoderPredictor,
    PretrainedEncoder,
    find_or_train_tokenizer,
    label_logprobs,
    labels_of_folder,
    require_labels,
    run_of_folder,
    with_vocab,
)
from ..label.results import (
    LabelJob,
    label_set,
    rank_labels,
    top_of,
)
from ..notices import require_finite
from ..objectives import TagObjective
from ..reading import ItemReader
from ..task import TEXT, Task
from ..texts import as_sentences
from .evaluation import evaluate_tags, validate_tags
from .sentences import Sentence, Words, parse_sentence, split_stream
from .settings import TagRun

TASK = Task("tag", TEXT, "tags")
TAG = "tags"  # the field of targets


class TagPredictor(EncoderPredictor[Sentence, TagRequest, TagResult]):
    """Each sentence with its tags.

    A string is returned in its own format: CoNLL-U, columns, a JSON object, or the words of plain text as word/TAG. A
    list of words gives the list of their tags.
    """

    run: TagRun
    model: LabelModel
    request_type, result_type = TagRequest, TagResult
    paired_test = staticmethod(paired_accuracy_bootstrap)

    def __init__(
        self, run: TagRun, model: LabelModel, tokenizer: Tokenizer, labels: LabelSet, device: torch.device
    ) -> None:
        super().__init__(run, model, tokenizer, device)
        self.labels = labels

    @property
    def processors(self) -> dict[str, Processor]:
        return {**super().processors, TAG: TagProcessor(self.labels, self.tokenizer)}

    @cached_property
    def head(self) -> Head[Array]:
        """The pass for tags."""
        return Head(self.texts.collate, label_logprobs)

    def requests(self, items: Iterable[Sentence], details: bool = False, **decode: object) -> list[TagRequest]:
        top = changed_decode(self.run, decode).top if decode else self.run.decode.top
        if top and not details:
            warnings.warn("decode.top has an effect with details only; add --details or details=True", stacklevel=3)
        return [
            TagRequest(sentence if isinstance(sentence, str) else tuple(sentence), top)
            for sentence in as_sentences(items)
        ]

    async def answer(self, request: TagRequest, emit: Emit | None = None) -> TagResult:
        sentence = parse_sentence(request.sentence, self.run.data)
        top, names = top_of(request, self.run.decode), self.labels.names
        logprobs = await self.word_logprobs(sentence.words)
        rows = np.exp(logprobs)
        tags, probabilities = [names[number] for number in rows.argmax(-1).tolist()], rows.max(-1).tolist()
        require_finite(probabilities)
        ranked = tuple([rank_labels(names, row, top) for row in rows]) if top else ()
        return TagResult(
            tuple(sentence.words),
            tuple(tags),
            tuple(probabilities),
            ranked,
            sentence.with_tags(tags),
            sentence.offsets,
            sentence.spans(tags) if self.labels.spans else (),
        )

    async def word_logprobs(self, words: Words) -> Array:
        """(words, labels) of a sentence of any length."""
        if not words:
            return np.zeros((0, len(self.labels)), np.float32)
        sentence: SentenceRows = await Read(self.read_sentences, words)
        if len(sentence.rows) == 1:
            output = await self.row_logprobs(sentence.rows[0])
            return output[[column for _, column in sentence.word_positions]]
        outputs = await Gather([self.row_logprobs(row) for row in sentence.rows])
        return np.stack([outputs[row][column] for row, column in sentence.word_positions])

    async def row_logprobs(self, row: Array) -> Array:
        """(tokens, labels) of a part of a sentence."""
        logprobs: Array = await Forward(self.head, row)
        return logprobs

    def read_sentences(self, sentences: Sequence[Words]) -> list[SentenceRows]:
        """The rows of sentences; long ones have several."""
        room, overlap = self.texts.room, self.run.data.overlap
        encoded = encode_words(self.tokenizer, sentences)
        return [encode_sentence(self.tokenizer, words, room, overlap) for words in encoded]

    def plain_result(self, request: TagRequest, result: TagResult) -> str | list[str]:
        return list(result.tags) if result.text is None else result.text

    async def view(self, item: Sentence, target: str | None = None, layer: Which = None) -> AttentionView:
        """The attention weights while the model reads a text; of a sentence in a file, its words."""
        if isinstance(item, SentenceBlock):
            item = " ".join(parse_sentence(item, self.run.data).words)
        return await super().view(item, target, layer)

    @property
    def item_reader(self) -> ItemReader:
        """Sentences of several lines, whose format the first lines determine."""
        rule = tag_columns(self.run.data, 1)
        formats = frozenset({"jsonl", "json", "parquet", "arrow"})
        split = partial(split_stream, data=self.run.data)
        return ItemReader(rule, rule, table_formats=formats, result_field=TAG, split=split)

    def format_line(self, name: str, request: TagRequest, result: TagResult) -> str:
        """The sentence with its tags in its own format, which may have several lines."""
        return super().format_line(name, request, result) if result.text is None else result.text

    def evaluate_with_outputs(self, files: DataFiles | None = None) -> tuple[Metrics, list[str], list[str]]:
        """The metrics of `evaluate`, the predicted tags and the reference tags of all words."""
        examples = data_split(self.run, "test", files)
        examples.require_nonempty("data.test")
        baselines = WANTED.get() and any(self.labels.counts.values())
        return evaluate_tags(self, examples, training_data(self.run) if baselines else None)


class TagJob(LabelJob):
    """Sentences with one tag per word."""

    run: TagRun
    predictor: TagPredictor

    def __init__(self, predictor: TagPredictor, splits: dict[str, Source]) -> None:
        self.predictor, self.run, self.splits = predictor, predictor.run, splits
        data, train, model = self.run.data, self.run.train, predictor.model
        self.objective = TagObjective(as_module(model), train.objective)
        dataset = TaggedDataset(splits["train"], predictor.tokenizer, predictor.labels, data, train, model.context)
        self.loader = Loader.of(dataset)

    def validate(self) -> dict[str, float]:
        return validate_tags(self.predictor, self.splits["valid"]) if "valid" in self.splits else {}


# --- construction --------------------------------------------------------------------------------------------------


def prepare(run: TagRun, processors: Processors, device: torch.device, folder: Path | None = None) -> TagJob:
    """Open the data, collect the tags and train a tokenizer that is not kept; writes no file."""
    splits = open_splits(run, data_split)
    columns = run.data.column_count or column_count(splits["train"])
    data = run.data.model_copy(update={"column_count": columns})
    run = run.model_copy(update={"data": data})  # as it is: data may be in memory
    labels = label_set(run, collect_tags(splits["train"]), processors, TAG, splits)
    if run.train.metric == "spans" and not labels.spans:
        raise UserError(
            f"train.metric is spans and the tags mark none, such as {labels.names[0]}; spans need tags like B-PER, "
            "I-PER and O, use accuracy or f1"
        )
    tokenizer = find_or_train_tokenizer(run, processors, splits["train"])
    run = with_vocab(run, tokenizer, head="tag", labels=len(labels))
    predictor = TagPredictor(run, build_model(run), tokenizer, labels, device)
    return TagJob(predictor, splits)


def restore(run: TagRun, folder: Path, device: torch.device) -> TagPredictor:
    """The predictor of a run folder, without the weights."""
    processors = load_processors(folder)
    labels = require_labels(run, folder, processors, TAG)
    return TagPredictor(run, build_model(run), require_tokenizer(processors), labels, device)


def from_folder(folder: PretrainedEncoder, overrides: Mapping[str, object]) -> TagPredictor:
    """The predictor of a Hugging Face folder."""
    run, device = run_of_folder(folder, overrides, "tag")
    return TagPredictor(run, folder.model, folder.tokenizer, labels_of_folder(folder), device)


def size_without_data(run: TagRun) -> TagRun:
    """The run with the sizes of a model without data."""
    return encoder.size_without_data(run, head="tag", labels=run.model.labels or 2)


def data_split(run: TagRun, split: str, files: DataFiles | None = None) -> Source:
    """A split of the data; the embedded data are the tokens of Python modules, tagged by role."""
    data = run.data
    embedded = lambda: make_python_tags(data.examples, seed=1)[split]  # noqa: E731
    return open_split(run, split, files, lambda files: tagged_sentences(files, data), embedded, "test.conllu")


def training_data(run: TagRun) -> Source | None:
    """The training data; None if they no longer exist."""
    try:
        return data_split(run, "train")
    except UserError:
        return None
