"""Span corruption, the pre-training of T5. The predictor generates the spans that the sentinels of a text replace."""

from dataclasses import replace
from pathlib import Path

import torch

from ...config.data.base import DataFiles
from ...config.measured import Measurements
from ...data.datasets.spans import SpanCorruptor, SpanDataset
from ...data.loading.loader import Loader
from ...data.source import Source
from ...data.tables.columns import TEXT as TEXT_COLUMN
from ...families.protocols import as_module
from ...processors.text.tokenizers import TrainedTokenizer, sentinel, train_tokenizer
from ..base import Metrics, Processors, build_model, find_tokenizer, open_lines, open_splits
from ..objectives import Seq2SeqObjective
from ..reading import ItemReader, reader_of
from ..task import TEXT, Task
from ..translate import task as translate
from ..translate.evaluation import mean_loss
from ..translate.task import TranslatePredictor, size_without_data, with_vocab
from .settings import SpanRun

__all__ = ["TASK", "SpanJob", "SpanPredictor", "prepare", "restore", "size_without_data"]

TASK = Task("spans", TEXT, "target")
EVALUATION_SEED = 1  # of the one corruption that evaluations share


class SpanPredictor(TranslatePredictor):
    """`predict` takes a text with <extra_id_0>, <extra_id_1> … and generates the span of each."""

    run: SpanRun
    source: TrainedTokenizer

    @property
    def item_reader(self) -> ItemReader:
        return replace(reader_of(self.run, TEXT_COLUMN), fields=2)

    data_split = staticmethod(open_lines)

    def evaluate_with_outputs(self, files: DataFiles | None = None) -> tuple[Metrics, None, list[str]]:
        """The metrics of lines of text with a fixed corruption, None because it predicts no texts, and the texts."""
        examples = self.data_split(self.run, "test", files)
        examples.require_nonempty("data.test")
        return {"examples": len(examples), **corruption_metrics(self, examples)}, None, list(examples.texts(0))


def corruption_metrics(predictor: SpanPredictor, examples: Source) -> dict[str, float]:
    """The loss and perplexity of the spans of one corruption, sentinels and END included."""
    corruptor, run = SpanCorruptor(predictor.source, predictor.run.data), predictor.run
    dataset = SpanDataset(examples, corruptor, run.data, run.train, predictor.context)
    return mean_loss(predictor.logprobs(*dataset.encode_all(EVALUATION_SEED)))


class SpanJob(translate.TranslateJob):
    """Lines with new corrupted spans in every epoch."""

    run: SpanRun
    predictor: SpanPredictor

    def __init__(self, predictor: SpanPredictor, splits: dict[str, Source]) -> None:
        self.predictor, self.run, self.splits, self.facts = predictor, predictor.run, splits, list[str]()
        self.objective = Seq2SeqObjective(as_module(predictor.model), self.run.train.objective)
        self.static_shapes = self.run.data.packed
        corruptor = SpanCorruptor(predictor.source, self.run.data)
        dataset = SpanDataset(splits["train"], corruptor, self.run.data, self.run.train, predictor.context)
        self.loader = Loader.of(dataset)

    def measure(self) -> Measurements:
        return Measurements()  # a line has no translation to align

    def validate(self) -> dict[str, float]:
        return corruption_metrics(self.predictor, self.splits["valid"]) if "valid" in self.splits else {}


def prepare(run: SpanRun, processors: Processors, device: torch.device, folder: Path | None = None) -> SpanJob:
    """Open the data and train a tokenizer that is not kept; writes no file."""
    splits = open_splits(run, SpanPredictor.data_split)
    sentinels = [sentinel(number) for number in reversed(range(run.data.sentinels))]  # the first has the highest id
    tokenizer = find_tokenizer(processors, "source") or train_tokenizer(
        run.tokenizer, splits["train"].texts(0), control=sentinels
    )
    run = with_vocab(run, tokenizer, tokenizer)
    predictor = SpanPredictor(run, build_model(run), tokenizer, tokenizer, device)
    return SpanJob(predictor, splits)


def restore(run: SpanRun, folder: Path, device: torch.device) -> TranslatePredictor:
    """The predictor of a run folder, without the weights."""
    return translate.restore(run, folder, device, SpanPredictor)
