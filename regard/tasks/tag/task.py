"""Tagging: a tag for every word of a sentence."""

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

from ...config.data.base import DataFiles
from ...config.run import Run
from ...data.datasets.collate import IGNORED
from ...data.datasets.rows import TaggedDataset, encode_sentence
from ...data.loading.loader import Loader
from ...data.source import Source
from ...data.sources.tagged import (
    SentenceBlock,
    TagFormat,
    detect_format,
    read_first_lines,
    tag_columns,
    tagged_sentences,
)
from ...data.tables.columns import TAGS, WORDS, ColumnRule
from ...errors import UserError
from ...families.protocols import as_module
from ...look import AttentionView, Which
from ...metrics.labels import label_metrics, span_metrics
from ...processors.base import Processor
from ...processors.labels import TagProcessor, collect_tags
from ...processors.text.processor import encode_words
from ...synthetic.python_tags import make_python_tags
from ..base import Metrics, Processors, Record, build_model, open_split, open_splits
from ..label import encoder
from ..label.encoder import LabelPredictor, find_or_train_tokenizer, with_vocab
from ..label.results import LabelJob, label_set
from ..notices import require_finite
from ..objectives import TagObjective
from ..records import tag_record
from ..requests import TagRequest, TagResult
from ..task import TEXT, Task
from ..texts import as_sentences

TASK = Task("tag", TEXT, "tags", TagRequest, TagResult)

Words = Sequence[str]


