"""Language modeling: predict the next token of a text."""

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

import torch

from ...config.data.base import DataFiles
from ...config.data.texts import TextData
from ...config.run import Run
from ...config.strategies import strategy_from
from ...data.datasets.corpus import ContiguousSampler, Corpus, WindowSampler
from ...data.loading.loader import Loader
from ...data.sources.documents import Documents, open_documents
from ...data.tables.columns import PROMPT, ColumnRule
from ...decode import Ensemble, Filter, Suppress, TokenRules
from ...decode.search.constraints import ConstraintTokenizer
from ...errors import UserError
from ...families.protocols import CausalModel, as_module
from ...look import AttentionView, ViewAxis, Which, record_layers
from ...parts import Inputs
from ...processors.base import Processor
from ...processors.saved import load_processors
from ...processors.text.processor import TextProcessor
from ...processors.text.tokenizers import Tokenizer, train_tokenizer
from ...synthetic.stdlib import stdlib_documents
from ..base import (
    Metrics,
    Processors,
    Record,
    TrainingJob,
    build_model,
    find_tokenizer,
    log_facts,
    max_vocab,
    require_tokenizer,
    view_title,
    vocab_size,
    vocabulary,
    with_head,
    with_model_settings,
)
from ..generate.base import group_indices, rule_settings, strategy_settings
from ..notices import require_finite
from ..objectives import LanguageObjective
from ..predictor import PlainResult, Predictor
from ..records import completion_record
from ..requests import Completion, LanguageRequest, LanguageResult
from ..task import TEXT, Task
from ..texts import as_text, as_texts
from .generation import Continuation, PromptGeneration
from .scoring import corpus_nll, generation_logits, lm_metrics, logprobs
from .settings import LanguageDecode

START, END = "□", "■"  # how details and pictures show these tokens
VALIDATION_ROWS = 16  # parts of a validation text that a model with memory reads in parallel
TASK = Task("language", TEXT, "next", LanguageRequest, LanguageResult)
REQUEST_SETTINGS = "max_tokens", "max_length", "min_tokens", "min_length", "stop", "repetition_penalty", "add_start"
NO_COMPLETION = Completion("", None, None)
HEAD = "next"  # the head of a family with several heads


