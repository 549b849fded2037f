"""Generation with an encoder–decoder: from source texts and their constraints to hypotheses."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from ..config.run import Run
from ..config.schema import Seq2SeqDecode
from ..data.batch import Batch
from ..data.collate import collate_pairs
from ..data.sampler import sorted_batches
from ..decode import Ensemble, Filter, Hypothesis, SearchSettings, search
from ..decode.beam import SHAPE_MULTIPLE, SearchCache
from ..decode.constraints import (
    MAX_SEARCHES,
    ConstraintRequest,
    Constraints,
    ConstraintTokenizer,
    batch_filters,
    batch_phrases,
    batch_prompts,
)
from ..decode.sample import sampling_settings
from ..decode.strategies import EarlyStopping, Sample, strategy_from
from ..errors import UserError
from ..families.protocols import Seq2SeqModel, as_module
from ..parts import Inputs
from ..parts.layer import smallest_context
from ..processors.tokenizers import Tokenizer


class Seq2SeqGenerator:
    """A model with `start` and `step`, and its tokenizers. It searches in batches of texts of similar length."""

    run: Run
    model: Seq2SeqModel | Ensemble
    source: Tokenizer
    target: Tokenizer
    device: torch.device
    filters: tuple[Filter, ...]
    constraint_tokenizer: ConstraintTokenizer

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
        """The hypotheses of every text, best first, samples in their order; none for an empty text."""
        ids = self.source.encode(list(texts))
        found: list[list[Hypothesis]] = [[] for _ in texts]
        constrained = {i for i, each in enumerate(constraints or ()) if each.include}
        for kind in (False, True):  # separately, because required phrases widen the beam
            filled = [i for i, text in enumerate(texts) if text.strip() and (i in constrained) == kind]
            for batch in sorted_batches([len(ids[i]) for i in filled], rows=settings.batch):
                indices = [filled[i] for i in batch]
                own = [constraints[i] for i in indices] if constraints else None
                results = self._search([ids[i] for i in indices], [texts[i] for i in indices], settings, own)
                for i, best in zip(indices, results, strict=True):
                    found[i] = best
        return found

    def _search(
        self, ids: list[list[int]], texts: list[str], settings: Seq2SeqDecode, constraints: list[Constraints] | None
    ) -> list[list[Hypothesis]]:
        batch = self.pair(ids, [[] for _ in ids])
        search_settings, limits = self._search_settings(settings, texts), self._limits(batch, settings, constraints)
        with torch.no_grad():
            prefix = max((len(each.prefix) for each in constraints or ()), default=0)
            cache = self._start(batch, int(limits.max()) + prefix)
        if constraints is None:
            return search(self.model, cache, batch["target"].values, limits, search_settings)
        filters = batch_filters(constraints, self.constraint_tokenizer, self.device)
        required = batch_phrases(constraints, self.constraint_tokenizer, self.device)
        search_settings = replace(search_settings, filters=filters + search_settings.filters, required=required)
        prompt, valid = batch_prompts(constraints, self.target.start, self.target.pad, self.device)
        found = search(self.model, cache, prompt, limits, search_settings, valid)
        return [
            [replace(hypothesis, tokens=[*each.prefix, *hypothesis.tokens]) for hypothesis in best]
            for each, best in zip(constraints, found, strict=True)
        ]

    def _start(self, batch: Batch, room: int) -> SearchCache:
        """The cache. On a GPU it has room for that many tokens, in rounded shapes, so that CUDA graphs can be reused.

        Elsewhere the cache grows, so that attention reads fewer keys.
        """
        source, valid = batch["source"].values, batch["source"].valid
        assert valid is not None
        if self.device.type != "cuda":
            return self.model.start(batch["source"], len(source))
        tokens = source.size(1)
        more = min(-tokens % SHAPE_MULTIPLE, (self.context or tokens + SHAPE_MULTIPLE) - tokens)
        source, valid = F.pad(source, (0, more), value=self.source.pad), F.pad(valid, (0, more))
        capacity = (room // SHAPE_MULTIPLE + 2) * SHAPE_MULTIPLE
        return self.model.start(Inputs("tokens", source, valid), len(source), capacity)

    def _limits(self, batch: Batch, settings: Seq2SeqDecode, constraints: list[Constraints] | None) -> Tensor:
        """(rows,) the most tokens of each target after its prefix."""
        assert batch["source"].valid is not None
        lengths = batch["source"].valid.sum(1)
        extra = torch.tensor([each.min_tokens for each in constraints], device=self.device) if constraints else 0
        limits = torch.full_like(lengths, settings.max_tokens) if settings.max_tokens else 2 * lengths + 16 + extra
        if (context := self.context) is None:
            return limits
        prefix = torch.tensor([len(each.prefix) for each in constraints], device=self.device) if constraints else 0
        return torch.minimum(limits, context - 1 - prefix + torch.zeros_like(limits))  # START takes a position

    def _search_settings(self, settings: Seq2SeqDecode, texts: list[str]) -> SearchSettings:
        strategy = strategy_from(settings)
        early: EarlyStopping = settings.early_stopping if settings.kind == "beam" else "first"
        beam = settings.beam if settings.kind == "beam" else 1
        sampling = sampling_settings(texts, strategy, self.device) if isinstance(strategy, Sample) else None
        return SearchSettings(
            self.target.end, beam, settings.length_penalty, settings.nbest, early, self.filters, sampling
        )

    def pair(self, sources: list[list[int]], targets: list[list[int]]) -> Batch:
        """Sources and targets as a batch on the device."""
        self.refuse_long(sources + targets)
        return collate_pairs(sources, targets, self.source, self.target).to(self.device)
