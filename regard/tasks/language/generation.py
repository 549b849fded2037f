"""Generation by decoder-only models: from prompts and decode.* to the requests of a generator, and back to texts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from ...config.run import changed_decode
from ...decode import DecodeStrategy, Ensemble, Hypothesis, SearchRequest, TokenRules
from ...decode.search.texts import IncrementalDetokenizer, added_text, cut_at_stop, without_incomplete
from ...errors import UserError
from ...families.protocols import CausalModel, memory_layer
from ...processors.text.tokenizers import Tokenizer, unknown_words
from ..generate.base import TextGeneration, refuse_several
from ..notices import Notice, full_context, short_memory, warn_once
from ..requests import Ended
from ..texts import as_text
from .settings import LanguageDecode


@dataclass(frozen=True)
class Continuation:
    """A generated continuation of a prompt."""

    text: str  # without the stop string
    tokens: list[int]  # all generated tokens except END
    ended: Ended
    score: float  # Σ log p / length^α in the search


class PromptGeneration(TextGeneration):
    """From prompts to continuations."""

    model: CausalModel | Ensemble
    tokenizer: Tokenizer

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
        """The number of past tokens that the model attends to, if older ones are dropped silently; None: all."""
        memories = [memory_layer(memory) for member in self._members if (memory := member.new_memory(1)) is not None]
        return min((memory.tokens for memory in memories if memory.tokens is not None), default=None)

    @property
    def start_token(self) -> int:
        """The token before a text: START, or in a stream the end of the previous line."""
        return self.tokenizer.end if self.run.data.document == "stream" else self.tokenizer.start

    def refuse_long(self, tokens: int, name: str) -> None:
        if (context := self.context) is not None and tokens > context:
            raise UserError(
                f"{name} has {tokens:,} tokens and the model's context is {context:,}; shorten it, or train with a "
                "longer context (model.positions.tokens) or with unlimited positions (model.positions=rotary)"
            )

    def generate(
        self, prompts: Sequence[str], ids: list[list[int]], settings: LanguageDecode
    ) -> list[list[Continuation]]:
        """The continuations of every prompt, best first; samples in the order of sampling."""
        shared = self.strategy(settings), self.rules(settings)
        requests = [self._request(*pair, settings, *shared) for pair in zip(prompts, ids, strict=True)]
        hypotheses = self.run_requests(requests, settings)
        return [
            [self._continuation(row, hypothesis, settings) for hypothesis in best]
            for row, best in zip(ids, hypotheses, strict=True)
        ]

    def stream(self, prompt: str, **decode: object) -> Iterator[str]:
        """Yield the continuation in parts as it is generated: whole characters, and no part of a stop string.

        A beam search yields its text at the end.
        """
        settings, prompt = self.decode_settings(decode), as_text(prompt, "prompt")
        refuse_several(settings.nbest)
        (ids,) = self.encode_prompts([prompt], settings)
        warn_once(chain(*self.memory_notices([ids])), 1)
        return self._stream(prompt, ids, settings)

    def _stream(self, prompt: str, ids: list[int], settings: LanguageDecode) -> Iterator[str]:
        detokenizer = IncrementalDetokenizer(self.tokenizer.decode, ids, settings.stop)
        request = self._request(prompt, ids, settings, self.strategy(settings), self.rules(settings))
        handle = self.start_stream(request, settings)
        for token in handle:
            if settings.kind != "beam" and (text := detokenizer.add(token)):
                yield text
        best = self.explain_empty(request, handle.result())
        continuations = [self._continuation(ids, hypothesis, settings) for hypothesis in best]
        yield from filter(None, (continuation.text[detokenizer.emitted :] for continuation in continuations))
        warn_once(self.context_notices(continuations), 1)

    def encode_prompts(self, texts: Sequence[str], settings: LanguageDecode) -> list[list[int]]:
        """The tokens of the prompts, after START if decode.add_start is set or the prompt is empty."""
        prompts = self.encode_texts(texts)
        prompts = [[self.start_token, *ids] if settings.add_start or not ids else ids for ids in prompts]
        for number, ids in enumerate(prompts, 1):
            self.refuse_long(len(ids), f"prompt {number}")
            if 0 < settings.max_length <= len(ids):
                raise UserError(
                    f"prompt {number} has {len(ids):,} tokens and decode.max_length is {settings.max_length:,}, which "
                    "counts them; raise it, or set decode.max_tokens instead"
                )
        return prompts

    def memory_notices(self, ids: list[list[int]]) -> list[tuple[Notice, ...]]:
        """The notices of each prompt: the model may forget its beginning."""
        memory = self.memory_tokens
        if memory is None:
            return [()] * len(ids)
        return [(short_memory(len(row), memory),) if len(row) > memory else () for row in ids]

    def context_notices(self, continuations: list[Continuation]) -> tuple[Notice, ...]:
        """The notices of the continuations of one prompt."""
        short = sum(continuation.ended == "context" for continuation in continuations)
        return (full_context(short, self.context),) if short else ()

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

    def decode_settings(self, decode: Mapping[str, object]) -> LanguageDecode:
        """The run's decode.*, changed by `decode`."""
        settings: LanguageDecode = changed_decode(self.run, decode)
        return settings

    def _request(
        self, prompt: str, ids: list[int], settings: LanguageDecode, strategy: DecodeStrategy, rules: TokenRules
    ) -> SearchRequest:
        return SearchRequest(
            tuple(ids),
            strategy=strategy,
            max_tokens=self._limit(ids, settings),
            repetition_penalty=settings.repetition_penalty,
            stop=settings.stop,
            key=prompt,
            rules=rules,
            min_tokens=max(settings.min_tokens, settings.min_length - len(ids)),
        )

    def _limit(self, prompt: list[int], settings: LanguageDecode) -> int:
        """The most tokens after a prompt."""
        remaining = settings.max_length - len(prompt)
        return min(settings.max_tokens, remaining) if settings.max_length else settings.max_tokens

    def _continuation(self, prompt: list[int], hypothesis: Hypothesis, settings: LanguageDecode) -> Continuation:
        added = added_text(self.tokenizer.decode, prompt, hypothesis.tokens)
        text, stopped = cut_at_stop(without_incomplete(added, self.tokenizer, hypothesis.tokens), settings.stop)
        ended: Ended
        if stopped:
            ended = "stop"
        elif hypothesis.ended:
            ended = "end"
        else:
            ended = "max" if len(hypothesis.tokens) == self._limit(prompt, settings) else "context"
        return Continuation(text, hypothesis.tokens, ended, hypothesis.score)
