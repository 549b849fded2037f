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
SourceItem = TypeVar("SourceItem")  # an encoder input: a text, or the frames of a recording


class SourceInputs(NamedTuple):
    """The encoder inputs of one item, without padding."""

    inputs: Inputs
    max_tokens: int  # of the output, if decode.max_tokens is 0
    key: str | None = None  # seeds sampling; None: the inputs do
    prompt: tuple[int, ...] = ()  # tokens that the decoder reads after START


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

    def refuse_long(self, rows: Sequence[Sequence[int]], name: str = "a text") -> None:
        """Refuse rows, given without END, that are longer than the model's positions."""
        longest = max(map(len, rows), default=0) + 1
        if (context := self.context) is not None and longest > context:
            raise UserError(
                f"{name} has {longest:,} tokens with END and the model has {context:,} positions; "
                "shorten it, set decode.split=true, or train with more (model.positions.tokens)"
            )

    def constraints(self, requests: list[ConstraintRequest], settings: Seq2SeqDecode) -> list[Constraints] | None:
        """The constraints of each target; None if no target has any."""
        if not any(map(any, requests)):
            return None
        encoded = {request: self.constraint_tokenizer.encode(*request) for request in dict.fromkeys(requests)}
        for constraints in encoded.values():
            self.refuse_long([[*constraints.prefix, self.target.end]], "decode.prefix with one more token")
            needed = constraints.min_tokens
            if constraints.include and 0 < settings.max_tokens <= needed:
                raise UserError(
                    f"decode.include takes {needed} tokens and END, and decode.max_tokens is {settings.max_tokens}; "
                    f"raise it to {needed + 1} or more"
                )
        return [encoded[request] for request in requests]

    def generate(
        self, items: Sequence[SourceItem], settings: Seq2SeqDecode, constraints: list[Constraints] | None
    ) -> list[list[Hypothesis]]:
        """Search; search again where an excluded phrase appears in other tokens or a required phrase is impossible."""
        hypotheses = self.search(items, settings, constraints)
        pending = {
            i: constraint for i, constraint in enumerate(constraints or ()) if constraint.include or constraint.exclude
        }
        for _ in range(MAX_SEARCHES):
            revised = {
                i: self.constraint_tokenizer.revise(constraint, [best.tokens for best in hypotheses[i]])
                for i, constraint in pending.items()
            }
            pending = {i: constraint for i, constraint in revised.items() if constraint is not None}
            if not pending:
                return hypotheses
            again = self.search([items[i] for i in pending], settings, list(pending.values()))
            for i, best in zip(pending, again, strict=True):
                hypotheses[i] = best
        for i, constraint in pending.items():  # an excluded phrase is worse than no result
            hypotheses[i] = [best for best in hypotheses[i] if constraint.allows(self.target.decode([best.tokens])[0])]
        return hypotheses

    def search(
        self, items: Sequence[SourceItem], settings: Seq2SeqDecode, constraints: list[Constraints] | None = None
    ) -> list[list[Hypothesis]]:
        """The hypotheses of every item, with their prefixes; none for an empty item."""
        filled = [i for i, item in enumerate(items) if not self.is_empty(item)]
        item_constraints = [constraints[i] if constraints else NO_CONSTRAINTS for i in filled]
        requests = self.source_requests([items[i] for i in filled], settings, item_constraints)
        hypotheses: list[list[Hypothesis]] = [[] for _ in items]
        for i, constraint, best in zip(filled, item_constraints, self.run_requests(requests, settings), strict=True):
            hypotheses[i] = (
                [replace(hypothesis, tokens=[*constraint.prefix, *hypothesis.tokens]) for hypothesis in best]
                if constraint.prefix
                else best
            )
        return hypotheses

    def source_requests(
        self, items: Sequence[SourceItem], settings: Seq2SeqDecode, constraints: list[Constraints]
    ) -> list[SearchRequest]:
        strategy, rules = self.strategy(settings), self.rules(settings)
        return [
            SearchRequest(
                (self.target.start, *source.prompt, *constraint.prefix),
                source.inputs,
                strategy,
                self._limit(source.max_tokens, settings, constraint),
                repetition_penalty=settings.repetition_penalty,
                constraints=constraint,
                key=source.key,
                rules=rules,
                min_tokens=settings.min_tokens,
            )
            for source, constraint in zip(self.sources(items), constraints, strict=True)
        ]

    def _limit(self, tokens: int, settings: Seq2SeqDecode, constraints: Constraints) -> int:
        """The most tokens of a target after its prefix; `tokens` by the length of its source."""
        limit = settings.max_tokens or max(tokens + constraints.min_tokens, settings.min_tokens + 1)
        return limit if self.context is None else min(limit, self.context - 1 - len(constraints.prefix))  # START

    def target_texts(self, hypotheses: Sequence[Hypothesis]) -> list[str]:
        """The texts of hypotheses. Bytes that only begin a character, where a limit cut it, are left out."""
        texts = self.target.decode([hypothesis.tokens for hypothesis in hypotheses])
        return [
            without_incomplete(text, self.target, hypothesis.tokens)
            for text, hypothesis in zip(texts, hypotheses, strict=True)
        ]

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
        for text, constraint in zip(texts, constraints or [NO_CONSTRAINTS] * len(texts), strict=True):
            for part in self._stream_one(text, settings, constraint) if text.strip() else ():
                yield " " + part if space else part
                space = False
            space = True

    def _stream_one(self, text: str, settings: Seq2SeqDecode, constraints: Constraints) -> Iterator[str]:
        detokenizer = IncrementalDetokenizer(self.target.decode, (), ())
        if settings.kind == "beam" or constraints.include or constraints.exclude:
            (hypotheses,) = self.generate([text], settings, [constraints])
        else:
            (request,) = self.source_requests([text], settings, [constraints])
            handle = self.start_stream(request, settings)
            for token in chain(constraints.prefix, handle):
                if part := detokenizer.add(token):
                    yield part
            best = self.explain_empty(request, handle.result())
            hypotheses = [replace(hypothesis, tokens=[*constraints.prefix, *hypothesis.tokens]) for hypothesis in best]
        texts = self.target_texts(hypotheses[:1])
        warn_once(map(missing_phrase, constraints.missing("".join(texts))[:1]), 1)
        yield from filter(None, (output[detokenizer.emitted :] for output in texts))

    def pair(self, sources: list[list[int]], targets: list[list[int]]) -> Batch:
        """Sources and targets as a batch on the device."""
        self.refuse_long(sources + targets)
        return collate_pairs(sources, targets, self.source, self.target).to(self.device)
