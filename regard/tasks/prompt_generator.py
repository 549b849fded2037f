"""Generation with a causal model: from prompts to continuations, in batches or as a stream."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from ..config.run import Run, change_settings
from ..config.schema import LanguageDecode
from ..data.sampler import sorted_batches
from ..decode import Ensemble, Filter, Hypothesis, RepetitionPenalty, SearchSettings, StopStrings, search, steps
from ..decode.beam import SHAPE_MULTIPLE, SearchCache
from ..decode.filters import NO_TOKEN
from ..decode.sample import sampling_settings
from ..decode.stop_strings import cut_at_stop, possible_stop_length
from ..decode.strategies import EarlyStopping, Sample, strategy_from
from ..decode.texts import added_text
from ..errors import UserError
from ..families.protocols import CausalModel, memory_layer
from ..processors.tokenizers import Tokenizer, unknown_words
from .notices import Notice, full_context, short_memory, warn_once
from .requests import Ended


@dataclass(frozen=True)
class Continuation:
    """A generated continuation of a prompt."""

    text: str  # without the stop string
    tokens: list[int]  # all generated tokens except END
    ended: Ended
    score: float  # Σ log p / length^α in the search


class PromptBatch(NamedTuple):
    """A batch of prompts: the last arguments of `search`."""

    prompt: Tensor  # (rows, tokens)
    limits: Tensor  # (rows,)
    settings: SearchSettings
    valid: Tensor | None


class PromptGenerator:
    """A model with `start` and `step`, and its tokenizer. It continues prompts of any lengths in batches."""

    run: Run
    model: CausalModel | Ensemble
    tokenizer: Tokenizer
    device: torch.device
    filters: tuple[Filter, ...]

    @property
    def _members(self) -> Sequence[CausalModel]:
        members: Sequence[CausalModel] = self.model.members if isinstance(self.model, Ensemble) else [self.model]
        return members

    @property
    def context(self) -> int | None:
        """The most tokens that the model can read; None: any number."""
        return min((member.context for member in self._members if member.context is not None), default=None)

    @property
    def memory_tokens(self) -> int | None:
        """How many tokens back the model can attend, if it forgets older ones silently; None: all."""
        memories = [memory_layer(memory) for each in self._members if (memory := each.new_memory(1)) is not None]
        return min((memory.tokens for memory in memories if memory.tokens is not None), default=None)

    @property
    def start_token(self) -> int:
        """The token before the first one of a text: START, in a stream the end of the previous line."""
        return self.tokenizer.end if self.run.data.document == "stream" else self.tokenizer.start

    def refuse_long(self, tokens: int, what: str) -> None:
        if (context := self.context) is not None and tokens > context:
            raise UserError(
                f"{what} has {tokens:,} tokens and the model's context is {context:,}; shorten it, or train with a "
                "longer context (model.positions.tokens) or with unlimited positions (model.positions=rotary)"
            )

    def stream(self, prompt: str, **decode: object) -> Iterator[str]:
        """Yield the continuation in parts as it is generated: whole characters, and no part of a stop string.

        A beam search yields its text at the end.
        """
        settings = self.decode_settings(decode)
        if settings.nbest > 1:
            raise UserError(f"decode.nbest is {settings.nbest}; a stream has one text, use predict or decode.nbest=1")
        (ids,) = self._encode_prompts([prompt], settings)
        warn_once(chain(*self.memory_notices([ids])), 1)
        return self._stream(prompt, ids, settings)

    def _stream(self, prompt: str, ids: list[int], settings: LanguageDecode) -> Iterator[str]:
        detokenizer = IncrementalDetokenizer(self.tokenizer.decode, ids, settings.stop)
        batch = self._batch([prompt], [ids], settings)
        for state in steps(self.model, self._start(batch), *batch):
            if settings.kind == "beam" or state.finished:
                continue
            if text := detokenizer.add(int(state.tokens[0, 0, state.step - 1])):
                yield text
        found = [self._continuation(ids, each, settings) for each in state.results()[0]]
        yield from filter(None, (each.text[detokenizer.emitted :] for each in found))
        warn_once(self.context_notices(found), 1, stacklevel=2)

    def generate(
        self, prompts: Sequence[str], ids: list[list[int]], settings: LanguageDecode
    ) -> list[list[Continuation]]:
        """The continuations of every prompt, best first; samples in the order of sampling."""
        found: list[list[Continuation]] = [[] for _ in prompts]
        for indices in sorted_batches([len(each) for each in ids], rows=settings.batch):
            batch = self._batch([prompts[i] for i in indices], [ids[i] for i in indices], settings)
            results = search(self.model, self._start(batch), *batch)
            for i, best in zip(indices, results, strict=True):
                found[i] = [self._continuation(ids[i], each, settings) for each in best]
        return found

    # --- internals ---------------------------------------------------------------------------------------------

    def _encode_prompts(self, texts: Sequence[str], settings: LanguageDecode) -> list[list[int]]:
        """The tokens of the prompts, after START if decode.add_start is set or the prompt is empty."""
        found = self.encode_texts(texts)
        found = [[self.start_token, *ids] if settings.add_start or not ids else ids for ids in found]
        for number, ids in enumerate(found, 1):
            self.refuse_long(len(ids), f"prompt {number}")
        return found

    def memory_notices(self, ids: list[list[int]]) -> list[tuple[Notice, ...]]:
        """The notices of each prompt: the model may forget its beginning."""
        memory = self.memory_tokens
        if memory is None:
            return [()] * len(ids)
        return [(short_memory(len(row), memory),) if len(row) > memory else () for row in ids]

    def encode_texts(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of texts. Unknown words are allowed, unknown characters of a character vocabulary are not."""
        found = self.tokenizer.encode(list(texts))
        for text, ids in zip(texts, found, strict=True):
            if self.run.tokenizer.kind == "char" and self.tokenizer.unk in ids:
                missing = ", ".join(map(repr, unknown_words(self.tokenizer, text)[:5]))
                raise UserError(
                    f"the run's vocabulary of characters lacks {missing}; leave it out, or train with another tokenizer"
                )
        return found

    def _batch(self, prompts: list[str], ids: list[list[int]], settings: LanguageDecode) -> PromptBatch:
        longest, device = max(map(len, ids)), self.device
        prompt = torch.tensor([row + [self.tokenizer.pad] * (longest - len(row)) for row in ids], device=device)
        lengths = torch.tensor([len(row) for row in ids], device=device)
        valid = torch.arange(longest, device=device) < lengths[:, None]
        limits = torch.full_like(lengths, settings.max_tokens)
        if (context := self.context) is not None:
            limits = torch.minimum(limits, context - lengths + 1)  # the model never reads the last token
        ragged = any(len(row) < longest for row in ids)
        search_settings = self._search_settings(prompts, ids, settings, prompt.masked_fill(~valid, NO_TOKEN))
        return PromptBatch(prompt, limits, search_settings, valid if ragged else None)

    def _search_settings(
        self, prompts: list[str], ids: list[list[int]], settings: LanguageDecode, prompt: Tensor
    ) -> SearchSettings:
        """`prompt` (rows, tokens) has NO_TOKEN as padding."""
        strategy = strategy_from(settings)
        early: EarlyStopping = settings.early_stopping if settings.kind == "beam" else "first"
        penalty = settings.repetition_penalty
        return SearchSettings(
            self.tokenizer.end,
            settings.beam if settings.kind == "beam" else 1,
            settings.length_penalty,
            settings.nbest,
            early,
            self.filters,
            sampling_settings(prompts, strategy, self.device) if isinstance(strategy, Sample) else None,
            logit_filters=(RepetitionPenalty(penalty, prompt),) if penalty != 1 else (),
            stop_strings=StopStrings(settings.stop, self.tokenizer.decode, ids) if settings.stop else None,
        )

    def _start(self, batch: PromptBatch) -> SearchCache:
        """The cache. On a GPU it has room for all tokens, in rounded shapes, so that CUDA graphs can be reused."""
        rows, tokens = batch.prompt.shape
        if self.device.type != "cuda":
            return self.model.start(None, rows)
        multiple = SHAPE_MULTIPLE
        return self.model.start(None, rows, ((tokens + int(batch.limits.max())) // multiple + 2) * multiple)

    def _continuation(self, prompt: list[int], found: Hypothesis, settings: LanguageDecode) -> Continuation:
        text, stopped = cut_at_stop(added_text(self.tokenizer.decode, prompt, found.tokens), settings.stop)
        ended: Ended
        if stopped:
            ended = "stop"
        elif found.ended:
            ended = "end"
        else:
            ended = "max" if len(found.tokens) == settings.max_tokens else "context"
        return Continuation(text, found.tokens, ended, found.score)

    def context_notices(self, found: list[Continuation]) -> tuple[Notice, ...]:
        """The notices of the continuations of one prompt."""
        short = sum(each.ended == "context" for each in found)
        return (full_context(short, self.context),) if short else ()

    def decode_settings(self, decode: Mapping[str, object]) -> LanguageDecode:
        """The run's decode.*, changed by `decode`."""
        settings: LanguageDecode = change_settings(self.run, {"decode": decode}).decode if decode else self.run.decode
        return settings


class IncrementalDetokenizer:
    """Tokens in, text out: only text that no later token can change."""

    def __init__(
        self, decode: Callable[[Sequence[Sequence[int]]], list[str]], prompt: Sequence[int], stops: Sequence[str]
    ) -> None:
        self.decode, self.stops = decode, stops
        self.complete = list(prompt)  # tokens that end with a whole character
        self.pending: list[int] = []  # the tokens after them: the beginning of a character
        self.text = ""  # of the complete tokens after the prompt
        self.emitted = 0  # characters of `text` that were returned

    def add(self, token: int) -> str:
        """The text that is certain after this token; often empty."""
        self.pending.append(token)
        new = added_text(self.decode, self.complete, self.pending)
        if new.endswith("\N{REPLACEMENT CHARACTER}"):
            return ""
        self.complete += self.pending
        self.pending = []
        self.text += new
        text, stopped = cut_at_stop(self.text, self.stops)
        certain = len(text) - (0 if stopped else possible_stop_length(text, self.stops))
        before, self.emitted = self.emitted, max(self.emitted, certain)
        return text[before : self.emitted]
