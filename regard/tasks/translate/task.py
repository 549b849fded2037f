"""Translation: a target text for a source text."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar

import torch

from ...alignment.links import Links, Symmetrization
from ...config.data.base import DataFiles
from ...config.losses import TEACHER, TaughtLoss
from ...config.measured import Measurements
from ...config.run import RunType
from ...data.batch import Batch
from ...data.datasets.collate import collate_pairs
from ...data.datasets.pairs import PairDataset
from ...data.loading.loader import Loader
from ...data.source import Source
from ...data.sources.pairs import split_references
from ...data.tables.columns import SOURCE, TARGET
from ...decode import Ensemble, Filter, Suppress
from ...decode.engine.answer import Emit
from ...decode.engine.jobs import Gather
from ...decode.engine.passes import TRACE_ROWS
from ...decode.search.texts import split_sentences
from ...errors import UserError
from ...families.protocols import Seq2SeqModel, as_module
from ...families.spec import Output
from ...look import AttentionView, Which
from ...messages.media import Item as TextItem
from ...messages.media import Media
from ...messages.texts import TranslateRequest, TranslateResult
from ...messages.verbs import AlignRequest, AlignResult, ScoreRequest, ScoreResult
from ...metrics.labels import BootstrapResult
from ...metrics.text import paired_bootstrap, signature, text_metrics
from ...metrics.tokenization import Tokenization, choose_tokenization
from ...modalities.alignments import attention_links, choose_heads
from ...modalities.text import TextModality
from ...parts import Inputs
from ...processors.base import Processor
from ...processors.saved import load_processors
from ...processors.text.processor import TextProcessor
from ...processors.text.tokenizers import Tokenizer, train_tokenizer
from ...training.objective import Objective
from ..base import (
    Metrics,
    Processors,
    TrainingJob,
    build_model,
    find_tokenizer,
    max_vocab,
    open_splits,
    require_tokenizer,
    view_title,
    with_head,
    with_inputs,
    with_model_settings,
)
from ..generate.joining import add_usage, join_texts
from ..generate.plans import Plan, best_text
from ..generate.predictor import TextPredictor, join_models
from ..generate.streams import OrderedParts
from ..generate.writer import TextWriter, text_fields
from ..objectives import Seq2SeqObjective
from ..parallel.teacher import copy_teacher_weights, teacher_config
from ..reading import ItemReader, reader_of
from ..task import TEXT, Task, spec_of
from ..texts import as_pairs, as_text, as_texts
from .evaluation import TEXT_METRICS, OpenSplit, data_split, evaluate_translations, target_loss
from .settings import PairRun, TranslateRun

TASK = Task("translate", TEXT, "target", frozenset({"fertility", "ctc", "mask_predict"}))
HEAD = "target"  # the head of a family with several heads
MEASURED = 200  # pairs that choose the heads of alignments


class TranslatePredictor(TextPredictor[str, TranslateRequest, TranslateResult]):
    """A translation for every text; decode.strategy.n above 1 gives a list of them."""

    run: PairRun
    request_type, result_type = TranslateRequest, TranslateResult

    def __init__(
        self,
        run: PairRun,
        model: Seq2SeqModel | Ensemble,
        source: Tokenizer,
        target: Tokenizer,
        device: torch.device,
        filters: tuple[Filter, ...] | None = None,
    ) -> None:
        self.run, self.source, self.target, self.device = run, source, target, device
        self.model = model.to(device).eval()
        self.filters = (Suppress([target.pad, target.start]),) if filters is None else filters

    @property
    def item_reader(self) -> ItemReader:
        return reader_of(self.run, SOURCE, TARGET)

    @property
    def output_tokenizer(self) -> Tokenizer:
        return self.target

    @cached_property
    def modality(self) -> TextModality:
        """How sources are read."""
        return TextModality(self.source, self.context, self.measured.alignment)

    @cached_property
    def writer(self) -> TextWriter:
        """Writes the texts, and scores known ones."""
        return writer_class(self.run)(self.engine.context, self.run.model.family, self.source.pad)

    @property
    def processors(self) -> dict[str, Processor]:
        """The processors of source and target; a shared tokenizer gives one object."""
        source = TextProcessor(self.source)
        return {"source": source, "target": source if self.source is self.target else TextProcessor(self.target)}

    # --- requests ----------------------------------------------------------------------------------------------

    def requests(self, items: Iterable[str], details: bool = False, **decode: object) -> list[TranslateRequest]:
        """`prefix`, `include` and `exclude` may be lists with one entry per text."""
        texts = as_texts(items)
        fields = self.plan.fields(TranslateRequest, len(texts), details, decode)
        return [TranslateRequest(text, **named) for text, named in zip(texts, fields, strict=True)]

    async def answer(self, request: TranslateRequest, emit: Emit | None = None) -> TranslateResult:
        plan = self.plan(request)
        if not plan.decode.split_sentences:
            return await self._write(request, request.source, plan, emit)
        sentences = [sentence.strip() for sentence in split_sentences(request.source)]
        following = self.plan.after_prefix(request)  # the prefix begins the whole text
        parts = None if emit is None else OrderedParts(emit)

        async def write(number: int, sentence: str) -> TranslateResult:
            result = await self._write(
                request, sentence, following if number else plan, None if parts is None else parts.part(number)
            )
            if parts is not None:
                parts.close(number)
            return result

        results = await Gather([write(*pair) for pair in enumerate(sentences)])
        joined = join_texts(results, plan.strategy.length_penalty, sources=sentences)
        usage = add_usage([result.usage for result in results])
        notices = tuple(chain.from_iterable(result.notices for result in results))
        return TranslateResult(**joined, usage=usage, sentences=tuple(results), notices=notices)

    async def _write(self, request: TranslateRequest, text: str, plan: Plan, emit: Emit | None) -> TranslateResult:
        if self.modality.is_empty(text):
            return TranslateResult(**text_fields([], plan, request.details))
        written = await self.writer.write(self.modality, text, plan, request, emit)
        return TranslateResult(**text_fields(written.texts, plan, request.details), usage=written.usage)

    # --- known targets -----------------------------------------------------------------------------------------

    def score_requests(self, items: Any, targets: Any) -> tuple[list[ScoreRequest], bool]:
        single = isinstance(items, str) and isinstance(targets, str)
        pairs = zip(*as_pairs(items, targets, ("source", "target")), strict=True)
        return [ScoreRequest(TextItem(text=text), target) for text, target in pairs], single

    async def answer_score(self, request: ScoreRequest, emit: Emit | None = None) -> ScoreResult:
        return await self.writer.score_text(self.modality, request)

    async def view(self, item: Any, target: str | None = None, layer: Which = None) -> AttentionView:
        if self.modality.is_empty(as_text(item)):
            raise UserError("the text is empty and has no attention to show; give a sentence")
        plan = self.plan(self.requests([item], strategy=best_text(self.run))[0])
        return await self.writer.look(self.modality, item, plan, target, layer, view_title(self.run))

    def align(
        self, sources: Sequence[str], targets: Sequence[str], symmetrization: Symmetrization = "grow-diag-final-and"
    ) -> list[Links]:
        """Links between the white-space separated words of texts and their translations, by cross-attention."""
        pairs = zip(*as_pairs(sources, targets, ("source", "target")), strict=True)
        requests = (AlignRequest(TextItem(text=text), target, symmetrization) for text, target in pairs)
        return [frozenset(result.links) for result in self.run_all(self.answer_align, requests)]

    async def answer_align(self, request: AlignRequest, emit: Emit | None = None) -> AlignResult:
        """Links between words."""
        view = await _cross_attention(self, self.modality.value_of(request.item), request.target)
        return AlignResult(tuple(sorted(attention_links(view, request.symmetrization))))

    def logprobs(self, sources: Iterable[Sequence[int]], targets: Iterable[Sequence[int]]) -> list[list[float]]:
        """The log-probability of every token of known targets and of END; all are given without END."""
        ended = ([*tokens, self.source.end] for tokens in sources)
        pairs = zip(ended, targets, strict=True)
        return self.run_programs(self.writer.score_tokens(self.modality, *pair) for pair in pairs)

    def pair(self, sources: list[list[int]], targets: list[list[int]]) -> Batch:
        """Sources and targets, without END, as a batch on the device."""
        for tokens in sources + targets:
            self.modality.refuse_long(len(tokens) + 1)
        return collate_pairs(sources, targets, self.source, self.target).to(self.device)

    def state_inputs(self, items: Iterable[str]) -> list[Inputs]:
        """The tokens of each source and END."""
        return [source.inputs for source in self.modality.read(as_texts(items))]

    # --- evaluation --------------------------------------------------------------------------------------------

    data_split: ClassVar[OpenSplit] = staticmethod(data_split)

    def evaluate_with_outputs(self, files: DataFiles | None = None) -> tuple[Metrics, list[str] | None, object]:
        return evaluate_translations(self, self.data_split(self.run, "test", files))

    def paired_test(
        self, outputs: Sequence[Sequence[str]], references: Any, /
    ) -> tuple[dict[str, str], list[BootstrapResult]]:
        return paired_bootstrap(outputs, references, tokenization=choose_tokenization(references, self.run.eval))

    @staticmethod
    def ensemble(predictors: Mapping[str, "TranslatePredictor"]) -> "TranslatePredictor":
        """An ensemble of predictors by name. They must share the vocabularies; the settings of the first apply."""
        first = next(iter(predictors.values()))
        if not writer_class(first.run).sequential:
            raise UserError(
                f"{' and '.join(predictors)} write all tokens at once and cannot form an ensemble; use one of them"
            )
        members = {
            name: (each.module, {"source ": each.source, "target ": each.target}) for name, each in predictors.items()
        }
        like_first = (first.source, first.target, first.device, first.filters)
        joined = join_models(members, lambda model: TranslatePredictor(first.run, model, *like_first))
        joined.measured = first.measured
        return joined


async def _cross_attention(predictor: TranslatePredictor, source: str | Media, target: str) -> AttentionView:
    """The cross-attention of a text and its translation."""
    (tokens,) = predictor.target.encode([target])
    return await predictor.writer.trace_view(predictor.modality, source, tokens)


def cross_attention(predictor: TranslatePredictor, pairs: Sequence[tuple[str, str]]) -> Iterator[AttentionView]:
    """The cross-attention of texts and their translations; pairs that the model cannot read are left out."""
    for first in range(0, len(pairs), TRACE_ROWS):  # few attention weights are in memory
        chunk = pairs[first : first + TRACE_ROWS]
        starts = (lambda emit, pair=pair: _cross_attention(predictor, *pair) for pair in chunk)
        yield from (answer.result() for answer in predictor.engine.run(starts) if answer.error is None)


class TranslateJob(TrainingJob):
    """Pairs of texts."""

    run: PairRun
    predictor: TranslatePredictor
    splits: Mapping[str, Source]
    tokenization: Tokenization | None = None  # of BLEU on the validation split, if train.metric needs it
    bleu_signature = ""

    def __init__(self, predictor: TranslatePredictor, splits: dict[str, Source], facts: Sequence[str] = ()) -> None:
        self.predictor, self.run, self.splits, self.facts = predictor, predictor.run, splits, list(facts)
        source, target, run = predictor.source, predictor.target, self.run
        self.objective = self.make_objective()
        self.static_shapes = run.data.packed
        self.loader = Loader.of(self.make_dataset())
        if "valid" in splits and predictor.context is not None:  # fail before training, not at the first validation
            valid = splits["valid"]
            columns = [pair[0] for pair in valid], [split_references(pair[1])[0] for pair in valid]
            for tokenizer, texts in zip((source, target), columns, strict=True):
                longest = max(map(len, tokenizer.encode(texts)), default=0) + 1
                predictor.modality.refuse_long(longest, "a text of data.valid")
        if "valid" in splits and run.train.metric in TEXT_METRICS:
            references = [split_references(pair[1]) for pair in splits["valid"]]
            self.tokenization = choose_tokenization(references, run.eval)
            self.bleu_signature = signature("bleu", references, self.tokenization)

    def make_objective(self) -> Objective:
        """The loss of the task."""
        return Seq2SeqObjective(self.predictor.module, self.run.train.objective)

    def make_dataset(self) -> PairDataset:
        """The data set that makes batches."""
        predictor, run, train = self.predictor, self.run, self.splits["train"]
        return PairDataset(train, predictor.source, predictor.target, run.data, run.train, predictor.context)

    def describe_data(self) -> list[str]:
        signature_facts = [f"valid: bleu signature {self.bleu_signature}"] if self.bleu_signature else []
        return super().describe_data() + signature_facts + self.facts

    def measure(self) -> Measurements:
        examples = self.splits.get("valid", self.splits["train"])
        pairs = [(source, split_references(target)[0]) for source, target, *_ in islice(examples, MEASURED)]
        return Measurements(alignment=choose_heads(cross_attention(self.predictor, pairs)))

    def validate(self) -> dict[str, float]:
        if "valid" not in self.splits:
            return {}
        examples = self.splits["valid"]
        sources, references = [pair[0] for pair in examples], [split_references(pair[1]) for pair in examples]
        metrics = target_loss(self.predictor, sources, [texts[0] for texts in references])
        if self.run.train.metric in metrics:
            return metrics
        translations = self.predictor.predict(sources, **self.predictor.writer.validation_decode)
        return metrics | text_metrics(translations, references, TEXT_METRICS, self.tokenization)


# --- construction --------------------------------------------------------------------------------------------------


def prepare(
    run: TranslateRun, processors: Processors, device: torch.device, folder: Path | None = None
) -> TranslateJob:
    """Open the data and train the tokenizers that are not kept; writes no file."""
    return prepare_pairs(run, processors, device, TranslatePredictor, run.train.objective)


def prepare_pairs(
    run: PairRun,
    processors: Processors,
    device: torch.device,
    predictor_type: type[TranslatePredictor],
    loss: TaughtLoss,
) -> TranslateJob:
    """The training of a predictor of this type; `loss` may name a teacher."""
    splits = open_splits(run, predictor_type.data_split)
    source, target = find_tokenizer(processors, "source"), find_tokenizer(processors, "target")
    if source is None or target is None:
        source, target = _teacher_tokenizers(loss.teacher) or _train_tokenizers(run, splits["train"])
    run = with_vocab(run, source, target)
    model = build_model(run)
    note = _copy_teacher(run, model, loss)
    return job_class(run)(predictor_type(run, model, source, target, device), splits, [note] if note else [])


def restore(
    run: PairRun,
    folder: Path,
    device: torch.device,
    predictor_type: type[TranslatePredictor] = TranslatePredictor,
) -> TranslatePredictor:
    """The predictor of a run folder, without the weights."""
    processors = load_processors(folder)
    source, target = (require_tokenizer(processors, field) for field in ("source", "target"))
    return predictor_type(run, build_model(run), source, target, device)


def writer_class(run: PairRun) -> type[TextWriter]:
    """How the family of a run writes: token by token, or all at once."""
    from ..nat.ctc import CtcWriter
    from ..nat.writers import FertilityWriter, MaskPredictWriter

    writers: dict[Output, type[TextWriter]] = {
        "fertility": FertilityWriter, "ctc": CtcWriter, "mask_predict": MaskPredictWriter
    }  # fmt: skip
    writes = spec_of(run.model.family).writes
    return next((writers[output] for output in writers if output in writes), TextWriter)


def job_class(run: PairRun) -> type[TranslateJob]:
    """The training for the output of the family of a run."""
    from ..nat.jobs import CtcTranslationJob, FertilityJob, MaskPredictJob

    jobs: dict[Output, type[TranslateJob]] = {
        "fertility": FertilityJob, "ctc": CtcTranslationJob, "mask_predict": MaskPredictJob
    }  # fmt: skip
    writes = spec_of(run.model.family).writes
    return next((jobs[output] for output in jobs if output in writes), TranslateJob)


def with_vocab(run: RunType, source: Tokenizer, target: Tokenizer) -> RunType:
    """The run with the vocabulary sizes of its tokenizers; a pretrained model may have larger ones."""
    sizes = {"vocab": source.size, "target_vocab": 0 if source is target else target.size}
    if (
        run.start and not run.model.target_vocab
    ):  # one embedding for source and target, even with two tokenizers (Marian)
        sizes = {"vocab": max(source.size, target.size, run.model.vocab), "target_vocab": 0}
    elif run.start:
        sizes = {name: max(size, getattr(run.model, name)) for name, size in sizes.items()}
    return with_head(with_inputs(with_model_settings(run, **sizes), TEXT), HEAD)


def size_without_data(run: RunType) -> RunType:
    """The run with the sizes of a model without data."""
    target = run.model.target_vocab or (0 if run.tokenizer.shared else run.tokenizer.vocab)
    sized = with_model_settings(run, vocab=max_vocab(run), target_vocab=target)
    return with_head(with_inputs(sized, TEXT), HEAD)


def _copy_teacher(run: PairRun, model: Seq2SeqModel, loss: TaughtLoss) -> str | None:
    """Copy the weights of the teacher if `teacher_init` is true; return a note about it."""
    if not loss.teacher_init:
        return None
    if run.start:
        raise UserError(
            f"train.objective.teacher_init is true, but the weights are those of start={run.start}; leave out one"
        )
    return copy_teacher_weights(loss.teacher, as_module(model))


def _teacher_tokenizers(name: str) -> tuple[Tokenizer, Tokenizer] | None:
    """The tokenizers of the teacher, if there is one."""
    if not name:
        return None
    teacher_config(name, TEACHER)
    processors = load_processors(Path(name))
    return require_tokenizer(processors, "source"), require_tokenizer(processors, "target")


def _train_tokenizers(run: PairRun, train: Source) -> tuple[Tokenizer, Tokenizer]:
    """Tokenizers of source and target: one for both if tokenizer.joint."""
    if run.tokenizer.shared:
        joint = train_tokenizer(run.tokenizer, train.texts(0, 1))
        return joint, joint
    return train_tokenizer(run.tokenizer, train.texts(0)), train_tokenizer(run.tokenizer, train.texts(1))
