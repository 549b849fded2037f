"""Language modeling: predict the next token of a text."""

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from ...config.data.base import DataFiles
from ...config.data.texts import TextData
from ...data.datasets.corpus import ContiguousSampler, Corpus, WindowSampler
from ...data.loading.loader import Loader
from ...data.sources.documents import Documents, open_documents
from ...data.tables.columns import PROMPT
from ...decode import Ensemble, Filter, Suppress
from ...decode.engine.answer import Emit
from ...decode.engine.jobs import ModelCall, Read
from ...errors import UserError
from ...families.protocols import CausalModel, as_module, memory_layer
from ...look import AttentionView, ViewAxis, Which, record_layers
from ...messages.media import Item
from ...messages.texts import LanguageRequest, LanguageResult
from ...messages.verbs import ScoreRequest, ScoreResult
from ...modalities.base import END, START
from ...parts import Inputs
from ...processors.base import Processor
from ...processors.saved import load_processors
from ...processors.text.processor import TextProcessor
from ...processors.text.tokenizers import Tokenizer, train_tokenizer, unknown_words
from ...synthetic.stdlib import stdlib_documents
from ..base import (
    Metrics,
    Processors,
    TrainingJob,
    build_model,
    find_tokenizer,
    log_facts,
    max_vocab,
    require_tokenizer,
    view_title,
    vocab_size,
    with_head,
    with_model_settings,
)
from ..generate.predictor import TextPredictor, join_models
from ..notices import require_finite
from ..objectives import LanguageObjective
from ..reading import ItemReader
from ..task import TEXT, Task
from ..texts import as_text, as_texts
from .generation import PromptWriter, refuse_long
from .scoring import corpus_nll, generation_logits, lm_metrics, score_known
from .settings import LanguageRun

VALIDATION_ROWS = 16  # parts of a validation text that a model with memory reads in parallel
TASK = Task("language", TEXT, "next")
HEAD = "next"  # the head of a family with several heads