class TagPredictor(LabelPredictor[str | Words, TagRequest, TagResult]):
    """Each sentence with its tags.

    A string is returned in its own format: CoNLL-U, columns, a JSON object, or words between spaces as word/TAG. A list
    of words gives the list of their tags.
    """

    roles, table_formats = (WORDS, TAGS), frozenset({"jsonl", "json", "parquet", "arrow"})
    multiline, output = True, "tags"
    label_field = "tags"

    @property
    def processors(self) -> dict[str, Processor]:
        return {**super().processors, self.label_field: TagProcessor(self.labels, self.tokenizer)}

    # --- public methods ----------------------------------------------------------------------------------------

    def requests(self, items: Iterable[str | Words], details: bool = False, **decode: object) -> list[TagRequest]:
        top = self.decode_settings(decode).top if decode else self.run.decode.top
        if top and not details:
            warnings.warn("decode.top has an effect with details only; add --details or details=True", stacklevel=3)
        return [
            TagRequest(sentence if isinstance(sentence, str) else tuple(sentence), top)
            for sentence in as_sentences(items)
        ]

    def predict_batch(self, requests: Sequence[TagRequest], batch: int | None = None) -> list[TagResult]:
        parsed = [self._parse(number, request.sentence) for number, request in enumerate(requests)]
        sentence_logprobs = self._logprobs([words for _, words in parsed], batch)
        return [
            self._result(request, format, words, logprobs)
            for request, (format, words), logprobs in zip(requests, parsed, sentence_logprobs, strict=True)
        ]

    def record(self, request: TagRequest, result: TagResult) -> Record:
        return tag_record(result, self.top(request) > 0)

    def plain_result(self, request: TagRequest, result: TagResult) -> str | list[str]:
        return list(result.tags) if result.text is None else result.text

    def column_rule(self, required: int = 1) -> ColumnRule:
        return tag_columns(self.run.data, required)

    def look(self, text: str, target: str | None = None, layer: Which = None) -> AttentionView:
        """The attention weights while the model reads a text; of a sentence in a file, its words."""
        words = " ".join(self._parse(0, text)[1]) if isinstance(text, SentenceBlock) else text
        return super().look(words, target, layer)

    def items(self, lines: Iterable[str]) -> Iterator[str]:
        """Split a stream of lines into sentences for `predict`; the first lines determine the format."""
        lines = iter(lines)
        if head := read_first_lines(lines):
            yield from detect_format(head, self.run.data).blocks(chain(head, lines))

    def evaluate_with_outputs(self, files: DataFiles | None = None) -> tuple[Metrics, list[str], list[str]]:
        """The metrics of `evaluate`, the predicted tags and the reference tags of all words."""
        examples = data_split(self.run, "test", files)
        examples.require_nonempty("data.test")
        references = [tags for _, tags in examples]
        self.report_labels(examples, [*chain(*references)])
        logprobs = self._logprobs([words for words, _ in examples])
        require_finite(float(rows.sum()) for rows in logprobs)
        predicted = [self.best_labels(rows) for rows in logprobs]
        flat_predicted, flat_references = list(chain(*predicted)), list(chain(*references))
        metrics: Metrics = {
            "examples": len(references),
            "words": len(flat_references),
            **label_metrics(flat_predicted, flat_references),
        }
        if self.labels.spans:
            metrics |= span_metrics(predicted, references)
        return (
            metrics | self._baselines(examples) | self.unseen_labels(flat_references),
            flat_predicted,
            flat_references,
        )

    # --- internals ---------------------------------------------------------------------------------------------

    def loss_over(self, examples: Source) -> tuple[float, list[list[str]], list[Words]]:
        """Nats per word, predicted and reference tags; words with an unseen tag do not count in the loss."""
        references = [tags for _, tags in examples]
        logprobs = self._logprobs([words for words, _ in examples])
        targets = torch.tensor([self.labels.ids.get(tag, IGNORED) for tags in references for tag in tags])
        nats = -torch.cat(logprobs).gather(1, targets.clamp(min=0)[:, None])[targets != IGNORED].sum()
        count = max(int((targets != IGNORED).sum()), 1)
        return float(nats) / count, [self.best_labels(rows) for rows in logprobs], references

    def _logprobs(self, sentences: Sequence[Words], batch: int | None = None) -> list[Tensor]:
        """(words, labels) of each sentence, of any length."""
        tokens = encode_words(self.tokenizer, sentences)
        encoded = [encode_sentence(self.tokenizer, words, self.room, self.run.data.overlap) for words in tokens]
        row_logprobs = iter(self.label_logprobs([row for sentence in encoded for row in sentence.rows], batch))
        logprobs = []
        for sentence in encoded:
            rows = [next(row_logprobs) for _ in sentence.rows]
            words = [rows[row][column] for row, column in sentence.word_positions]
            logprobs.append(torch.stack(words) if words else torch.zeros(0, len(self.labels)))
        return logprobs

    def _parse(self, number: int, sentence: str | Words) -> tuple[TagFormat | None, list[str]]:
        """The words of a sentence, and its format if it is a string."""
        if not isinstance(sentence, str):
            return None, list(sentence)
        lines, name = sentence.split("\n"), f"sentence {number + 1}"
        format = detect_format(read_first_lines(iter(lines)), self.run.data)
        if isinstance(sentence, SentenceBlock):
            format, name = sentence.tag_format, f"the sentence at line {sentence.line}"
        if len(lines) > 1 and not format.word_per_line:
            raise UserError(
                f"{name} has several lines and looks like {format.name}, where a sentence is one line; "
                "give each sentence on its own, or set the format (data.format)"
            )
        try:
            return format, [word.text for word in format.words(lines, tagged=False).values()]
        except ValueError as error:
            raise UserError(f"{name}, {_shorten(sentence)}: {error}") from error

    def _result(self, request: TagRequest, format: TagFormat | None, words: Words, logprobs: Tensor) -> TagResult:
        tags, sentence, top = self.best_labels(logprobs), request.sentence, self.top(request)
        probabilities = logprobs.exp().amax(-1).tolist() if len(logprobs) else []
        require_finite(probabilities)
        return TagResult(
            tuple(words),
            tuple(tags),
            tuple(probabilities),
            tuple(self.ranked_labels(row, top) for row in logprobs) if top else (),
            format.with_tags(sentence.split("\n"), tags) if format and isinstance(sentence, str) else None,
        )

    def _baselines(self, examples: Source) -> Metrics:
        """The accuracy of the most frequent tag overall, and of the most frequent tag of each word."""
        references = [tag for _, tags in examples for tag in tags]
        metrics = self.majority_baseline(references)
        if not metrics or not self.with_baselines:
            return metrics
        try:
            train = data_split(self.run, "train")
        except UserError:  # the training files no longer exist
            return metrics
        baseline = MostFrequentTag(train)
        predicted = [baseline.tag(word) for words, _ in examples for word in words]
        accuracy = sum(map(str.__eq__, predicted, references)) / len(references)
        return metrics | {"most_frequent_tag": accuracy}


