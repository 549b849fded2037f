"""Generation of text: from texts and decode.* to the requests of a generator, and from its hypotheses to texts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

import torch

from ..config.run import change_settings
from ..config.schema import LanguageDecode, Seq2SeqDecode
from ..data.batch import Batch
from ..data.collate import collate_pairs
from ..decode import DecodeStrategy, Ensemble, Generate, Hypothesis, TokenRules
from ..decode.constraints import MAX_SEARCHES, ConstraintRequest, Constraints
from ..decode.detokenizer import IncrementalDetokenizer
from ..decode.stop_strings import cut_at_stop
from ..decode.texts import added_text, split_sentences, without_incomplete
from ..errors import UserError
from ..families.protocols import CausalModel, Seq2SeqModel, as_module, memory_layer
from ..parts import Inputs
from ..parts.layer import smallest_context
from ..processors.tokenizers import Tokenizer, unknown_words
from .notices import Notice, full_context, missing_phrase, short_memory, warn_once
from .requests import Ended
from .text_generation import TextGeneration, refuse_several
from .texts import as_text

NO_CONSTRAINTS = Constraints()


# --- encoder–decoder models ------------------------------------------------------------------------------------------


class SourceGeneration(TextGeneration):
    """From source texts and their constraints to hypotheses."""

    model: Seq2SeqModel | Ensemble
    source: Tokenizer
    target: Tokenizer
    device: torch.device

    @property
    def context(self) -> int | None:
        """The most tokens of a source or a target, END included; None: any number."""
        return None if self._positions is None else self._positions - getattr(self.run.tune, "length", 0)

    @cached_property
    def _positions(self) -> int | None:
        return smallest_context(as_module(self.model))  # cached, because it visits every module

    def refuse_long(self, rows: Sequence[Sequence[int]], what: str = "a text") -> None:
        """Refuse rows, given without END, that are longer than the model's positions."""
        longest = max(map(len, rows), default=0) + 1
        if (context := self.context) is not None and longest > context:
            raise UserError(
                f"{what} has {longest:,} tokens with END and the model has {context:,} positions; "
                "shorten it, set decode.split=true, or train with more (model.positions.tokens)"
            )

    def constraints(self, requests: list[ConstraintRequest], settings: Seq2SeqDecode) -> list[Constraints] | None:
        """The constraints of each text; None if no text has any."""
        if not any(map(any, requests)):
            return None
        encoded = {each: self.constraint_tokenizer.encode(*each) for each in dict.fromkeys(requests)}
        for constraints in encoded.values():
            self.refuse_long([[*constraints.prefix, self.target.end]], "decode.prefix with one more token")
            needed = constraints.min_tokens
            if constraints.include and 0 < settings.max_tokens <= needed:
                raise UserError(
                    f"decode.include takes {needed} tokens and END, and decode.max_tokens is {settings.max_tokens}; "
                    f"raise it to {needed + 1} or more"
                )
        return [encoded[each] for each in requests]

    def generate(
        self, texts: Sequence[str], settings: Seq2SeqDecode, constraints: list[Constraints] | None
    ) -> list[list[Hypothesis]]:
        """Search; repeat where an excluded phrase has a new spelling or a required phrase is impossible."""
        found = self.search(texts, settings, constraints)
        todo = {i: each for i, each in enumerate(constraints or ()) if each.include or each.exclude}
        for _ in range(MAX_SEARCHES):
            revised = {
                i: self.constraint_tokenizer.revise(each, [best.tokens for best in found[i]])
                for i, each in todo.items()
            }
            todo = {i: each for i, each in revised.items() if each is not None}
            if not todo:
                return found
            again = self.search([texts[i] for i in todo], settings, list(todo.values()))
            for i, best in zip(todo, again, strict=True):
                found[i] = best
        for i, each in todo.items():  # no result is better than an excluded phrase
            found[i] = [best for best in found[i] if each.allows(self.target.decode([best.tokens])[0])]
        return found

    def search(
        self, texts: Sequence[str], settings: Seq2SeqDecode, constraints: list[Constraints] | None = None
    ) -> list[list[Hypothesis]]:
        """The hypotheses of every text, with their prefixes; none for an empty text."""
        filled = [i for i, text in enumerate(texts) if text.strip()]
        own = [constraints[i] if constraints else NO_CONSTRAINTS for i in filled]
        requests = self._requests([texts[i] for i in filled], settings, own)
        found: list[list[Hypothesis]] = [[] for _ in texts]
        for i, each, best in zip(filled, own, self.run_requests(requests, settings.batch), strict=True):
            found[i] = [replace(one, tokens=[*each.prefix, *one.tokens]) for one in best] if each.prefix else best
        return found

    def stream(self, text: str, **decode: object) -> Iterator[str]:
        """Yield the output in parts as it is generated.

        A beam search, and one with phrases to include or exclude, yields its text at the end.
        """
        settings, text = self.decode_settings(decode), as_text(text)
        refuse_several(settings.nbest)
        texts = [part.strip() for part in split_sentences(text)] if settings.split else [text]
        first = ConstraintRequest(settings.prefix, settings.include, settings.exclude)
        constraints = [first, *[first._replace(prefix="")] * (len(texts) - 1)]
        self.refuse_long(self.source.encode(texts))
        return self._stream(texts, settings, self.constraints(constraints, settings))

    def _stream(
        self, texts: list[str], settings: Seq2SeqDecode, constraints: list[Constraints] | None
    ) -> Iterator[str]:
        space = False
        for text, own in zip(texts, constraints or [NO_CONSTRAINTS] * len(texts), strict=True):
            for part in self._stream_one(text, settings, own) if text.strip() else ():
                yield " " + part if space else part
                space = False
            space = True

    def _stream_one(self, text: str, settings: Seq2SeqDecode, constraints: Constraints) -> Iterator[str]:
        detokenizer = IncrementalDetokenizer(self.target.decode, (), ())
        if settings.kind == "beam" or constraints.include or constraints.exclude:
            (found,) = self.generate([text], settings, [constraints])
        else:
            (request,) = self._requests([text], settings, [constraints])
            handle = self.start_stream(request)
            for token in chain(constraints.prefix, handle):
                if part := detokenizer.add(token):
                    yield part
            best = self.explain_empty(request, handle.result())
            found = [replace(one, tokens=[*constraints.prefix, *one.tokens]) for one in best]
        whole = self.target_texts(found[:1])
        warn_once(map(missing_phrase, constraints.missing("".join(whole))[:1]), 1)
        yield from filter(None, (each[detokenizer.emitted :] for each in whole))

    def _requests(self, texts: list[str], settings: Seq2SeqDecode, constraints: list[Constraints]) -> list[Generate]:
        rows, strategy, rules = self.source.encode(texts), self.strategy(settings), self.rules(settings)
        self.refuse_long(rows)
        return [
            Generate(
                (self.target.start, *own.prefix),
                Inputs("tokens", torch.tensor([[*ids, self.source.end]])),
                strategy,
                self._limit(len(ids) + 1, settings, own),
                repetition_penalty=settings.repetition_penalty,
                constraints=own,
                key=text,
                rules=rules,
                min_tokens=settings.min_tokens,
            )
            for text, ids, own in zip(texts, rows, constraints, strict=True)
        ]

    def _limit(self, tokens: int, settings: Seq2SeqDecode, constraints: Constraints) -> int:
        """The most tokens of a target after its prefix, for a source of so many tokens."""
        limit = settings.max_tokens or max(2 * tokens + 16 + constraints.min_tokens, settings.min_tokens + 1)
        return limit if self.context is None else min(limit, self.context - 1 - len(constraints.prefix))  # START

    def target_texts(self, found: Sequence[Hypothesis]) -> list[str]:
        """The texts of hypotheses. Bytes that only begin a character, where a limit cut it, are left out."""
        texts = self.target.decode([one.tokens for one in found])
        return [without_incomplete(text, self.target, one.tokens) for text, one in zip(texts, found, strict=True)]

    def pair(self, sources: list[list[int]], targets: list[list[int]]) -> Batch:
        """Sources and targets as a batch on the device."""
        self.refuse_long(sources + targets)
        return collate_pairs(sources, targets, self.source, self.target).to(self.device)

    def decode_settings(self, decode: Mapping[str, object]) -> Seq2SeqDecode:
        """The run's decode.*, changed by `decode`."""
        settings: Seq2SeqDecode = change_settings(self.run, {"decode": decode}).decode if decode else self.run.decode
        return settings


