"""From texts, and what is asked of each, to hypotheses: the searching half of a translator."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..config.run import Run
from ..config.schema import Seq2SeqDecode
from ..data.collate import PairBatch, collate_pairs
from ..data.sampler import sorted_batches
from ..decode import Filter, Hypothesis, SearchSettings, search
from ..decode.beam import ROUND
from ..decode.constraints import ROUNDS, ConstraintRequest, Constraints, ConstraintTokenizer, filters, phrases, prompts
from ..decode.sample import sampling_settings
from ..errors import UserError
from ..parts import Mask
from ..parts.layer import smallest_context
from ..processors.tokenizers import Tokenizer


class Seq2SeqGenerator:
    """A model that can `start` and `step`, with its vocabularies. Texts are searched in batches of like lengths."""

    run: Run
    model: Any
    source: Tokenizer
    target: Tokenizer
    device: torch.device
    filters: tuple[Filter, ...]
    constraint_tokenizer: ConstraintTokenizer

    @property
    def context(self) -> int | None:
        """How many tokens a source or a target may have, END counted; None: any number."""
        return None if self._places is None else self._places - getattr(self.run.tune, "length", 0)

    @cached_property
    def _places(self) -> int | None:
        return smallest_context(self.model)  # asked once: it looks at every part

    def refuse_long(self, rows: Sequence[Sequence[int]], what: str = "a text") -> None:
        """What the model has no places for; these are without their END."""
        longest = max(map(len, rows), default=0) + 1
        if (context := self.context) is not None and longest > context:
            raise UserError(
                f"{what} has {longest:,} tokens, END counted, and the model has places for {context:,}; "
                "shorten it, set decode.split=true, or train with more (model.positions.tokens)"
            )

    def constraints(self, own: list[ConstraintRequest], how: Seq2SeqDecode) -> list[Constraints] | None:
        """What each text is asked to say; None where nothing is."""
        if not any(map(any, own)):
            return None
        made = {each: self.constraint_tokenizer.wish(*each) for each in dict.fromkeys(own)}
        for wish in made.values():
            self.refuse_long([[*wish.prefix, self.target.end]], "decode.prefix, with one token more,")
            if wish.include and 0 < how.max_tokens <= wish.tokens:
                raise UserError(
                    f"decode.include takes {wish.tokens} tokens and END, and decode.max_tokens is {how.max_tokens}; "
                    f"raise it to {wish.tokens + 1} or more"
                )
        return [made[each] for each in own]

    def generate(
        self, texts: Sequence[str], how: Seq2SeqDecode, wishes: list[Constraints] | None
    ) -> list[list[Hypothesis]]:
        """Search, and search again where an avoided phrase was spelt in a new way or a phrase could not be said."""
        found = self.search(texts, how, wishes)
        todo = {i: wish for i, wish in enumerate(wishes or ()) if wish.include or wish.exclude}
        for _ in range(ROUNDS):
            changed = {
                i: self.constraint_tokenizer.again(wish, [each.tokens for each in found[i]]) for i, wish in todo.items()
            }
            todo = {i: wish for i, wish in changed.items() if wish is not None}
            if not todo:
                return found
            again = self.search([texts[i] for i in todo], how, list(todo.values()))
            for i, best in zip(todo, again, strict=True):
                found[i] = best
        for i, wish in todo.items():  # rather nothing than what was to be avoided
            found[i] = [each for each in found[i] if wish.allows(self.target.decode([each.tokens])[0])]
        return found

    def search(
        self, texts: Sequence[str], how: Seq2SeqDecode, wishes: list[Constraints] | None = None
    ) -> list[list[Hypothesis]]:
        """The hypotheses for every text, best first, samples as drawn; none for an empty text."""
        ids = self.source.encode(list(texts))
        found: list[list[Hypothesis]] = [[] for _ in texts]
        pressed = {i for i, wish in enumerate(wishes or ()) if wish.include}
        for kind in (False, True):  # apart, for phrases make it a wider one
            full = [i for i, text in enumerate(texts) if text.strip() and (i in pressed) == kind]
            for batch in sorted_batches([len(ids[i]) for i in full], rows=how.batch):
                chosen = [full[i] for i in batch]
                asked = [wishes[i] for i in chosen] if wishes else None
                best = self._search([ids[i] for i in chosen], [texts[i] for i in chosen], how, asked)
                for i, some in zip(chosen, best, strict=True):
                    found[i] = some
        return found

    def _search(
        self, ids: list[list[int]], texts: list[str], how: Seq2SeqDecode, wishes: list[Constraints] | None
    ) -> list[list[Hypothesis]]:
        batch = self.pair(ids, [[] for _ in ids])
        settings, limits = self._settings(how, texts), self._limits(batch, how, wishes)
        with torch.no_grad():
            cache = self._start(batch, int(limits.max()) + max((len(wish.prefix) for wish in wishes or ()), default=0))
        if wishes is None:
            return search(self.model, cache, batch.target_in, limits, settings)
        own, must = (
            filters(wishes, self.constraint_tokenizer, self.device),
            phrases(wishes, self.constraint_tokenizer, self.device),
        )
        settings = replace(settings, filters=own + settings.filters, required=must)
        prompt, real = prompts(wishes, self.target.start, self.target.pad, self.device)
        found = search(self.model, cache, prompt, limits, settings, real)
        return [
            [replace(each, tokens=[*wish.prefix, *each.tokens]) for each in best]
            for wish, best in zip(wishes, found, strict=True)
        ]

    def _start(self, batch: PairBatch, room: int) -> Any:
        """On a GPU with room for so many tokens, in rounded shapes: a step can then be recorded, and used again.
        Elsewhere a cache that grows looks at fewer keys."""
        if self.device.type != "cuda":
            return self.model.start(batch.source, Mask(key_valid=batch.source_valid))
        tokens = batch.source.size(1)
        more = min(-tokens % ROUND, (self.context or tokens + ROUND) - tokens)
        source, real = F.pad(batch.source, (0, more), value=self.source.pad), F.pad(batch.source_valid, (0, more))
        return self.model.start(source, Mask(key_valid=real), (room // ROUND + 2) * ROUND)

    def _limits(self, batch: PairBatch, how: Seq2SeqDecode, wishes: list[Constraints] | None) -> Tensor:
        lengths = batch.source_valid.sum(1)
        extra = torch.tensor([wish.tokens for wish in wishes], device=self.device) if wishes else 0
        limits = torch.full_like(lengths, how.max_tokens) if how.max_tokens else 2 * lengths + 16 + extra
        if (context := self.context) is None:
            return limits
        given = torch.tensor([len(wish.prefix) for wish in wishes], device=self.device) if wishes else 0
        return torch.minimum(limits, context - 1 - given + torch.zeros_like(limits))  # START has a place, too

    def _settings(self, how: Seq2SeqDecode, texts: list[str]) -> SearchSettings:
        beam, stop = (how.beam, how.early_stopping) if how.kind == "beam" else (1, "first")
        draw = sampling_settings(texts, how, self.device) if how.kind == "sample" else None
        return SearchSettings(self.target.end, beam, how.length_penalty, how.nbest, stop, self.filters, draw)

    def pair(self, sources: list[list[int]], targets: list[list[int]]) -> PairBatch:
        self.refuse_long(sources + targets)
        return collate_pairs(sources, targets, self.source, self.target).to(self.device)