class LanguagePredictor(TextPredictor[str, LanguageRequest, LanguageResult]):
    """The continuation of every prompt; decode.strategy.n above 1 gives a list of them."""

    run: LanguageRun
    request_type, result_type = LanguageRequest, LanguageResult

    def __init__(
        self,
        run: LanguageRun,
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

    @property
    def output_tokenizer(self) -> Tokenizer:
        return self.tokenizer

    @property
    def processors(self) -> dict[str, Processor]:
        return {"text": TextProcessor(self.tokenizer)}

    @property
    def members(self) -> Sequence[CausalModel]:
        """The models of an ensemble, or the only one."""
        members: Sequence[CausalModel] = self.model.members
        return members

    @property
    def context(self) -> int | None:
        """The most tokens that the model can read; None: any number."""
        return min((member.context for member in self.members if member.context is not None), default=None)

    @cached_property
    def writer(self) -> PromptWriter:
        """Writes the continuations."""
        memories = [memory_layer(memory) for member in self.members if (memory := member.new_memory(1)) is not None]
        tokens = min((memory.tokens for memory in memories if memory.tokens is not None), default=None)
        return PromptWriter(self.engine.context, tokens)

    @property
    def start_token(self) -> int:
        """The token before a text: START, or in a stream the end of the previous line."""
        return self.tokenizer.end if self.run.data.document == "stream" else self.tokenizer.start

    def refuse_long(self, tokens: int, name: str) -> None:
        """Refuse more tokens than the model reads."""
        refuse_long(tokens, self.context, name)

    def encode_texts(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of texts. Unknown words are allowed, unknown characters of a character vocabulary are not."""
        token_rows = self.tokenizer.encode(list(texts))
        for text, ids in zip(texts, token_rows, strict=True):
            if self.run.tokenizer.kind == "char" and self.tokenizer.unk in ids:
                missing = ", ".join(map(repr, unknown_words(self.tokenizer, text)[:5]))
                raise UserError(
                    f"the run's vocabulary of characters lacks {missing}; leave it out, or train with another tokenizer"
                )
        return token_rows

    # --- requests ----------------------------------------------------------------------------------------------

    def requests(self, items: Iterable[str], details: bool = False, **decode: object) -> list[LanguageRequest]:
        prompts = as_texts(items, "prompt")
        fields = self.plan.fields(LanguageRequest, len(prompts), details, decode)
        return [LanguageRequest(prompt, **named) for prompt, named in zip(prompts, fields, strict=True)]

    async def answer(self, request: LanguageRequest, emit: Emit | None = None) -> LanguageResult:
        plan = self.plan(request)
        prompt: list[int] = await Read(self.encode_texts, request.prompt)
        if plan.decode.add_start or not prompt:
            prompt = [self.start_token, *prompt]
        return await self.writer.write(prompt, plan, request, emit)

    @property
    def item_reader(self) -> ItemReader:
        """Prompts: a column `prompt`, else the one that training reads."""
        reader = super().item_reader
        trained = tuple(name.lower() for name in self.run.data.columns)
        role = replace(PROMPT, known=(("prompt",), trained, *PROMPT.known[1:]))
        prompts = replace(reader.rule, roles=(role,), columns=())
        return replace(reader, item_rule=prompts, record_field="prompt", result_field="text")

    # --- known texts -------------------------------------------------------------------------------------------

    def score_requests(self, items: object, targets: object) -> tuple[list[ScoreRequest], bool]:
        refuse_target(targets)
        return [ScoreRequest(Item(text=text)) for text in as_texts(items)], isinstance(items, str)

    async def answer_score(self, request: ScoreRequest, emit: Emit | None = None) -> ScoreResult:
        """ln P(text) from its start to END."""
        refuse_target(request.target)
        tokens: list[int] = await Read(self.encode_texts, as_text(request.item.value))
        known = [self.start_token, *tokens, self.tokenizer.end]
        logprobs = await score_known(known, self.engine.context.positions)
        require_finite(logprobs)
        if not request.details:
            return ScoreResult(math.fsum(logprobs))
        return ScoreResult(math.fsum(logprobs), (*self.tokenizer.tokens(tokens), END), tuple(logprobs))

    def logprobs(self, texts: Iterable[Sequence[int]]) -> list[list[float]]:
        """The log-probability of every token except the first."""
        context = self.context
        return self.run_programs(score_known(tokens, context) for tokens in texts)

    def state_inputs(self, items: Iterable[str]) -> list[Inputs]:
        """START and the tokens of each text."""
        rows = [[self.start_token, *ids] for ids in self.encode_texts(as_texts(items))]
        for row in rows:
            self.refuse_long(len(row), "a text")
        return [Inputs("tokens", torch.tensor([row])) for row in rows]

    def read_inputs(self, inputs: Inputs) -> object:
        """Run the decoder."""
        return self.model.decode(inputs)

    async def view(self, item: str, target: str | None = None, layer: Which = None) -> AttentionView:
        """The attention weights of every layer while the model reads a text followed by `target`."""
        if not as_text(item).strip():
            raise UserError("the text is empty and has no attention to show; give a sentence")
        prompt, tokens = self.encode_texts([item, item + ("" if target is None else as_text(target, "target"))])
        self.refuse_long(len(tokens) + 1, "the text")
        read = len(prompt) if tokens[: len(prompt)] == prompt else len(tokens)

        def record(model: Any) -> AttentionView:
            shown = model.members[0]
            with record_layers(as_module(shown), layer) as recorder:
                logits = generation_logits(shown, [self.start_token, *tokens], read + 1, self.device)
            scores = logits[:-1].float().log_softmax(-1)
            logprobs: list[float] = scores[range(len(tokens)), tokens].tolist()
            axis = ViewAxis.of_tokens("token", [START, *self.tokenizer.tokens(tokens)])
            return AttentionView.recorded(recorder, {"prefix": axis}, view_title(self.run), logprobs)

        call: ModelCall[AttentionView] = ModelCall(record)
        return await call

    # --- evaluation --------------------------------------------------------------------------------------------

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

    @staticmethod
    def ensemble(predictors: Mapping[str, "LanguagePredictor"]) -> "LanguagePredictor":
        """An ensemble of predictors by name. They must share the vocabulary; the settings of the first apply."""
        first = next(iter(predictors.values()))
        members = {name: (each.module, {"": each.tokenizer}) for name, each in predictors.items()}
        like_first = (first.tokenizer, first.device, first.filters, first.folder)
        return join_models(members, lambda model: LanguagePredictor(first.run, model, *like_first))


def refuse_target(target: object) -> None:
    """Refuse a target of `score`."""
    if target is not None:
        raise UserError("a language model scores whole texts, so score takes no targets; join each to its text")


# --- training --------------------------------------------------------------------------------------------------------


class LanguageJob(TrainingJob):
    """Windows of running text."""

    run: LanguageRun
    predictor: LanguagePredictor
    splits: Mapping[str, Corpus]

    def __init__(self, predictor: LanguagePredictor, splits: dict[str, Corpus]) -> None:
        (model,) = predictor.members
        self.predictor, self.run, self.splits = predictor, predictor.run, splits
        self.objective = LanguageObjective(as_module(model), self.run.train.objective)
        has_memory = model.new_memory(1) is not None
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


def prepare(run: LanguageRun, processors: Processors, device: torch.device, folder: Path | None = None) -> LanguageJob:
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


def restore(run: LanguageRun, folder: Path, device: torch.device) -> LanguagePredictor:
    """The predictor of a run folder, without the weights."""
    tokenizer = require_tokenizer(load_processors(folder))
    return LanguagePredictor(run, build_model(run), tokenizer, device, folder=folder)


def size_without_data(run: LanguageRun) -> LanguageRun:
    """The run with the sizes of a model without data."""
    return _with_vocab(run, max_vocab(run))


def data_split(
    run: LanguageRun, split: str, tokenizer: Tokenizer, folder: Path | None, files: DataFiles | None = None
) -> Corpus:
    """A split of the data, encoded: the files in `files` or data.<split>, else the embedded source texts."""
    return Corpus(split_documents(run.data, split, files), tokenizer, folder / "cache" if folder else None)


def split_documents(data: TextData, split: str, files: DataFiles | None = None) -> Documents:
    """The documents of a split, or of the files in `files`; without any training files, the standard library."""
    if files is None and not getattr(data, split) and not data.train:
        return stdlib_documents(data, split)
    return open_documents(data, split, files)


def _with_vocab(run: LanguageRun, vocab: int) -> LanguageRun:
    return with_head(with_model_settings(run, vocab=vocab), HEAD)
