"""Generation by encoder–decoder models: from sources and decode.* to the requests of a generator, and back to texts."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import Generic, NamedTuple, TypeVar

import torch

from ...config.decode import Seq2SeqDecode
from ...config.run import changed_decode
from ...data.batch import Batch
from ...data.datasets.collate import collate_pairs
from ...decode import Ensemble, Hypothesis, SearchRequest
from ...decode.search.constraints import MAX_SEARCHES, ConstraintRequest, Constraints
from ...decode.search.texts import IncrementalDetokenizer, split_sentences, without_incomplete
from ...errors import UserError
from ...families.protocols import Seq2SeqModel, as_module
from ...parts import Inputs
from ...parts.layer import smallest_context
from ...processors.text.tokenizers import Tokenizer
from ..notices import missing_phrase, warn_once
from ..texts import as_text
from .base import TextGeneration, refuse_several

NO_CONSTRAINTS = Constraints()
SourceItem = TypeVar("SourceItem")  # what is encoded: a text, or the frames of a recording


class SourceInputs(NamedTuple):
    """What the encoder reads, without padding."""

    inputs: Inputs
    max_tokens: int  # of the output, if decode.max_tokens is 0
    key: str | None = None  # samples depend on it; None: on the inputs themselves
    prompt: tuple[int, ...] = ()  # what the decoder reads after START


class SourceGeneration(TextGeneration, Generic[SourceItem]):
    """From sources and the constraints of their targets to hypotheses."""

    model: Seq2SeqModel | Ensemble
    target: Tokenizer
    device: torch.device

    @abstractmethod
    def sources(self, items: Sequence[SourceItem]) -> list[SourceInputs]:
        """The sources of items that are not empty."""

    def is_empty(self, item: SourceItem) -> bool:
        """True if the item has no output."""
        return False

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
        """The constraints of each target; None if no target has any."""
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
        self, items: Sequence[SourceItem], settings: Seq2SeqDecode, constraints: list[Constraints] | None
    ) -> list[list[Hypothesis]]:
        """Search; repeat where an excluded phrase has a new spelling or a required phrase is impossible."""
        found = self.search(items, settings, constraints)
        todo = {i: each for i, each in enumerate(constraints or ()) if each.include or each.exclude}
        for _ in range(MAX_SEARCHES):
            revised = {
                i: self.constraint_tokenizer.revise(each, [best.tokens for best in found[i]])
                for i, each in todo.items()
            }
            todo = {i: each for i, each in revised.items() if each is not None}
            if not todo:
                return found
            again = self.search([items[i] for i in todo], settings, list(todo.values()))
            for i, best in zip(todo, again, strict=True):
                found[i] = best
        for i, each in todo.items():  # no result is better than an excluded phrase
            found[i] = [best for best in found[i] if each.allows(self.target.decode([best.tokens])[0])]
        return found

    def search(
        self, items: Sequence[SourceItem], settings: Seq2SeqDecode, constraints: list[Constraints] | None = None
    ) -> list[list[Hypothesis]]:
        """The hypotheses of every item, with their prefixes; none for an empty item."""
        filled = [i for i, item in enumerate(items) if not self.is_empty(item)]
        own = [constraints[i] if constraints else NO_CONSTRAINTS for i in filled]
        requests = self.source_requests([items[i] for i in filled], settings, own)
        found: list[list[Hypothesis]] = [[] for _ in items]
        for i, each, best in zip(filled, own, self.run_requests(requests, settings), strict=True):
            found[i] = [replace(one, tokens=[*each.prefix, *one.tokens]) for one in best] if each.prefix else best
        return found

    def source_requests(
        self, items: Sequence[SourceItem], settings: Seq2SeqDecode, constraints: list[Constraints]
    ) -> list[SearchRequest]:
        strategy, rules = self.strategy(settings), self.rules(settings)
        return [
            SearchRequest(
                (self.target.start, *source.prompt, *own.prefix),
                source.inputs,
                strategy,
                self._limit(source.max_tokens, settings, own),
                repetition_penalty=settings.repetition_penalty,
                constraints=own,
                key=source.key,
                rules=rules,
                min_tokens=settings.min_tokens,
            )
            for source, own in zip(self.sources(items), constraints, strict=True)
        ]

    def _limit(self, tokens: int, settings: Seq2SeqDecode, constraints: Constraints) -> int:
        """The most tokens of a target after its prefix; `tokens` by the length of its source."""
        limit = settings.max_tokens or max(tokens + constraints.min_tokens, settings.min_tokens + 1)
        return limit if self.context is None else min(limit, self.context - 1 - len(constraints.prefix))  # START

    def target_texts(self, found: Sequence[Hypothesis]) -> list[str]:
        """The texts of hypotheses. Bytes that only begin a character, where a limit cut it, are left out."""
        texts = self.target.decode([one.tokens for one in found])
        return [without_incomplete(text, self.target, one.tokens) for text, one in zip(texts, found, strict=True)]

    def decode_settings(self, decode: Mapping[str, object]) -> Seq2SeqDecode:
        """The run's decode.*, changed by `decode`."""
        settings: Seq2SeqDecode = changed_decode(self.run, decode)
        return settings


class TextSourceGeneration(SourceGeneration[str]):
    """Sources that are texts."""

    source: Tokenizer

    def sources(self, items: Sequence[str]) -> list[SourceInputs]:
        rows = self.source.encode(list(items))
        self.refuse_long(rows)
        ended = [[*ids, self.source.end] for ids in rows]
        return [
            SourceInputs(Inputs("tokens", torch.tensor([ids])), 2 * len(ids) + 16, text)
            for text, ids in zip(items, ended, strict=True)
        ]

    def is_empty(self, item: str) -> bool:
        return not item.strip()

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
            (request,) = self.source_requests([text], settings, [constraints])
            handle = self.start_stream(request, settings)
            for token in chain(constraints.prefix, handle):
                if part := detokenizer.add(token):
                    yield part
            best = self.explain_empty(request, handle.result())
            found = [replace(one, tokens=[*constraints.prefix, *one.tokens]) for one in best]
        whole = self.target_texts(found[:1])
        warn_once(map(missing_phrase, constraints.missing("".join(whole))[:1]), 1)
        yield from filter(None, (each[detokenizer.emitted :] for each in whole))

    def pair(self, sources: list[list[int]], targets: list[list[int]]) -> Batch:
        """Sources and targets as a batch on the device."""
        self.refuse_long(sources + targets)
        return collate_pairs(sources, targets, self.source, self.target).to(self.device)
