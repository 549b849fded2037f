"""Translation: a target text for a source text."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch

from ...config.data.base import DataFiles
from ...config.decode import NEUTRAL_SAMPLING, Seq2SeqDecode
from ...config.run import Run
from ...config.strategies import DecodeStrategy, ParallelStrategy
from ...data.datasets.pairs import PairDataset
from ...data.loading.loader import Loader
from ...data.source import Source
from ...data.sources.pairs import open_pairs, split_references
from ...data.tables.columns import SOURCE, TARGET, Role
from ...decode import Ensemble, Filter, Hypothesis, Suppress
from ...decode.search.constraints import Constraints, ConstraintTokenizer, parse_constraints
from ...decode.search.texts import split_sentences
from ...errors import UserError
from ...families.protocols import Seq2SeqModel, as_module
from ...families.spec import Output
from ...metrics.labels import BootstrapResult
from ...metrics.text import paired_bootstrap, signature, text_metrics
from ...metrics.tokenization import Tokenization, choose_tokenization
from ...parts import Inputs
from ...processors.base import Processor
from ...processors.saved import load_processors
from ...processors.text.processor import TextProcessor
from ...processors.text.tokenizers import Tokenizer, train_tokenizer
from ...synthetic.dates import make_dates
from ...training.objective import Objective
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
    vocabulary,
    with_head,
    with_inputs,
    with_model_settings,
)
from ..generate.base import group_indices
from ..generate.results import (
    REQUEST_SETTINGS,
    changed_settings,
    constraints_of,
    join_sentences,
    make_requests,
    translate_result,
)
from ..generate.scorer import Scorer
from ..objectives import Seq2SeqObjective
from ..parallel.teacher import copy_teacher_weights, teacher_config
from ..predictor import Predictor
from ..records import translation_record
from ..requests import TranslateRequest, TranslateResult
from ..task import TEXT, Task, spec_of
from ..texts import as_texts

TASK = Task(
    "translate", TEXT, "target", TranslateRequest, TranslateResult, frozenset({"fertility", "ctc", "mask_predict"})
)
HEAD = "target"  # the head of a family with several heads


class TranslatePredictor(Scorer, Predictor[str, TranslateRequest, TranslateResult]):
    """A translation for every text; decode.nbest above 1 gives a list of them.

    Batch-invariant: a translation never depends on the rest of its batch.
    """

    fields = 2
    roles: tuple[Role, ...] = (SOURCE, TARGET)
    validation_decode: Mapping[str, Any] = {"kind": "greedy", "nbest": 1, "include": (), **NEUTRAL_SAMPLING}

    def __init__(
        self,
        run: Run,
        model: Seq2SeqModel | Ensemble,
        source: Tokenizer,
        target: Tokenizer,
        device: torch.device,
        filters: tuple[Filter, ...] | None = None,
    ) -> None:
        self.run, self.source, self.target, self.device = run, source, target, device
        self.model = model.to(device).eval()
        self.filters = (Suppress([target.pad, target.start]),) if filters is None else filters
        self.constraint_tokenizer = ConstraintTokenizer(target)

    @staticmethod
    def data_split(run: Run, split: str, files: DataFiles | None = None) -> Source:
        """A split of the data of this task."""
        return data_split(run, split, files)

    # --- public methods ----------------------------------------------------------------------------------------

    def state_inputs(self, items: Iterable[str]) -> list[Inputs]:
        """The tokens of each source and END."""
        return [source.inputs for source in self.sources(as_texts(items))]

    def requests(self, items: Iterable[str], details: bool = False, **decode: object) -> list[TranslateRequest]:
        """`prefix`, `include` and `exclude` may be lists with one entry per text."""
        items = as_texts(items)
        if not decode:
            return [TranslateRequest(text, details=details) for text in items]
        constraints, settings = parse_constraints(len(items), decode, self.decode_settings)
        return make_requests(items, settings, self.request_strategy(settings), constraints, details)

    def request_strategy(self, settings: Seq2SeqDecode) -> DecodeStrategy | ParallelStrategy:
        """The strategy of requests with these settings."""
        return self.strategy(settings)

    def predict_batch(self, requests: Sequence[TranslateRequest], batch: int | None = None) -> list[TranslateResult]:
        self.refuse_adapters(requests)
        results: dict[int, TranslateResult] = {}
        for indices in group_indices(requests, attrgetter("strategy", "rules", *REQUEST_SETTINGS)):
            group = [requests[i] for i in indices]
            settings = self.decode_settings(changed_settings(group, self.run.decode, batch))
            predict = self._predict_sentences if settings.split else self._predict_texts
            results |= zip(indices, predict(group, settings), strict=True)
        return [results[i] for i in range(len(requests))]

    def record(self, request: TranslateRequest, result: TranslateResult) -> Record:
        return translation_record(result)

    def evaluate_with_outputs(self, files: DataFiles | None = None) -> tuple[Metrics, list[str] | None, object]:
        return self.evaluate_texts(files)

    def evaluate_texts(self, files: DataFiles | None) -> tuple[Metrics, list[str], list[list[str]]]:
        """The metrics of examples with one or more references each, the translations and the references."""
        examples = self.data_split(self.run, "test", files)
        examples.require_nonempty("data.test")
        sources, references = [pair[0] for pair in examples], [split_references(pair[1]) for pair in examples]
        tokenization = choose_tokenization(references, self.run.eval)  # first: it may raise UserError
        translations = self.predict(sources, nbest=1)
        metrics: Metrics = {"examples": len(examples)}
        metrics |= text_metrics(translations, references, ("bleu", "chrf", "ter", "exact"), tokenization)
        loss = self.loss_over(sources, [texts[0] for texts in references])
        metrics |= {"loss": loss, "perplexity": float(torch.tensor(loss).exp())}
        metrics |= {f"{name}_signature": signature(name, references, tokenization) for name in ("bleu", "chrf", "ter")}
        return metrics, translations, references

    def paired_test(
        self, outputs: Sequence[Sequence[str]], references: Any, /
    ) -> tuple[dict[str, str], list[BootstrapResult]]:
        return paired_bootstrap(outputs, references, tokenization=choose_tokenization(references, self.run.eval))

    @property
    def processors(self) -> dict[str, Processor]:
        """The processors of source and target; a shared tokenizer gives one object."""
        source = TextProcessor(self.source)
        return {"source": source, "target": source if self.source is self.target else TextProcessor(self.target)}

    # --- internals ---------------------------------------------------------------------------------------------

    def _predict_texts(self, requests: Sequence[TranslateRequest], settings: Seq2SeqDecode) -> list[TranslateResult]:
        texts = [request.source for request in requests]
        constraints = self.constraints([constraints_of(request, self.run.decode) for request in requests], settings)
        hypotheses = self.generate(texts, settings, constraints)
        return self._results(requests, hypotheses, constraints or [Constraints()] * len(texts))

    def _predict_sentences(
        self, requests: Sequence[TranslateRequest], settings: Seq2SeqDecode
    ) -> list[TranslateResult]:
        """Translate sentence by sentence; only the first one begins with the prefix."""
        parts = [[sentence.strip() for sentence in split_sentences(request.source)] for request in requests]
        sentences = [
            replace(request, source=sentence, prefix="" if index else request.prefix)
            for request, part in zip(requests, parts, strict=True)
            for index, sentence in enumerate(part)
        ]
        results = iter(self._predict_texts(sentences, settings))
        return [join_sentences(part, [next(results) for _ in part], settings.length_penalty) for part in parts]

    def _results(
        self, requests: Sequence[TranslateRequest], hypotheses: list[list[Hypothesis]], constraints: list[Constraints]
    ) -> list[TranslateResult]:
        detailed = [
            (request.source, best) for request, best in zip(requests, hypotheses, strict=True) if request.details
        ]
        sources = self.source.encode([source for source, _ in detailed]) if detailed else []
        repeated = [source for source, (_, best) in zip(sources, detailed, strict=True) for _ in best]
        traces = iter(self.traces(repeated, [hypothesis.tokens for _, best in detailed for hypothesis in best]))
        results = []
        for request, best, constraint in zip(requests, hypotheses, constraints, strict=True):
            texts = self.target_texts(best)
            text_traces = [next(traces) for _ in best] if request.details else []
            results.append(translate_result(texts, best, text_traces, constraint, request.details))
        return results

    @staticmethod
    def ensemble(predictors: Mapping[str, "TranslatePredictor"]) -> "TranslatePredictor":
        """An ensemble of predictors by name. They must share the vocabularies; the settings of the first apply."""
        (name, first), *others = predictors.items()
        for other, predictor in others:
            for field in ("source", "target"):
                if vocabulary(getattr(first, field)) != vocabulary(getattr(predictor, field)):
                    raise UserError(
                        f"{name} and {other} have different {field} vocabularies and cannot form an ensemble; "
                        "train the second with the tokenizer of the first"
                    )
        model = Ensemble([as_module(predictor.model) for predictor in predictors.values()])
        return TranslatePredictor(first.run, model, first.source, first.target, first.device, first.filters)


# Validation decodes greedily, whatever decode.* the run has.
VALIDATION_DECODE = dict(TranslatePredictor.validation_decode)
PARALLEL_SETTINGS = ("links", "teacher_weight", "glancing", "rdrop")  # data.* of some families
TEXT_METRICS = ("bleu", "chrf", "exact")  # of validation; TER takes longer


class TranslateJob(TrainingJob):
    """Pairs of texts."""

    predictor: TranslatePredictor
    splits: Mapping[str, Source]
    tokenization: Tokenization | None = None  # of BLEU on the validation split, if train.metric needs it
    bleu_signature = ""
    used_settings: tuple[str, ...] = ()  # those of PARALLEL_SETTINGS that its objective uses

    def __init__(self, predictor: TranslatePredictor, splits: dict[str, Source], facts: Sequence[str] = ()) -> None:
        self.predictor, self.run, self.splits, self.facts = predictor, predictor.run, splits, list(facts)
        source, target, run = predictor.source, predictor.target, self.run
        self._refuse_unused_settings()
        self.objective = self.make_objective()
        self.static_shapes = run.data.packed
        self.loader = Loader.of(self.make_dataset())
        if "valid" in splits and predictor.context is not None:  # fail before training, not at the first validation
            valid = splits["valid"]
            columns = [pair[0] for pair in valid], [split_references(pair[1])[0] for pair in valid]
            for tokenizer, texts in zip((source, target), columns, strict=True):
                predictor.refuse_long(tokenizer.encode(texts), "a text of data.valid")
        if "valid" in splits and run.train.metric in TEXT_METRICS:
            references = [split_references(pair[1]) for pair in splits["valid"]]
            self.tokenization = choose_tokenization(references, run.eval)
            self.bleu_signature = signature("bleu", references, self.tokenization)

    def _refuse_unused_settings(self) -> None:
        for name in [setting for setting in PARALLEL_SETTINGS if setting not in self.used_settings]:
            if value := getattr(self.run.data, name, None):
                family = self.run.model.family
                raise UserError(f"data.{name} is {value}, but model.family={family} does not use it; leave it out")

    def make_objective(self) -> Objective:
        """The loss of the task."""
        return Seq2SeqObjective(self.predictor.module, self.run.train.smoothing)

    def make_dataset(self) -> PairDataset:
        """The data set that makes batches."""
        predictor, run, train = self.predictor, self.run, self.splits["train"]
        return PairDataset(train, predictor.source, predictor.target, run.data, run.train, predictor.context)

    def describe_data(self) -> list[str]:
        signature_facts = [f"valid: bleu signature {self.bleu_signature}"] if self.bleu_signature else []
        return super().describe_data() + signature_facts + self.facts

    def validate(self) -> dict[str, float]:
        if "valid" not in self.splits:
            return {}
        examples = self.splits["valid"]
        sources, references = [pair[0] for pair in examples], [split_references(pair[1]) for pair in examples]
        loss = self.predictor.loss_over(sources, [texts[0] for texts in references])
        metrics = {"loss": loss, "perplexity": float(torch.tensor(loss).exp())}
        if self.run.train.metric in metrics:
            return metrics
        translations = self.predictor.predict(sources, **self.predictor.validation_decode)
        return metrics | text_metrics(translations, references, TEXT_METRICS, self.tokenization)


# --- construction --------------------------------------------------------------------------------------------------


def prepare(
    run: Run,
    processors: Processors,
    device: torch.device,
    folder: Path | None = None,
    predictor_type: type[TranslatePredictor] | None = None,
) -> TranslateJob:
    """Open the data and train the tokenizers that are not kept; writes no file."""
    predictor_type, job_type = (predictor_type, TranslateJob) if predictor_type else classes_of(run)
    splits = open_splits(run, predictor_type.data_split)
    source, target = find_tokenizer(processors, "source"), find_tokenizer(processors, "target")
    if source is None or target is None:
        source, target = _teacher_tokenizers(run) or _train_tokenizers(run, splits["train"])
    run = with_vocab(run, source, target)
    model = build_model(run)
    note = _copy_teacher(run, model)
    return job_type(predictor_type(run, model, source, target, device), splits, [note] if note else [])


def restore(
    run: Run, folder: Path, device: torch.device, predictor_type: type[TranslatePredictor] | None = None
) -> TranslatePredictor:
    """The predictor of a run folder, without the weights."""
    predictor_type = predictor_type or classes_of(run)[0]
    processors = load_processors(folder)
    source, target = (require_tokenizer(processors, field) for field in ("source", "target"))
    return predictor_type(run, build_model(run), source, target, device)


def classes_of(run: Run) -> tuple[type[TranslatePredictor], type[TranslateJob]]:
    """The predictor and the job for the output of the family of a run."""
    from ..nat.ctc import CtcTranslationJob, CtcTranslator
    from ..nat.task import FertilityJob, FertilityTranslator, MaskPredictJob, MaskPredictTranslator

    classes: dict[Output, tuple[type[TranslatePredictor], type[TranslateJob]]] = {
        "fertility": (FertilityTranslator, FertilityJob),
        "ctc": (CtcTranslator, CtcTranslationJob),
        "mask_predict": (MaskPredictTranslator, MaskPredictJob),
    }
    writes = spec_of(run.model.family).writes
    return next((classes[output] for output in classes if output in writes), (TranslatePredictor, TranslateJob))


def with_vocab(run: Run, source: Tokenizer, target: Tokenizer) -> Run:
    """The run with the vocabulary sizes of its tokenizers; a pretrained model may have larger ones."""
    sizes = {"vocab": source.size, "target_vocab": 0 if source is target else target.size}
    if (
        run.start and not run.model.target_vocab
    ):  # one embedding for source and target, even with two tokenizers (Marian)
        sizes = {"vocab": max(source.size, target.size, run.model.vocab), "target_vocab": 0}
    elif run.start:
        sizes = {name: max(size, getattr(run.model, name)) for name, size in sizes.items()}
    return with_head(with_inputs(with_model_settings(run, **sizes), TEXT), HEAD)


def size_without_data(run: Run) -> Run:
    """The run with the sizes of a model without data."""
    target = run.model.target_vocab or (0 if run.tokenizer.joint else run.tokenizer.vocab)
    sized = with_model_settings(run, vocab=max_vocab(run), target_vocab=target)
    return with_head(with_inputs(sized, TEXT), HEAD)


def data_split(run: Run, split: str, files: DataFiles | None = None) -> Source:
    """A split of the data; the embedded data are dates. Test data may have several references."""
    data = run.data
    links = data.links if split == "train" else ""
    read = lambda files: open_pairs(files, data, references=split != "train", links=links)  # noqa: E731
    embedded = lambda: make_dates(data.locales, data.examples, seed=1)[split]  # noqa: E731
    return open_split(run, split, files, read, embedded, "test.en,test.de")


def _copy_teacher(run: Run, model: Seq2SeqModel) -> str | None:
    """Copy the weights of the teacher if data.teacher_init is true; return a note about it."""
    if not getattr(run.data, "teacher_init", False):
        return None
    if run.start:
        raise UserError(f"data.teacher_init is true, but the weights are those of start={run.start}; leave out one")
    return copy_teacher_weights(run.data.teacher, as_module(model))


def _teacher_tokenizers(run: Run) -> tuple[Tokenizer, Tokenizer] | None:
    """The tokenizers of the teacher, if there is one."""
    if not (name := getattr(run.data, "teacher", "")):
        return None
    teacher_config(name, "data.teacher")
    processors = load_processors(Path(name))
    return require_tokenizer(processors, "source"), require_tokenizer(processors, "target")


def _train_tokenizers(run: Run, train: Source) -> tuple[Tokenizer, Tokenizer]:
    """Tokenizers of source and target: one for both if tokenizer.joint."""
    if run.tokenizer.joint:
        joint = train_tokenizer(run.tokenizer, train.texts(0, 1))
        return joint, joint
    return train_tokenizer(run.tokenizer, train.texts(0)), train_tokenizer(run.tokenizer, train.texts(1))