class LanguagePredictor(PromptGeneration, Predictor[str, LanguageRequest, LanguageResult]):
    """The continuation of every prompt; decode.nbest above 1 gives a list of them.

    Batch-invariant: a result never depends on the rest of its batch.
    """

    field, output = "prompt", "text"  # of a JSON record

    def __init__(
        self,
        run: Run,
        model: CausalModel | Ensemble,
        tokenizer: Tokenizer,
        device: torch.device,
        filters: tuple[Filter, ...] | None = None,
        folder: Path | None = None,
    ) -> None:
        """`folder` holds the encoded texts if data.cache cannot."""
        self.run, self.tokenizer, self.device, self.folder = run, tokenizer, device, folder
        self.model = model.to(device).eval()
        suppressed = [token for token in (tokenizer.pad, tokenizer.start) if token != tokenizer.end]
        self.filters = (Suppress(suppressed),) if filters is None else filters
        self.constraint_tokenizer = ConstraintTokenizer(tokenizer)

    @property
    def processors(self) -> dict[str, Processor]:
        return {"text": TextProcessor(self.tokenizer)}

    # --- public methods ----------------------------------------------------------------------------------------

    def requests(self, items: Iterable[str], details: bool = False, **decode: object) -> list[LanguageRequest]:
        items = as_texts(items, "prompt")
        if not decode:
            return [LanguageRequest(prompt, details=details) for prompt in items]
        settings = self.decode_settings(decode)
        shared: dict[str, Any] = {name: getattr(settings, name) for name in REQUEST_SETTINGS}
        shared |= {"strategy": strategy_from(settings), "rules": TokenRules.of(settings), "details": details}
        return [LanguageRequest(prompt, **shared) for prompt in items]

    def predict_batch(self, requests: Sequence[LanguageRequest], batch: int | None = None) -> list[LanguageResult]:
        results: dict[int, LanguageResult] = {}
        for indices in group_indices(requests, attrgetter("strategy", "rules", *REQUEST_SETTINGS)):
            group = [requests[i] for i in indices]
            results |= zip(indices, self._predict(group, self._request_settings(group[0], batch)), strict=True)
        return [results[i] for i in range(len(requests))]

    def record(self, request: LanguageRequest, result: LanguageResult) -> Record:
        return completion_record(result)

    def input_rule(self) -> ColumnRule:
        """A column `prompt`, else the one that training reads."""
        trained = tuple(name.lower() for name in self.run.data.columns)
        role = replace(PROMPT, known=(("prompt",), trained, *PROMPT.known[1:]))
        return replace(self.column_rule(), roles=(role,), columns=())

    def score(self, texts: str | Iterable[str], targets: None = None, details: bool = False) -> PlainResult:
        """ln P(text) from its start to END; with details also per token."""
        if targets is not None:
            raise UserError("a language model scores whole texts, so score takes no targets; join each to its text")
        if isinstance(texts, str):
            return self.score([texts], details=details)[0]
        ids = self.encode_texts(as_texts(texts))
        logprobs = self.logprobs([[self.start_token, *row, self.tokenizer.end] for row in ids])
        require_finite(map(sum, logprobs))
        totals = [math.fsum(values) for values in logprobs]
        if not details:
            return totals
        return [
            {"score": total, "pieces": [*self.tokenizer.tokens(row), END], "logprobs": values}
            for total, row, values in zip(totals, ids, logprobs, strict=True)
        ]

    def state_inputs(self, items: Iterable[str]) -> list[Inputs]:
        """START and the tokens of each text."""
        rows = [[self.start_token, *ids] for ids in self.encode_texts(as_texts(items))]
        for row in rows:
            self.refuse_long(len(row), "a text")
        return [Inputs("tokens", torch.tensor([row])) for row in rows]

    def read_inputs(self, inputs: Inputs) -> object:
        """Run the decoder."""
        return cast(CausalModel, self.model).decode(inputs)

    def look(self, text: str, target: str | None = None, layer: Which = None) -> AttentionView:
        """The attention weights of every layer while the model reads `text` followed by `target`."""
        if not as_text(text).strip():
            raise UserError("the text is empty and has no attention to show; give a sentence")
        prompt, ids = self.encode_texts([text, text + ("" if target is None else as_text(target, "target"))])
        self.refuse_long(len(ids) + 1, "the text")
        prompt_length = len(prompt) if ids[: len(prompt)] == prompt else len(ids)
        model: CausalModel = self.model.members[0] if isinstance(self.model, Ensemble) else self.model
        with record_layers(as_module(model), layer) as recorder:
            logits = generation_logits(model, [self.start_token, *ids], prompt_length + 1, self.device)[:-1].float()
        targets = torch.tensor(ids, device=self.device)
        logprobs: list[float] = logits.log_softmax(-1).gather(1, targets[:, None])[:, 0].tolist()
        text_axis = ViewAxis.of_tokens("token", [START, *self.tokenizer.tokens(ids)])
        return AttentionView.recorded(recorder, {"prefix": text_axis}, view_title(self.run), logprobs)

    def evaluate_with_outputs(self, files: DataFiles | None = None) -> tuple[Metrics, None, dict[str, int]]:
        """The metrics of `evaluate`, None because it predicts no texts, and sizes that identify the text."""
        texts = data_split(self.run, "test", self.tokenizer, self.folder, files)
        size = {"bytes": texts.bytes, "characters": texts.characters, "words": texts.words}
        self.refuse_long(self.run.data.max_tokens, "a window (data.max_tokens)")
        log_facts(texts.name, texts.facts)
        for fact in texts.report():
            warnings.warn(f"{texts.name}: {fact}", stacklevel=3)
        nll = corpus_nll(self.model, texts, self.run.data, self.tokenizer.size, self.device)
        require_finite([nll.nats])
        metrics: Metrics = {"tokens": nll.tokens, **size, **lm_metrics(nll, texts)}
        return metrics | {"policy": nll.policy, "seconds": nll.seconds}, None, size

    # --- internals ---------------------------------------------------------------------------------------------

    def logprobs(self, texts: list[list[int]]) -> list[list[float]]:
        """The log-probability of every token except the first."""
        return logprobs(self.model, texts, self.context, self.tokenizer.size, self.device)

    def _request_settings(self, request: LanguageRequest, batch: int | None) -> LanguageDecode:
        """The decode.* of a request."""
        fields = {name: getattr(request, name) for name in REQUEST_SETTINGS} | {"batch": batch}
        changes = strategy_settings(request.strategy) | rule_settings(request.rules, LanguageDecode)
        return self.decode_settings(changes | {name: value for name, value in fields.items() if value is not None})

    def _predict(self, requests: Sequence[LanguageRequest], settings: LanguageDecode) -> list[LanguageResult]:
        prompts = [request.prompt for request in requests]
        ids = self.encode_prompts(prompts, settings)
        continuations = self.generate(prompts, ids, settings)
        notices = self.memory_notices(ids)
        detailed = [i for i, request in enumerate(requests) if request.details]
        pairs = [(ids[i], continuation) for i in detailed for continuation in continuations[i]]
        ends = [[self.tokenizer.end] * (continuation.ended == "end") for _, continuation in pairs]
        rows = [[*prompt, *continuation.tokens, *end] for (prompt, continuation), end in zip(pairs, ends, strict=True)]
        logprobs = iter(self.logprobs(rows))
        results = []
        for i, best in enumerate(continuations):
            rows_of_best = [next(logprobs) if requests[i].details else None for _ in best]
            nbest = [
                self._completion(ids[i], continuation, row)
                for continuation, row in zip(best, rows_of_best, strict=True)
            ]
            prompt_notices = notices[i] + self.context_notices(best)
            first = nbest[0] if nbest else NO_COMPLETION
            results.append(LanguageResult(**vars(first), nbest=tuple(nbest), notices=prompt_notices))
        return results

    def _completion(self, prompt: list[int], continuation: Continuation, row: list[float] | None) -> Completion:
        """`row` has the log-probabilities of all tokens except the first; None without details."""
        text, ended, score = continuation.text, continuation.ended, continuation.score
        length = len(continuation.tokens) + (ended == "end")
        if row is None:
            return Completion(text, ended, score, length=length)
        logprobs, tokens_of = row[len(prompt) - 1 :], self.tokenizer.tokens
        tokens = tuple(tokens_of(prompt)), tuple(tokens_of(continuation.tokens)), tuple(logprobs)
        return Completion(text, ended, score, math.fsum(logprobs), *tokens, length=length)

    @staticmethod
    def ensemble(predictors: Mapping[str, "LanguagePredictor"]) -> "LanguagePredictor":
        """An ensemble of predictors by name. They must share the vocabulary; the settings of the first apply."""
        (name, first), *others = predictors.items()
        for other, predictor in others:
            if vocabulary(first.tokenizer) != vocabulary(predictor.tokenizer):
                raise UserError(
                    f"{name} and {other} have different vocabularies and cannot form an ensemble; "
                    "train the second with the tokenizer of the first"
                )
        model = Ensemble([as_module(predictor.model) for predictor in predictors.values()])
        return LanguagePredictor(first.run, model, first.tokenizer, first.device, first.filters, first.folder)