# --- decoder-only models ---------------------------------------------------------------------------------------------


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

    def generate(
        self, prompts: Sequence[str], ids: list[list[int]], settings: LanguageDecode
    ) -> list[list[Continuation]]:
        """The continuations of every prompt, best first; samples in the order of sampling."""
        shared = self.strategy(settings), self.rules(settings)
        requests = [self._request(*pair, settings, *shared) for pair in zip(prompts, ids, strict=True)]
        found = self.run_requests(requests, settings.batch)
        return [
            [self._continuation(row, each, settings) for each in best] for row, best in zip(ids, found, strict=True)
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
        handle = self.start_stream(request)
        for token in handle:
            if settings.kind != "beam" and (text := detokenizer.add(token)):
                yield text
        best = self.explain_empty(request, handle.result())
        found = [self._continuation(ids, each, settings) for each in best]
        yield from filter(None, (each.text[detokenizer.emitted :] for each in found))
        warn_once(self.context_notices(found), 1)

    def encode_prompts(self, texts: Sequence[str], settings: LanguageDecode) -> list[list[int]]:
        """The tokens of the prompts, after START if decode.add_start is set or the prompt is empty."""
        found = self.encode_texts(texts)
        found = [[self.start_token, *ids] if settings.add_start or not ids else ids for ids in found]
        for number, ids in enumerate(found, 1):
            self.refuse_long(len(ids), f"prompt {number}")
            if 0 < settings.max_length <= len(ids):
                raise UserError(
                    f"prompt {number} has {len(ids):,} tokens and decode.max_length is {settings.max_length:,}, which "
                    "counts them; raise it, or set decode.max_tokens instead"
                )
        return found

    def memory_notices(self, ids: list[list[int]]) -> list[tuple[Notice, ...]]:
        """The notices of each prompt: the model may forget its beginning."""
        memory = self.memory_tokens
        if memory is None:
            return [()] * len(ids)
        return [(short_memory(len(row), memory),) if len(row) > memory else () for row in ids]

    def context_notices(self, found: list[Continuation]) -> tuple[Notice, ...]:
        """The notices of the continuations of one prompt."""
        short = sum(each.ended == "context" for each in found)
        return (full_context(short, self.context),) if short else ()

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

    def decode_settings(self, decode: Mapping[str, object]) -> LanguageDecode:
        """The run's decode.*, changed by `decode`."""
        settings: LanguageDecode = change_settings(self.run, {"decode": decode}).decode if decode else self.run.decode
        return settings

    def _request(
        self, prompt: str, ids: list[int], settings: LanguageDecode, strategy: DecodeStrategy, rules: TokenRules
    ) -> Generate:
        return Generate(
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
        left = settings.max_length - len(prompt)
        return min(settings.max_tokens, left) if settings.max_length else settings.max_tokens

    def _continuation(self, prompt: list[int], found: Hypothesis, settings: LanguageDecode) -> Continuation:
        added = added_text(self.tokenizer.decode, prompt, found.tokens)
        text, stopped = cut_at_stop(without_incomplete(added, self.tokenizer, found.tokens), settings.stop)
        ended: Ended
        if stopped:
            ended = "stop"
        elif found.ended:
            ended = "end"
        else:
            ended = "max" if len(found.tokens) == self._limit(prompt, settings) else "context"
        return Continuation(text, found.tokens, ended, found.score)
