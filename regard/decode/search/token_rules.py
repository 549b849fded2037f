"""Rules about the tokens of a text: what must not repeat, what is forbidden, forced, or an end."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from .filters import (
    NO_TOKEN,
    Filter,
    Forbid,
    ForcedEnd,
    ForcedStart,
    MinTokens,
    NoRepeatNgram,
    Renormalize,
    Suppress,
    SuppressAt,
)

ID_RULES = "forced_bos_token_id", "forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens", "eos_token_id"


@dataclass(frozen=True)
class TokenRules:
    """The rules of one request. They have the names and meanings of generation_config.json in transformers."""

    no_repeat_ngram_size: int = 0  # so many tokens occur only once in a row; 0: any number of times
    encoder_no_repeat_ngram_size: int = 0  # so many tokens in a row are not those of the source; 0: they may be
    bad_words_ids: tuple[tuple[int, ...], ...] = ()  # sequences that no text contains
    forced_bos_token_id: tuple[int, ...] = ()  # the first token
    forced_eos_token_id: tuple[int, ...] = ()  # the last token at the limit is one of these
    suppress_tokens: tuple[int, ...] = ()  # tokens that no text contains
    begin_suppress_tokens: tuple[int, ...] = ()  # tokens that begin no text
    eos_token_id: tuple[int, ...] = ()  # tokens that end a text; empty: END of the tokenizer
    renormalize_logits: bool = False  # scores are probabilities after all rules

    @classmethod
    def of(cls, settings: object) -> "TokenRules":
        """The rules among the settings decode.*; those that a task lacks have no effect."""
        values: dict[str, Any] = {each.name: getattr(settings, each.name, each.default) for each in fields(cls)}
        return cls(**values)

    def largest_ids(self) -> dict[str, int]:
        """The largest token that each rule names."""
        words = {"bad_words_ids": tuple(chain(*self.bad_words_ids))}
        named = {name: getattr(self, name) for name in ID_RULES} | words
        return {name: max(ids) for name, ids in named.items() if ids}

    def filters(self, ends: Sequence[int], rows: "RuleRows") -> tuple[Filter, ...]:
        """Filters in the order of transformers, which matters where one forces a token that another forbids."""
        found: list[Filter] = []
        if self.no_repeat_ngram_size:
            found.append(NoRepeatNgram(self.no_repeat_ngram_size, rows.prompt))
        if self.encoder_no_repeat_ngram_size and rows.source is not None:
            found.append(NoRepeatNgram(self.encoder_no_repeat_ngram_size, rows.prompt, rows.source))
        words = [word for word in self.bad_words_ids if len(word) > 1]
        if single := [word[0] for word in self.bad_words_ids if len(word) == 1 and word[0] not in ends]:
            found.append(Suppress(single))
        if words:
            found.append(Forbid([words], rows.prompt))
        if rows.min_tokens is not None:
            found.append(MinTokens(ends, rows.min_tokens))
        if self.forced_bos_token_id:
            found.append(ForcedStart(self.forced_bos_token_id, rows.at_start))
        if self.forced_eos_token_id:
            found.append(ForcedEnd(*self.forced_eos_token_id))
        if self.suppress_tokens:
            found.append(Suppress(self.suppress_tokens))
        if self.begin_suppress_tokens:
            forced = rows.at_start & bool(self.forced_bos_token_id)  # then the second token is the first free one
            found.append(SuppressAt(self.begin_suppress_tokens, forced.long()))
        return tuple(found)

    def last_filters(self) -> tuple[Filter, ...]:
        """Filters after all others."""
        return (Renormalize(),) if self.renormalize_logits else ()


@dataclass(frozen=True)
class RuleRows:
    """What the rules need to know of the rows of a batch."""

    prompt: Tensor  # (rows, tokens), with NO_TOKEN on the left of shorter prompts
    source: Tensor | None  # (rows, tokens), with NO_TOKEN on the right
    min_tokens: Tensor | None  # (rows,)

    @property
    def at_start(self) -> Tensor:
        """(rows,) bool: True if the prompt is only START."""
        return (self.prompt != NO_TOKEN).sum(1) == 1


def token_table(rows: Sequence[Sequence[int]], device: torch.device, left: bool) -> Tensor:
    """(rows, tokens), with NO_TOKEN on one side of shorter rows."""
    longest = max(map(len, rows))
    fills = [[NO_TOKEN] * (longest - len(row)) for row in rows]
    pairs = zip(rows, fills, strict=True)
    return torch.tensor([[*fill, *row] if left else [*row, *fill] for row, fill in pairs], device=device)