# --- training --------------------------------------------------------------------------------------------------------


class LanguageJob(TrainingJob):
    """Windows of running text."""

    predictor: LanguagePredictor
    splits: Mapping[str, Corpus]

    def __init__(self, predictor: LanguagePredictor, splits: dict[str, Corpus]) -> None:
        assert not isinstance(predictor.model, Ensemble)
        self.predictor, self.run, self.splits = predictor, predictor.run, splits
        self.objective = LanguageObjective(as_module(predictor.model), self.run.train.smoothing)
        has_memory = predictor.model.new_memory(1) is not None
        windows = (ContiguousSampler if has_memory else WindowSampler)(splits["train"], self.run.data, self.run.train)
        self.loader = Loader(windows, windows, self.run.data.workers)
        self.static_shapes = not has_memory  # the memory must survive from one step to the next

    def describe_data(self) -> list[str]:
        """Facts about the data, and what was left out."""
        facts = []
        for name, texts in self.splits.items():
            facts.append(f"{name}: {len(texts):,} tokens, {texts.bytes:,} bytes, {texts.name}")
            facts += [f"{name}: {fact}" for fact in texts.facts + texts.report()]
        return facts

    def validate(self) -> dict[str, float]:
        if "valid" not in self.splits:
            return {}
        texts, predictor = self.splits["valid"], self.predictor
        vocab, device = predictor.tokenizer.size, predictor.device
        return lm_metrics(corpus_nll(predictor.model, texts, self.run.data, vocab, device, VALIDATION_ROWS), texts)


# --- construction ----------------------------------------------------------------------------------------------------


def prepare(run: Run, processors: Processors, device: torch.device, folder: Path | None = None) -> LanguageJob:
    """Open the data and train a tokenizer that is not kept; writes no file except the token cache in `folder`."""
    if run.train.metric == "word_perplexity" and run.data.document != "stream":
        raise UserError("train.metric=word_perplexity needs data.document=stream; use perplexity or bits_per_byte")
    tokenizer = find_tokenizer(processors) or train_tokenizer(
        run.tokenizer, split_documents(run.data, "train").sample()
    )
    run = _with_vocab(run, vocab_size(run, tokenizer))
    predictor = LanguagePredictor(run, build_model(run), tokenizer, device)
    predictor.refuse_long(run.data.max_tokens, "a window (data.max_tokens)")
    splits = {"train": data_split(run, "train", tokenizer, folder)}
    if run.data.valid or run.data.holdout or not run.data.train:
        splits["valid"] = data_split(run, "valid", tokenizer, folder)
    return LanguageJob(predictor, splits)


def restore(run: Run, folder: Path, device: torch.device) -> LanguagePredictor:
    """The predictor of a run folder, without the weights."""
    tokenizer = require_tokenizer(load_processors(folder))
    return LanguagePredictor(run, build_model(run), tokenizer, device, folder=folder)


def size_without_data(run: Run) -> Run:
    """The run with the sizes of a model without data."""
    return _with_vocab(run, max_vocab(run))


def data_split(
    run: Run, split: str, tokenizer: Tokenizer, folder: Path | None, files: DataFiles | None = None
) -> Corpus:
    """A split of the data, encoded: the files in `files` or data.<split>, else the embedded source texts."""
    return Corpus(split_documents(run.data, split, files), tokenizer, folder / "cache" if folder else None)


def split_documents(data: TextData, split: str, files: DataFiles | None = None) -> Documents:
    """The documents of a split, or of the files in `files`; without any training files, the standard library."""
    if files is None and not getattr(data, split) and not data.train:
        return stdlib_documents(data, split)
    return open_documents(data, split, files)


def _with_vocab(run: Run, vocab: int) -> Run:
    return with_head(with_model_settings(run, vocab=vocab), HEAD)
