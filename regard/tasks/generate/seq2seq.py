"""Generation by encoder–decoder models: from sources and decode.* to the requests of a generator, and back to texts."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

import torch

from ...config.decode import Seq2SeqDecode
from ...config.run import changed_decode
from ...decode import Ensemble, Hypothesis, SearchRequest
from ...decode.search.constraints import MAX_SEARCHES, ConstraintRequest, Constraints
from ...decode.search.texts import without_incomplete
from ...errors import UserError
from ...families.protocols import Seq2SeqModel, as_module
from ...parts import Inputs
from ...parts.layer import smallest_context
from ...processors.text.tokenizers import Tokenizer
from .base import TextGeneration

NO_CONSTRAINTS = Constraints()
SourceItem = TypeVar("SourceItem")  # an encoder input: a text, or the frames of a recording


class SourceInputs(NamedTuple):
    """The encoder inputs of one item, without padding."""

    inputs: Inputs
    max_tokens: int  # of the output, if decode.max_tokens is 0
    key: str | None = None  # seeds sampling; None: the inputs do
    prompt: tuple[int, ...] = ()  # tokens that the decoder reads after START


class SourceGeneration(TextGeneration, Generic[SourceItem]):
    """Search hypotheses for sources, under constraints on their targets."""

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
            new_hypotheses = self.search([items[i] for i in pending], settings, list(pending.values()))
            for i, best in zip(pending, new_hypotheses, strict=True):
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