def _shorten(text: str) -> str:
    line = text.replace("\n", " ⏎ ")
    return repr(line if len(line) <= 60 else f"{line[:57]}…")


class MostFrequentTag:
    """The most frequent tag of each word; an unknown word gets that of words that occur once."""

    def __init__(self, train: Source) -> None:
        counts: dict[str, Counter[str]] = {}
        for words, tags in train:
            for word, tag in zip(words, tags, strict=True):
                counts.setdefault(word, Counter())[tag] += 1
        rare = Counter(next(iter(tag_counts)) for tag_counts in counts.values() if tag_counts.total() == 1)
        total = sum(counts.values(), Counter[str]())
        self.unknown = (rare or total).most_common(1)[0][0]
        self.known = {word: tag_counts.most_common(1)[0][0] for word, tag_counts in counts.items()}

    def tag(self, word: str) -> str:
        """The most frequent tag of a word."""
        return self.known.get(word, self.unknown)


class TagJob(LabelJob):
    """Sentences with one tag per word."""

    predictor: TagPredictor

    def __init__(self, predictor: TagPredictor, splits: dict[str, Source]) -> None:
        self.predictor, self.run, self.splits = predictor, predictor.run, splits
        data, train, model = self.run.data, self.run.train, predictor.model
        self.objective = TagObjective(as_module(model), train.smoothing)
        dataset = TaggedDataset(splits["train"], predictor.tokenizer, predictor.labels, data, train, model.context)
        self.loader = Loader.of(dataset)

    def validate(self) -> dict[str, float]:
        if "valid" not in self.splits:
            return {}
        loss, predicted, references = self.predictor.loss_over(self.splits["valid"])
        metrics = label_metrics(list(chain(*predicted)), list(chain(*references)))
        if self.predictor.labels.spans:
            metrics |= span_metrics(predicted, references)
        return {"loss": loss, **{name: metrics[name] for name in ("accuracy", "f1", "spans") if name in metrics}}


# --- construction --------------------------------------------------------------------------------------------------


def prepare(run: Run, processors: Processors, device: torch.device, folder: Path | None = None) -> TagJob:
    """Open the data, collect the tags and train a tokenizer that is not kept; writes no file."""
    splits = open_splits(run, data_split)
    labels = label_set(run, collect_tags(splits["train"]), processors, TagPredictor.label_field, splits)
    if run.train.metric == "spans" and not labels.spans:
        raise UserError(
            f"train.metric is spans and the tags mark none, such as {labels.names[0]}; spans need tags like B-PER, "
            "I-PER and O, use accuracy or f1"
        )
    tokenizer = find_or_train_tokenizer(run, processors, splits["train"])
    run = with_vocab(run, tokenizer, head="tag", labels=len(labels))
    predictor = TagPredictor(run, build_model(run), tokenizer, labels, device)
    return TagJob(predictor, splits)


restore = TagPredictor.from_run_folder
from_folder = partial(TagPredictor.from_folder, task="tag")


def size_without_data(run: Run) -> Run:
    """The run with the sizes of a model without data."""
    return encoder.size_without_data(run, head="tag", labels=run.model.labels or 2)


def data_split(run: Run, split: str, files: DataFiles | None = None) -> Source:
    """A split of the data; the embedded data are the tokens of Python modules, tagged by role."""
    data = run.data
    embedded = lambda: make_python_tags(data.examples, seed=1)[split]  # noqa: E731
    return open_split(run, split, files, lambda files: tagged_sentences(files, data), embedded, "test.conllu")
